"""The channels of a member's process: events go out at once, so that a kill loses none; orders come in."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.listener import AnyEvent, AnyState, Phase
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.classic_messages import CLASSIC_REQUESTS, CLASSIC_RESPONSES, packed

_REQUESTS_KEPT = 256
"""Maximum number of later requests after which a request can still get a response."""


class EventChannel:
    """The channel back to the director of the run. A write returns when the system has the bytes."""

    def __init__(self, channel: socket.socket, began_us: int) -> None:
        self._channel = channel
        self._began_us = began_us

    def now_us(self) -> int:
        """Microseconds since the start of the run."""
        return time.monotonic_ns() // 1_000 - self._began_us

    def say(self, kind: Callable[..., m.Event], *fields: Any) -> None:
        """Send an event, with the present time. Ends the process if the director is gone."""
        try:
            self._channel.sendall(m.frame(kind(self.now_us(), *fields)))
        except (BrokenPipeError, ConnectionResetError):
            raise SystemExit(1) from None


class RealMemberObserver:
    """The observer of one of fencepost's own consumers."""

    def __init__(
        self, telling: EventChannel, standing: Callable[[], tuple[int, tuple[TopicPartition, ...]]]
    ) -> None:
        self._say = telling.say
        self._standing = standing
        self._numbers: OrderedDict[int, tuple[object, int]] = OrderedDict()
        self._last = 0

    def on_state(self, event: AnyEvent, source: AnyState, target: AnyState) -> None:
        """Report a step of the machine."""
        self._say(m.MemberMoved, str(event), str(source), str(target), *self._standing())

    def on_request(self, request: Request) -> None:
        """Report a request."""
        number, new = self._number(request)
        if new and isinstance(request, CLASSIC_REQUESTS):
            self._say(m.ClassicSent, number, *packed(request))
            return
        heartbeat = request if new and isinstance(request, consumer.ConsumerGroupHeartbeatRequest) else None
        commit = request if new and isinstance(request, OffsetCommitRequest) else None
        self._say(m.RequestSent, number, heartbeat, commit)

    def _number(self, request: object) -> tuple[int, bool]:
        known = self._numbers.get(id(request))
        if known is not None:
            self._numbers.move_to_end(id(request))
            return known[1], False
        self._last += 1
        self._numbers[id(request)] = request, self._last
        if len(self._numbers) > _REQUESTS_KEPT:
            self._numbers.popitem(last=False)
        return self._last, True

    def on_response(self, request: Request, response: Response | Exception) -> None:
        """Report the response to a heartbeat, or its failure."""
        number, _ = self._number(request)
        if isinstance(response, Exception):
            self._say(m.HeartbeatAnswered, number, None, type(response).__name__)
        elif isinstance(response, CLASSIC_RESPONSES):
            self._say(m.ClassicAnswered, number, *packed(response))
        elif isinstance(response, consumer.ConsumerGroupHeartbeatResponse):
            self._say(m.HeartbeatAnswered, number, response, "")

    def on_callback(self, kind: CallbackKind, phase: Phase, partitions: tuple[TopicPartition, ...]) -> None:
        """Report the beginning or the end of a rebalance callback."""
        self._say(m.CalledBack, str(kind), phase, partitions)

    def on_commit(self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception) -> None:
        """Report the response to a commit, or its failure."""
        number, _ = self._number(request)
        if isinstance(response, Exception):
            self._say(m.Committed, number, None, None, type(response).__name__)
        else:
            self._say(m.Committed, number, None, response, "")


class Orders:
    """The orders that the director of the run has sent over a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._frames = m.Frames(m.Order)

    def read(self) -> Iterator[m.Order]:
        """Yield the orders that have come; wait for bytes. Ends the process if the director is gone."""
        data = self._channel.recv(65_536)
        if not data:
            raise SystemExit(1)
        return self._frames.feed(data)
