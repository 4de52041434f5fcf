"""Kafka inside a test process: real clients join it, and the test drives what happens to their groups.

`EmbeddedKafka` is imported with what it needs when it is first asked for: it takes `fencepost[kafka]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.simulation.embedded.groups import AsyncGroup as AsyncGroup
    from fencepost.simulation.embedded.groups import Group as Group
    from fencepost.simulation.embedded.kafka import AsyncEmbeddedKafka as AsyncEmbeddedKafka
    from fencepost.simulation.embedded.kafka import EmbeddedKafka as EmbeddedKafka
    from fencepost.simulation.embedded.logs import ReadRecord as ReadRecord
    from fencepost.simulation.embedded.members import GroupMember as GroupMember

_MODULES = {
    "AsyncEmbeddedKafka": "kafka",
    "AsyncGroup": "groups",
    "EmbeddedKafka": "kafka",
    "Group": "groups",
    "GroupMember": "members",
    "ReadRecord": "logs",
}

__all__ = ["AsyncEmbeddedKafka", "AsyncGroup", "EmbeddedKafka", "Group", "GroupMember", "ReadRecord"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
