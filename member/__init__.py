"""The members of a group: pure state machines, and the asyncio drivers that run them.

What runs on Kafka is imported with its libraries when it is first asked for: it takes `fencepost[kafka]`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.member.application.settings import GlobalThread as GlobalThread
    from fencepost.member.kafka.consumer import KIP848Consumer as KIP848Consumer
    from fencepost.member.kafka.streams import StreamsApp as StreamsApp
    from fencepost.member.streams.client_states import StreamClientState as StreamClientState
    from fencepost.member.streams.errors import IllegalStreamsState as IllegalStreamsState
    from fencepost.member.streams.errors import StreamsError as StreamsError
    from fencepost.member.streams.handler import (
        StreamThreadExceptionResponse as StreamThreadExceptionResponse,
    )
    from fencepost.member.streams.thread_states import StreamThreadState as StreamThreadState

_MODULES = {
    "GlobalThread": "application.settings",
    "IllegalStreamsState": "streams.errors",
    "KIP848Consumer": "kafka.consumer",
    "StreamClientState": "streams.client_states",
    "StreamThreadExceptionResponse": "streams.handler",
    "StreamThreadState": "streams.thread_states",
    "StreamsApp": "kafka.streams",
    "StreamsError": "streams.errors",
}

__all__ = [
    "GlobalThread",
    "IllegalStreamsState",
    "KIP848Consumer",
    "StreamClientState",
    "StreamThreadExceptionResponse",
    "StreamThreadState",
    "StreamsApp",
    "StreamsError",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"fencepost.member.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
