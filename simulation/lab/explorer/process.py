"""A member's process: its machine, its application, and what is under way between it and its coordinator."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.machine import IllegalTransition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetFetchResponse
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.member.base.actions import (
    CallbackKind,
    FetchOffsets,
    LeaveFinished,
    RaiseToApplication,
    ResolveTopicNames,
    RunCallback,
    SendFindCoordinator,
)
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import FatalMemberError, RequestFailure
from fencepost.member.consumer.actions import (
    ConsumerMoved,
    SendHeartbeat,
)
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import CONSUMER_MEMBER, ConsumerMemberState
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.members import CallbackBalance
from fencepost.simulation.lab.explorer.frozen import Freezer, FrozenTokens, slots_of

GROUP: Final = "group"
TOPIC: Final = "orders"


class _Even(random.Random):
    """A generator without chance: a wait is as long as it is on average."""

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2


ITSELF: Final = "<itself>"
"""The name that each process gives to its member: those that differ in nothing else are the same."""
_DYNAMIC: Final = ConsumerConfig(enable_auto_commit=False, auto_offset_reset="earliest")
_STATIC: Final = msgspec.structs.replace(_DYNAMIC, group_instance_id=ITSELF)
_RNG: Final = _Even(0)


def freezer() -> Freezer:
    """Return a freezer of processes."""
    return Freezer((_DYNAMIC, _STATIC, _RNG))


class HeartbeatInFlight(msgspec.Struct, frozen=True):
    """A heartbeat on its way to the coordinator."""

    token: int
    request: consumer.ConsumerGroupHeartbeatRequest


class ReplyInFlight(msgspec.Struct, frozen=True):
    """A response on its way back."""

    token: int
    response: consumer.ConsumerGroupHeartbeatResponse


class ExploredProcess:
    """One member with an application that waits in poll. It is stepped at the time 0, except for its timers.

    Requests for the coordinator, for topics' names and for committed offsets are answered at once: these
    responses are no part of the group's protocol. Heartbeats travel on one connection, in their order.
    """

    __slots__ = ("answers", "callbacks", "left", "machine", "requests", "void")

    def __init__(self, *, static: bool) -> None:
        machine = ConsumerMember(GROUP, ITSELF, _STATIC if static else _DYNAMIC, _RNG)
        _count_with(machine, machine.tokens, FrozenTokens())
        self.machine = machine
        self.callbacks = CallbackBalance(ITSELF)
        self.requests: tuple[HeartbeatInFlight, ...] = ()
        self.answers: tuple[ReplyInFlight, ...] = ()
        self.void: frozenset[TopicPartition] = frozenset()
        """Partitions that it believes it owns although the coordinator has removed it."""
        self.left = False
        """True if it was closed, and all is over."""

    # -- events; each method returns what is wrong with it -------------------------------------------------

    def start(self, image: TopicsImage) -> list[Finding]:
        """Start it: its application subscribes, and waits in poll."""
        return [
            *self._run(self.machine.subscribe((TOPIC,), None, 0), image),
            *self._run(self.machine.poll_begin(0), image),
        ]

    def length_ms(self, kind: str) -> int:
        """Return the time that passes for it in such an event, in ms."""
        if kind == "stalls":
            return self.machine.config.max_poll_interval_ms
        if kind == "idles":
            return self._idle_until_ms or 0
        return self.machine.deadline_ms or 0 if kind == "timer" else 0

    def timer(self, image: TopicsImage) -> list[Finding]:
        """Let time pass until its next deadline."""
        return self._time_passes(self.machine.deadline_ms, image)

    def idles(self, image: TopicsImage) -> list[Finding]:
        """Let much time pass, until its next deadline that is no heartbeat's."""
        return self._time_passes(self._idle_until_ms, image)

    def _time_passes(self, now_ms: int | None, image: TopicsImage) -> list[Finding]:
        close_by_ms = self.machine.closing.deadline_ms
        assert now_ms is not None
        gives_up = close_by_ms is not None and now_ms >= close_by_ms
        return self._run(self.machine.deadline_reached(now_ms), image, now_ms, gives_up=gives_up)

    def callback_ends(self, image: TopicsImage) -> list[Finding]:
        """Let the application's callback return."""
        assert self.callbacks.running is not None
        callback = self.machine.callbacks.running
        assert callback is not None
        kind, partitions = self.callbacks.running
        found = list(self.callbacks.end(kind, partitions))
        self.void &= self.callbacks.owned
        return found + self._run(self.machine.callback_finished(callback.token, None, 0), image)

    def answer_arrives(self, image: TopicsImage) -> list[Finding]:
        """Let the next response on the connection reach it."""
        answer, *rest = self.answers
        self.answers = tuple(rest)
        return self._run(self.machine.heartbeat_answered(answer.token, answer.response, 0), image)

    def connection_breaks(self, image: TopicsImage) -> list[Finding]:
        """Break the connection: no request that was under way gets a response."""
        lost = [each.token for each in self.answers] + [each.token for each in self.requests]
        self.requests = self.answers = ()
        found: list[Finding] = []
        for token in lost:
            found += self._run(self.machine.request_failed(token, RequestFailure.DISCONNECTED, 0), image)
        return found

    def stalls(self, image: TopicsImage) -> list[Finding]:
        """Let the application's poll return, and the next one not come within its interval."""
        late_ms = self.length_ms("stalls")
        return [
            *self._run(self.machine.poll_end({}, 0), image),
            *self._run(self.machine.deadline_reached(late_ms), image, late_ms),
        ]

    def polls(self, image: TopicsImage) -> list[Finding]:
        """Let the application poll again."""
        return self._run(self.machine.poll_begin(0), image)

    def unsubscribes(self, image: TopicsImage) -> list[Finding]:
        """Let the application's poll return; it wants nothing any more for now."""
        return [
            *self._run(self.machine.poll_end({}, 0), image),
            *self._run(self.machine.unsubscribe(0), image),
        ]

    def close(self, image: TopicsImage) -> list[Finding]:
        """Let it leave for good."""
        return self._run(self.machine.close(0), image)

    def request_taken(self, response: consumer.ConsumerGroupHeartbeatResponse) -> None:
        """Let the coordinator take the first request, and send this response."""
        sent, *rest = self.requests
        self.requests = tuple(rest)
        self.answers = (*self.answers, ReplyInFlight(sent.token, response))

    def is_removed(self) -> None:
        """Note that the coordinator has removed it: what it believes does not count."""
        self.void = self.callbacks.owned

    @property
    def possible(self) -> tuple[str, ...]:
        """Events that may happen to it next, faults included."""
        runs = not self.machine.closing.closed and not self.is_refused
        polls = runs and self.machine.polls.in_poll and self.callbacks.running is None
        found = {
            "timer": self.machine.deadline_ms is not None,
            "idles": self._idle_until_ms is not None,
            "callback": self.callbacks.running is not None,
            "refused": self.is_refused and self.callbacks.running is None,
            "answer": self.answers,
            "polls": self.machine.subscription and not self.machine.polls.in_poll,
            "subscribes": runs and not self.machine.subscription,
            "breaks": self.requests or self.answers,
            "late": self.requests,
            "crashes": True,
            "stalls": polls,
            "unsubscribes": polls and self.machine.subscription,
            "closes": runs,
        }
        return tuple([kind for kind, is_possible in found.items() if is_possible])

    @property
    def _idle_until_ms(self) -> int | None:
        """The next deadline that is no heartbeat's, if one of a heartbeat comes first."""
        first_ms = self.machine.deadline_ms
        later = [
            moment_ms
            for moment_ms in (
                self.machine.polls.deadline_ms,
                self.machine.leave.deadline_ms,
                self.machine.closing.deadline_ms,
            )
            if first_ms is not None and moment_ms is not None and moment_ms > first_ms
        ]
        return min(later, default=None)

    @property
    def is_refused(self) -> bool:
        """True if its application can only end: it is static, and another member has its place."""
        return self.machine.state is ConsumerMemberState.FATAL

    @property
    def claims(self) -> frozenset[TopicPartition]:
        """Partitions that it considers its own, unless the coordinator has fenced it since.

        From the end of `on_assigned` to the end of `on_revoked` or the beginning of `on_lost`.
        """
        running = self.callbacks.running
        lost = running[1] if running is not None and running[0] == CallbackKind.LOST else frozenset()
        return self.callbacks.owned - self.void - lost

    @property
    def has_settled(self) -> bool:
        """True if it has nothing to do except to show that it lives."""
        return (
            self.machine.state is ConsumerMemberState.STABLE
            and self.callbacks.running is None
            and self.machine.assignment.reconciled
        )

    # -- running the machine -------------------------------------------------------------------------------

    def _run(
        self, actions: Iterable[Any], image: TopicsImage, now_ms: int = 0, *, gives_up: bool = False
    ) -> list[Finding]:
        """Carry actions out. A member that gives up closing in time drops what it could not release."""
        found: list[Finding] = []
        machine, todo = self.machine, list(actions)
        while todo:
            action = todo.pop(0)
            match action:
                case SendHeartbeat():
                    self.requests = (*self.requests, HeartbeatInFlight(action.token, action.request))
                case SendFindCoordinator():
                    todo += machine.coordinator_found(action.token, now_ms)
                case ResolveTopicNames():
                    names = {each: name for each in action.topic_ids if (name := image.name_of(each))}
                    todo += machine.topic_names_found(action.token, names, now_ms)
                case FetchOffsets():
                    offsets = dict.fromkeys(action.request.partitions or (), OffsetAndMetadata(offset=0))
                    answer = OffsetFetchResponse(group_id=GROUP, offsets=offsets)
                    todo += machine.offsets_fetched(action.token, answer, now_ms)
                case RunCallback():
                    found += self.callbacks.begin(action.kind, frozenset(action.partitions))
                case ConsumerMoved():
                    found += self._judged(action)
                case LeaveFinished():
                    self.left = machine.closing.closed
                    if self.left and not gives_up:
                        found += self.callbacks.emptied("stopped")
                case RaiseToApplication() if not _place_is_taken(action.error):
                    found.append(
                        ("progress", f"{machine.member_id} raises to its application: {action.error}")
                    )
        machine.commits.next_auto_ms = 0  # nothing commits: the time of the next commit does not matter
        return found

    def _judged(self, moved: ConsumerMoved) -> list[Finding]:
        """Return what is wrong with a transition: it is not in the table, or begins a membership with
        partitions."""
        found = []
        try:
            CONSUMER_MEMBER.check(moved.source, moved.event, moved.target)
        except IllegalTransition as error:
            found.append(("transitions", f"{self.machine.member_id}: {error}"))
        if moved.target is ConsumerMemberState.JOINING:
            found += self.callbacks.emptied("joined")
        return found


def _place_is_taken(error: Exception) -> bool:
    """Return true if the error says that another member has the place of a static one."""
    return isinstance(error, FatalMemberError) and error.code is ErrorCode.UNRELEASED_INSTANCE_ID


def _count_with(part: Any, old: object, new: FrozenTokens) -> None:
    """Replace a counter by another one, wherever a machine's parts have it."""
    for name in slots_of(type(part)):
        value = getattr(part, name)
        if value is old:
            setattr(part, name, new)
        elif type(value).__module__.startswith("fencepost.member") and hasattr(type(value), "__slots__"):
            _count_with(value, old, new)
