"""The steps of named processes, and of the coordinator, each computed once.

Processes, coordinators and messages have numbers; equal ones have the same number. So a world is a tuple of
small numbers, and a step of one of its parts is mostly a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Event, SessionEnded, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.lab.explorer.coordinator import (
    CoordinatorState,
    CoordinatorStep,
    differences,
    epochs_if_settled,
    members,
    step,
)
from fencepost.simulation.lab.explorer.process import GROUP, ITSELF, TOPIC, freezer
from fencepost.simulation.lab.explorer.roles import Roles, RoleStep

_TOPIC_ID: Final = TOPIC
"""Findings name topics by their ids."""


class Label(NamedTuple):
    """An event: its kind, its subject, and its message."""

    kind: str
    who: MemberId = ""
    said: int = -1
    """The number of a request, or of another event of the coordinator."""


class KnownProcess(NamedTuple):
    """A member's process in one state."""

    role: int
    member_id: MemberId
    request: int
    """Number of the request that the coordinator may take next; -1 for no request."""
    takes: Label
    """The event by which the coordinator receives it."""
    claims: int
    """The partitions that it considers its own, a bit for each."""
    settled: int
    """Its epoch if it has nothing to do; -1 otherwise."""


class Local(NamedTuple):
    """A step that a process may take by itself."""

    label: Label
    after: int
    """The process then; -n if its life n is next."""
    strays: tuple[int, ...]
    """Requests that the coordinator may take from it, although no process waits for a response."""
    gains: bool
    """True if it considers more partitions its own than before. That counts only while it is a member."""
    is_plain: bool
    """True if only the process changes, whatever else the world is like."""
    findings: tuple[Finding, ...]


class Taken(NamedTuple):
    """The coordinator's reaction to an event."""

    after: int
    answer: int
    removed: tuple[MemberId, ...]
    findings: tuple[Finding, ...]


class Steps:
    """All steps that were computed. Of the faults it knows those that are among `kinds`.

    Static members have their place's letter as their instance id.
    """

    def __init__(self, partitions: int, kinds: Collection[str], *, static: bool) -> None:
        self._image = TopicsImage.of([Topic(name=TOPIC, topic_id=_TOPIC_ID, partitions=partitions)])
        self._freezer = freezer()
        self.roles = Roles(self._image, self._freezer, kinds, static=static)
        self.processes: list[KnownProcess] = []
        self._process_numbers: dict[tuple[int, MemberId, int], int] = {}
        self._coordinators: list[CoordinatorState] = []
        self._coordinator_numbers: dict[object, int] = {}
        self._origins: dict[int, tuple[int, int]] = {}
        """The origin of each coordinator: another one, and the event that it took."""
        self._idle: dict[int, list[int]] = {}
        """The events that each coordinator took without a change."""
        self.said: list[Any] = []
        """Requests, other events of the coordinator, and its responses."""
        self._said_numbers: dict[object, int] = {}
        self.start: Callable[[int, int], Local] = cache(self._start)
        """Returns the beginning of a process: the member at a place, `a` for the first, in one of its lives.
        """
        self.free: Callable[[int], tuple[Local, ...]] = cache(self._free)
        """Returns what may happen to a process, without a fault."""
        self.faulty: Callable[[int], tuple[Local, ...]] = cache(self._faulty)
        """Returns the faults that may happen to a process alone."""
        self.broken: Callable[[int], Local | None] = cache(self._broken)
        """Returns a process after its connection broke; None if nothing is under way on it."""
        self.answered: Callable[[int, int], int] = cache(self._answered)
        """Returns a process after the coordinator has taken its request, and sends this response."""
        self.void: Callable[[int], int] = cache(self._void)
        """Returns a process that is no member any more: what it believes does not count."""
        self.taken: Callable[[int, int], Taken] = cache(self._taken)
        """Returns the coordinator's reaction to a request, or to another event."""
        self.sessions: Callable[[int], Mapping[MemberId, tuple[Label, int]]] = cache(self._sessions)
        """Returns the members, and for each the event that its session ends."""
        self.epochs_if_settled: Callable[[int], Mapping[MemberId, int] | None] = cache(
            lambda coordinator: epochs_if_settled(self._coordinators[coordinator])
        )
        """Returns the members' epochs, if nothing is left to do for this coordinator."""

    # -- processes -----------------------------------------------------------------------------------------

    def _start(self, place: int, life: int) -> Local:
        return self._local(self.roles.start(), "starts", f"{chr(ord('a') + place)}{life}")

    def _free(self, number: int) -> tuple[Local, ...]:
        events = self.roles.known[self.processes[number].role].events
        return tuple([self._stepped(number, kind) for kind in events])

    def _faulty(self, number: int) -> tuple[Local, ...]:
        faults = self.roles.known[self.processes[number].role].faults
        return tuple([self._stepped(number, kind) for kind in faults])

    def _broken(self, number: int) -> Local | None:
        has_more = self.roles.known[self.processes[number].role].is_answered
        return self._stepped(number, "breaks") if has_more else None

    def _answered(self, number: int, answer: int) -> int:
        known, response = self.processes[number], self.said[answer]
        if response.member_id == known.member_id:
            response = msgspec.structs.replace(response, member_id=ITSELF)
        return self._process(self.roles.answered(known.role, response), known.member_id)

    def _void(self, number: int) -> int:
        known = self.processes[number]
        return self._process(self.roles.removed(known.role), known.member_id)

    def _stepped(self, number: int, kind: str) -> Local:
        known = self.processes[number]
        claims = self.roles.known[known.role].claims
        return self._local(self.roles.step(known.role, kind), kind, known.member_id, claims)

    def _local(self, step: RoleStep, kind: str, member_id: MemberId, claims: int = 0) -> Local:
        """Return a step, with the name of the process that steps."""
        findings = tuple([(name, text.replace(ITSELF, member_id)) for name, text in step.findings])
        sent = tuple([self._request(request, member_id) for request in step.sent])
        label = Label(kind, member_id)
        if step.after < 0:
            is_plain = not sent and kind != "refused"
            return Local(label, -1 - int(member_id[1:]), sent, False, is_plain, findings)
        after = self._process(step.after, member_id)
        gains = bool(self.processes[after].claims & ~claims)
        return Local(label, after, sent, gains, not sent and not gains, findings)

    def holding(self, number: int, claims: int) -> int:
        """Return a process that may as well not have released these partitions yet."""
        known = self.processes[number]
        if not claims & ~known.claims:
            return number
        return self._process(known.role, known.member_id, claims | known.claims)

    def _process(self, role: int, member_id: MemberId, claims: int = 0) -> int:
        known = self.roles.known[role]
        claims |= known.claims
        number = self._process_numbers.setdefault((role, member_id, claims), len(self.processes))
        if number == len(self.processes):
            request = -1 if known.request is None else self._request(known.request, member_id)
            takes = Label("takes", member_id, request)
            self.processes.append(KnownProcess(role, member_id, request, takes, claims, known.settled))
        return number

    def _request(self, request: ConsumerGroupHeartbeatRequest, member_id: MemberId) -> int:
        """Return a request, with the name of its sender."""
        instance_id = None if request.instance_id is None else member_id[0]
        named = msgspec.structs.replace(request, member_id=member_id, instance_id=instance_id)
        return self._number_of(named)

    # -- the coordinator -----------------------------------------------------------------------------------

    def first_coordinator(self) -> int:
        """Return a coordinator that knows the topic, and no group."""
        return self._coordinator(CoordinatorState(image=self._image))

    def _taken(self, coordinator: int, said: int) -> Taken:
        event: Event = self.said[said]
        result = step(self._coordinators[coordinator], event)
        answer = -1 if result.reply is None else self._number_of(result.reply)
        after = self._coordinator(result.state)
        findings = result.findings or tuple(self._differences(coordinator, said, result))
        if after == coordinator:
            self._idle.setdefault(coordinator, []).append(said)
        elif after not in self._origins:
            self._origins[after] = coordinator, said
        return Taken(after, answer, result.removed, findings)

    def _differences(self, coordinator: int, said: int, result: CoordinatorStep) -> Iterable[Finding]:
        """Yield what differs if the coordinator took the event without a load, and not after one."""
        origin = self._origins.get(coordinator)
        if origin is None:
            return ()
        before, last = origin
        way = (*self._idle.get(before, ()), last, *self._idle.get(coordinator, ()), said)
        return differences(self._coordinators[before], [self.said[each] for each in way], result)

    def _sessions(self, coordinator: int) -> Mapping[MemberId, tuple[Label, int]]:
        return {
            member_id: (Label("expires", member_id), self._session_end(member_id))
            for member_id in members(self._coordinators[coordinator])
        }

    def growth(self, coordinator: int) -> int:
        """Return the event that the topic has one more partition than this coordinator knows of."""
        image = self._coordinators[coordinator].image
        count = image.by_name[TOPIC].partitions + 1
        grown = image.with_topic(Topic(name=TOPIC, topic_id=_TOPIC_ID, partitions=count))
        return self._number(("grows", count), TopicsChanged(image=grown))

    def _session_end(self, member_id: MemberId) -> int:
        return self._number(("expires", member_id), SessionEnded(group_id=GROUP, member_id=member_id))

    def _coordinator(self, state: CoordinatorState) -> int:
        number = self._coordinator_numbers.setdefault(state.key, len(self._coordinators))
        if number == len(self._coordinators):
            self._coordinators.append(state)
        return number

    def _number_of(self, message: object) -> int:
        return self._number(self._freezer.freeze(message), message)

    def _number(self, key: object, said: object) -> int:
        number = self._said_numbers.setdefault(key, len(self.said))
        if number == len(self.said):
            self.said.append(said)
        return number
