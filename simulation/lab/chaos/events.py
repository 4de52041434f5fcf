"""Everything that happens in a run, as it is heard: what members tell, and what befalls their world."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.lab.chaos import messages as m


class MemberEvent(msgspec.Struct, frozen=True):
    """A hook that observers are called with as it stands, the time added."""

    hook: str
    arguments: tuple[Any, ...]


class TopicImageChanged(msgspec.Struct, frozen=True):
    """A topic changed; `image` is what there is from now on."""

    image: TopicsImage
    topic: str
    what: str
    partitions: int


class HostNoted(msgspec.Struct, frozen=True):
    """Something befell a member's host: crash, freeze or thaw."""

    what: str


class HeartbeatSeen(msgspec.Struct, frozen=True):
    """A heartbeat of a member that does not tell of them was answered: seen on the way back."""

    request: ConsumerGroupHeartbeatRequest
    response: ConsumerGroupHeartbeatResponse


class StreamsMemberHeard(msgspec.Struct, frozen=True):
    """A member of a Streams application was answered: its epoch, or generation; 0 where it heard of none."""

    epoch: int
    heartbeat: bool


Happening: TypeAlias = (
    m.Event | MemberEvent | TopicImageChanged | HostNoted | HeartbeatSeen | StreamsMemberHeard
)


class RunEvents:
    """What happened, each with its time and the host that it happened on, if it did on one."""

    def __init__(self) -> None:
        self._all: list[tuple[int, str, Happening]] = []

    def add(self, t_us: int, host: str, happening: Happening) -> None:
        """Take one down."""
        self._all.append((t_us, host, happening))

    def __len__(self) -> int:
        return len(self._all)

    def in_order(self) -> list[tuple[int, str, Happening]]:
        """All of them by time; those of one time as they were heard, which keeps each process's order."""
        return sorted(self._all, key=lambda each: each[0])
