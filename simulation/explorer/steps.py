"""The steps of one member's process, and of the coordinator, each worked out once.

Processes, coordinators and what is said have numbers, equal ones the same. So a world is a tuple of small
numbers, and to step one of its parts is mostly to look a number up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Event, SessionEnded, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.checkers.base import Finding
from fencepost.simulation.explorer.coordinator import CoordinatorState, epochs_if_settled, members, step
from fencepost.simulation.explorer.frozen import Frozen
from fencepost.simulation.explorer.process import GROUP, TOPIC, Process, freezer

FAULTS: Final[Mapping[str, str]] = {
    "breaks": "a connection breaks; nothing that is under way on it arrives",
    "late": "a connection breaks; what is under way to the coordinator arrives later",
    "crashes": "a process dies; another one starts in its place",
    "stalls": "an application does not poll in time, and its member leaves until it does",
    "closes": "a process closes its member, and another one starts in its place",
    "expires": "the coordinator ends the session of a member that lives",
    "failover": "the coordinator moves, and all connections break",
    "grows": "the topic gets one more partition",
}
"""What counts as a fault: each may happen at any time, as often as there are faults left."""
USUAL_FAULTS: Final = tuple(kind for kind in FAULTS if kind != "late")
"""Those that a group stands. One of KIP-848 does not stand a join that is late: see docs/explorer.md."""
_TOPIC_ID: Final = TOPIC
"""Findings tell topics by their ids."""


class Label(NamedTuple):
    """What happens, to whom, and what is said."""

    kind: str
    who: MemberId = ""
    said: int = -1
    """The number of a request, or of another event of the coordinator."""


class KnownProcess(NamedTuple):
    """A member's process in one state."""

    value: Frozen
    member_id: MemberId
    request: int
    """What the coordinator may take next; -1 for nothing."""
    takes: Label
    """That it does."""
    claims: int
    """What it owns in its own eyes, a bit for each partition."""
    settled: int
    """Its epoch if it has nothing to do; -1 otherwise."""
    events: tuple[str, ...]
    """What may happen to it by itself."""
    faults: tuple[str, ...]


class Local(NamedTuple):
    """What may happen to a process by itself."""

    label: Label
    after: int
    """The process then; -n if its life n is next."""
    strays: tuple[int, ...]
    """What the coordinator may take from it, although nobody waits for an answer."""
    gains: bool
    """It owns more than before in its own eyes. That counts only while it is a member."""
    findings: tuple[Finding, ...]


class Taken(NamedTuple):
    """What the coordinator makes of an event."""

    after: int
    answer: int
    removed: tuple[MemberId, ...]
    findings: tuple[Finding, ...]


class Steps:
    """All steps that were worked out. Of the faults it knows those that are among `kinds`.

    Static members have their place's letter as their instance id.
    """

    def __init__(self, partitions: int, kinds: Collection[str], *, static: bool = False) -> None:
        self._kinds = kinds
        self._static = static
        self._image = TopicsImage.of([Topic(name=TOPIC, topic_id=_TOPIC_ID, partitions=partitions)])
        self._freezer = freezer()
        self.processes: list[KnownProcess] = []
        self._process_numbers: dict[Frozen, int] = {}
        self._coordinators: list[CoordinatorState] = []
        self._coordinator_numbers: dict[object, int] = {}
        self.said: list[Any] = []
        """Requests, other events of the coordinator, and its answers."""
        self._said_numbers: dict[object, int] = {}
        self._free: dict[int, tuple[Local, ...]] = {}
        self._faulty: dict[int, tuple[Local, ...]] = {}
        self._taken: dict[tuple[int, int], Taken] = {}
        self._answered: dict[tuple[int, int], int] = {}
        self._broken: dict[int, Local | None] = {}
        self._voided: dict[int, int] = {}
        self._started: dict[MemberId, Local] = {}
        self._sessions: dict[int, Mapping[MemberId, tuple[Label, int]]] = {}
        self._epochs: dict[int, Mapping[MemberId, int] | None] = {}

    # -- processes -----------------------------------------------------------------------------------------

    def start(self, place: int, life: int) -> Local:
        """A process begins: the member at a place, `a` for the first, in one of its lives."""
        letter = chr(ord("a") + place)
        member_id = f"{letter}{life}"
        start = self._started.get(member_id)
        if start is None:
            process = Process(member_id, letter if self._static else None)
            findings = tuple(process.start(self._image))
            start = Local(Label("starts", member_id), self._process(process), (), False, findings)
            self._started[member_id] = start
        return start

    def free(self, number: int) -> tuple[Local, ...]:
        """What may happen to a process, without a fault."""
        found = self._free.get(number)
        if found is None:
            found = tuple([self._stepped(number, kind) for kind in self.processes[number].events])
            self._free[number] = found
        return found

    def faulty(self, number: int) -> tuple[Local, ...]:
        """The faults that may happen to a process alone."""
        found = self._faulty.get(number)
        if found is None:
            found = tuple([self._stepped(number, kind) for kind in self.processes[number].faults])
            self._faulty[number] = found
        return found

    def broken(self, number: int) -> Local | None:
        """A process after its connection broke; None if nothing is under way on it."""
        if number not in self._broken:
            breaks = "breaks" in self._thawed(number).possible
            self._broken[number] = self._stepped(number, "breaks") if breaks else None
        return self._broken[number]

    def answered(self, number: int, answer: int) -> int:
        """A process once the coordinator has taken its request, and answers this."""
        after = self._answered.get((number, answer))
        if after is None:
            process = self._thawed(number)
            process.request_taken(self.said[answer])
            after = self._answered[number, answer] = self._process(process)
        return after

    def void(self, number: int) -> int:
        """A process that is no member any more: what it believes does not count."""
        after = self._voided.get(number)
        if after is None:
            process = self._thawed(number)
            process.is_removed()
            after = self._voided[number] = self._process(process)
        return after

    def _stepped(self, number: int, kind: str) -> Local:
        """One event of one process. What it raises is a finding."""
        known = self.processes[number]
        label = Label(kind, known.member_id)
        gone = -1 - int(known.member_id[1:])
        if kind in ("crashes", "refused"):
            return Local(label, gone, (), False, ())
        process = self._thawed(number)
        sent = process.requests if kind == "late" else ()
        now_ms = process.length_ms(kind)
        try:
            findings = tuple(_STEPS[kind](process, self._image))
        except Exception as error:
            raised = "transitions", f"{known.member_id} raised {type(error).__name__}: {error}"
            return Local(label, number, (), False, (raised,))
        if process.left:
            sent = (*sent, *process.requests)
        strays = tuple([self._number_of(each.request) for each in sent])
        if process.left:
            return Local(label, gone, strays, False, findings)
        after = self._process(process, now_ms)
        gains = bool(self.processes[after].claims & ~known.claims)
        return Local(label, after, strays, gains, findings)

    def _process(self, process: Process, now_ms: int = 0) -> int:
        value = self._freezer.freeze(process, now_ms)
        number = self._process_numbers.get(value)
        if number is None:
            number = self._process_numbers[value] = len(self.processes)
            machine, possible = process.machine, process.possible
            request = self._number_of(process.requests[0].request) if process.requests else -1
            self.processes.append(
                KnownProcess(
                    value=value,
                    member_id=machine.member_id,
                    request=request,
                    takes=Label("takes", machine.member_id, request),
                    claims=sum(1 << each.partition for each in process.claims),
                    settled=machine.member_epoch if process.has_settled else -1,
                    events=tuple([kind for kind in possible if kind not in FAULTS]),
                    faults=tuple([kind for kind in possible if kind in self._kinds]),
                )
            )
        return number

    def _thawed(self, number: int) -> Process:
        process: Process = self._freezer.thaw(self.processes[number].value)
        return process

    # -- the coordinator -----------------------------------------------------------------------------------

    def first_coordinator(self) -> int:
        """One that knows the topic, and no group."""
        return self._coordinator(CoordinatorState(image=self._image))

    def taken(self, coordinator: int, said: int) -> Taken:
        """What a coordinator makes of a request, or of another event."""
        taken = self._taken.get((coordinator, said))
        if taken is None:
            event: Event = self.said[said]
            result = step(self._coordinators[coordinator], event)
            answer = -1 if result.reply is None else self._number_of(result.reply)
            taken = Taken(self._coordinator(result.state), answer, result.removed, result.findings)
            self._taken[coordinator, said] = taken
        return taken

    def sessions(self, coordinator: int) -> Mapping[MemberId, tuple[Label, int]]:
        """Who is a member, and the event that its session ends."""
        found = self._sessions.get(coordinator)
        if found is None:
            found = self._sessions[coordinator] = {
                member_id: (Label("expires", member_id), self._session_end(member_id))
                for member_id in members(self._coordinators[coordinator])
            }
        return found

    def epochs_if_settled(self, coordinator: int) -> Mapping[MemberId, int] | None:
        """The members' epochs, if nothing is left to do for this coordinator."""
        if coordinator not in self._epochs:
            self._epochs[coordinator] = epochs_if_settled(self._coordinators[coordinator])
        return self._epochs[coordinator]

    def growth(self, coordinator: int) -> int:
        """The event that the topic has one more partition than this coordinator knows of."""
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


_STEPS: Final[Mapping[str, Callable[[Process, TopicsImage], Iterable[Finding]]]] = {
    "timer": Process.timer,
    "callback": Process.callback_ends,
    "answer": Process.answer_arrives,
    "breaks": Process.connection_breaks,
    "late": Process.connection_breaks,
    "polls": Process.polls,
    "stalls": Process.stalls,
    "closes": Process.close,
}
"""What happens to a process by itself; one that crashes, or is refused, does nothing any more."""
