"""The members of a group: pure state machines, and the asyncio drivers that run them.

`KIP848Consumer` is imported with its libraries when it is first asked for: it takes `fencepost[kafka]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.member.kafka.consumer import KIP848Consumer as KIP848Consumer

__all__ = ["KIP848Consumer"]


def __getattr__(name: str) -> Any:
    if name == "KIP848Consumer":
        from fencepost.member.kafka.consumer import KIP848Consumer

        return KIP848Consumer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
