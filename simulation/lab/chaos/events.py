"""All events of a run as they are received: reports of members, and what happens to their world."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.lab.chaos import messages as m


class _Happening(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class MemberEvent(_Happening, frozen=True):
    """A hook that observers are called with unchanged, plus the time."""

    hook: str
    arguments: tuple[Any, ...]


class MessageLost(_Happening, frozen=True):
    """The proxy lost a request or a response of a member; `request` is the name of the request's type."""

    host: str
    broker: str
    direction: str
    request: str


class TopicImageChanged(_Happening, frozen=True):
    """A topic changed; `image` has all topics from now on."""

    image: TopicsImage
    topic: str
    what: str
    partitions: int


class HostNoted(_Happening, frozen=True):
    """Something happened to a member's host: crash, freeze or thaw."""

    what: str


class HeartbeatSeen(_Happening, frozen=True):
    """The response to a heartbeat of a member that does not report heartbeats, seen on the way back."""

    request: consumer.ConsumerGroupHeartbeatRequest
    response: consumer.ConsumerGroupHeartbeatResponse


class StreamsMemberHeard(_Happening, frozen=True):
    """A response to a member of a Streams application: its epoch, or generation; 0 if it has none."""

    epoch: int
    heartbeat: bool


Happening: TypeAlias = (
    m.Event | MemberEvent | MessageLost | TopicImageChanged | HostNoted | HeartbeatSeen | StreamsMemberHeard
)


class RunEvents:
    """The events of a run, each with its time and the host that it happened on, if it did on one."""

    def __init__(self, kept: list[tuple[int, str, Happening]] | None = None) -> None:
        self.all = kept or []

    def add(self, t_us: int, host: str, happening: Happening) -> None:
        """Add an event."""
        self.all.append((t_us, host, happening))

    def __len__(self) -> int:
        return len(self.all)

    def in_order(self) -> list[tuple[int, str, Happening]]:
        """Return all events by time; those of one time in the order of receipt, which keeps each process's
        order."""
        return sorted(self.all, key=lambda each: each[0])
