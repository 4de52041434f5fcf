"""The members of a group: pure state machines, and the asyncio drivers that run them.

What runs on Kafka is imported with its libraries when it is first asked for: it takes `fencepost[kafka]`.
Single active consumers on RabbitMQ take nothing more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.member.kafka.consumer import KIP848Consumer as KIP848Consumer
    from fencepost.member.kafka.errors import AuthenticationError as AuthenticationError
    from fencepost.member.kafka.streams import StreamsApp as StreamsApp
    from fencepost.member.rabbit.transport import RabbitTransport as RabbitTransport
    from fencepost.member.sac.consumer import SingleActiveConsumer as SingleActiveConsumer
    from fencepost.member.sac.listener import SacListener as SacListener
    from fencepost.member.sac.transport import SacSubscription as SacSubscription
    from fencepost.member.sac.transport import SubscriptionRefused as SubscriptionRefused
    from fencepost.member.sac.transport import UnreadableMessages as UnreadableMessages
    from fencepost.member.streams.application.settings import GlobalThread as GlobalThread
    from fencepost.member.streams.client_states import StreamClientState as StreamClientState
    from fencepost.member.streams.errors import IllegalStreamsState as IllegalStreamsState
    from fencepost.member.streams.errors import StreamsError as StreamsError
    from fencepost.member.streams.handler import (
        StreamThreadExceptionResponse as StreamThreadExceptionResponse,
    )
    from fencepost.member.streams.thread_states import StreamThreadState as StreamThreadState

_MODULES = {
    "AuthenticationError": "kafka.errors",
    "GlobalThread": "streams.application.settings",
    "IllegalStreamsState": "streams.errors",
    "KIP848Consumer": "kafka.consumer",
    "RabbitTransport": "rabbit.transport",
    "SacListener": "sac.listener",
    "SacSubscription": "sac.transport",
    "SingleActiveConsumer": "sac.consumer",
    "StreamClientState": "streams.client_states",
    "StreamThreadExceptionResponse": "streams.handler",
    "StreamThreadState": "streams.thread_states",
    "StreamsApp": "kafka.streams",
    "StreamsError": "streams.errors",
    "SubscriptionRefused": "sac.transport",
    "UnreadableMessages": "sac.transport",
}

__all__ = [
    "AuthenticationError",
    "GlobalThread",
    "IllegalStreamsState",
    "KIP848Consumer",
    "RabbitTransport",
    "SacListener",
    "SacSubscription",
    "SingleActiveConsumer",
    "StreamClientState",
    "StreamThreadExceptionResponse",
    "StreamThreadState",
    "StreamsApp",
    "StreamsError",
    "SubscriptionRefused",
    "UnreadableMessages",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"fencepost.member.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiokafka":
            raise
        told = f"{name} needs aiokafka, which is not installed: pip install 'fencepost[kafka]'"
        raise ModuleNotFoundError(told, name="aiokafka") from error
