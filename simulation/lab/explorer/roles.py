"""The steps of one member's process, for any member, each computed once.

Processes that differ only in their names step alike: they have one role.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.lab.explorer.frozen import Freezer, Frozen
from fencepost.simulation.lab.explorer.process import ITSELF, ExploredProcess

FAULTS: Final[Mapping[str, str]] = {
    "breaks": "a connection breaks; nothing that is under way on it arrives",
    "late": "a connection breaks; what is under way to the coordinator arrives later",
    "crashes": "a process dies; another one starts in its place",
    "unsubscribes": "an application unsubscribes, and subscribes again later",
    "stalls": "an application does not poll in time, and its member leaves until it does",
    "closes": "a process closes its member, and another one starts in its place",
    "expires": "the coordinator ends the session of a member that lives",
    "failover": "the coordinator moves, and all connections break",
    "grows": "the topic gets one more partition",
}
"""Kinds of faults: each may happen at any time, as often as there are faults left."""
USUAL_FAULTS: Final = tuple(kind for kind in FAULTS if kind != "late")
"""Faults that a group survives. A group of KIP-848 does not survive a late join: see docs/explorer.md."""


class Role(NamedTuple):
    """A member's process in one state."""

    value: Frozen
    request: consumer.ConsumerGroupHeartbeatRequest | None
    """The request that the coordinator may take next."""
    claims: int
    """The partitions that it considers its own, a bit for each."""
    settled: int
    """Its epoch if it has nothing to do; -1 otherwise."""
    is_answered: bool
    """True if anything is under way on its connection."""
    events: tuple[str, ...]
    """Events that may happen to it by itself."""
    faults: tuple[str, ...]


class RoleStep(NamedTuple):
    """A step that a process may take by itself."""

    after: int
    """Its role then; -1 if it has ended."""
    sent: tuple[consumer.ConsumerGroupHeartbeatRequest, ...]
    """Requests that the coordinator may take from it, although no process waits for a response."""
    findings: tuple[Finding, ...]


class Roles:
    """All roles that were met. Of the faults it knows those that are among `kinds`."""

    def __init__(self, image: TopicsImage, freezer: Freezer, kinds: Collection[str], *, static: bool) -> None:
        self._image = image
        self._freezer = freezer
        self._kinds = kinds
        self._static = static
        self.known: list[Role] = []
        self._numbers: dict[Frozen, int] = {}
        self._answered: dict[tuple[int, Frozen], int] = {}
        self.start: Callable[[], RoleStep] = cache(self._start)
        """Returns the beginning of a process."""
        self.step: Callable[[int, str], RoleStep] = cache(self._step)
        """Returns the step for an event that happens to it by itself. An exception is a finding."""
        self.removed: Callable[[int], int] = cache(self._removed)
        """Returns the role of a removed member: what it believes does not count."""

    def _start(self) -> RoleStep:
        process = ExploredProcess(static=self._static)
        findings = tuple(process.start(self._image))
        return RoleStep(self._role(process), (), findings)

    def answered(self, number: int, response: consumer.ConsumerGroupHeartbeatResponse) -> int:
        """Return its role after the coordinator has taken its request, and sends this response."""
        key = number, self._freezer.freeze(response)
        after = self._answered.get(key)
        if after is None:
            process = self._thawed(number)
            process.request_taken(response)
            after = self._answered[key] = self._role(process)
        return after

    def _removed(self, number: int) -> int:
        process = self._thawed(number)
        process.is_removed()
        return self._role(process)

    def _step(self, number: int, kind: str) -> RoleStep:
        if kind in ("crashes", "refused"):
            return RoleStep(-1, (), ())
        process = self._thawed(number)
        sent = process.requests if kind == "late" else ()
        now_ms = process.length_ms(kind)
        try:
            findings = tuple(_STEPS[kind](process, self._image))
        except Exception as error:
            raised = "transitions", f"{ITSELF} raised {type(error).__name__}: {error}"
            return RoleStep(number, (), (raised,))
        if process.left:
            sent = (*sent, *process.requests)
        requests = tuple([each.request for each in sent])
        return RoleStep(-1 if process.left else self._role(process, now_ms), requests, findings)

    def _role(self, process: ExploredProcess, now_ms: int = 0) -> int:
        value = self._freezer.freeze(process, now_ms)
        number = self._numbers.setdefault(value, len(self.known))
        if number == len(self.known):
            machine, possible = process.machine, process.possible
            self.known.append(
                Role(
                    value=value,
                    request=process.requests[0].request if process.requests else None,
                    claims=sum(1 << each.partition for each in process.claims),
                    settled=machine.member_epoch if process.has_settled else -1,
                    is_answered="breaks" in possible,
                    events=tuple([kind for kind in possible if kind not in FAULTS]),
                    faults=tuple([kind for kind in possible if kind in self._kinds]),
                )
            )
        return number

    def _thawed(self, number: int) -> ExploredProcess:
        process: ExploredProcess = self._freezer.thaw(self.known[number].value)
        return process


_STEPS: Final[Mapping[str, Callable[[ExploredProcess, TopicsImage], Iterable[Finding]]]] = {
    "timer": ExploredProcess.timer,
    "idles": ExploredProcess.idles,
    "callback": ExploredProcess.callback_ends,
    "answer": ExploredProcess.answer_arrives,
    "polls": ExploredProcess.polls,
    "breaks": ExploredProcess.connection_breaks,
    "late": ExploredProcess.connection_breaks,
    "subscribes": ExploredProcess.start,
    "unsubscribes": ExploredProcess.unsubscribes,
    "stalls": ExploredProcess.stalls,
    "closes": ExploredProcess.close,
}
"""Events that happen to a process by itself; one that crashes, or is refused, does nothing any more."""
