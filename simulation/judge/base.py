"""The shared parts of all judges: a finding, and a reporter that limits how often it repeats itself."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import GeneratorType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions, TopicPartition
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.kernel.observers import FindingReport, Observer, WorldObserver, WorldView

_V = TypeVar("_V")
_A = TypeVar("_A")
_P = ParamSpec("_P")

Finding: TypeAlias = tuple[str, str]
"""An invariant's name, and a text with the culprit, the place and the epochs."""

REPORTS_PER_INVARIANT: Final = 5
"""One defect is seen at every later event; the first few findings are enough."""

OF_LOG: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors that clients receive if records can't be written.

UNKNOWN_SERVER_ERROR is none of them: no assignor of the simulation may fail, so no target does.
"""

MENDED: Final = frozenset(
    {
        ErrorCode.NONE,
        *(code for code in ErrorCode if code.retriable),
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""Responses after which a member goes on by itself: it retries, or joins again."""

_SHOWN: Final = 12
"""Number of partitions of each topic that a message names."""

NOTHING: Final[frozenset[TopicPartition]] = frozenset()


@lru_cache(maxsize=512)
def as_set(partitions: tuple[TopicPartition, ...]) -> frozenset[TopicPartition]:
    """Partitions as a set, which is the same object for all judges that get the same ones."""
    return frozenset(partitions)


@lru_cache(maxsize=512)
def joined(one: frozenset[TopicPartition], other: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
    """The union, one object for all callers; one of the two if the other is empty."""
    return one | other if one and other else one or other


@lru_cache(maxsize=512)
def without(one: frozenset[TopicPartition], other: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
    """The difference, one object for all callers; `one` itself if nothing is removed."""
    return one if one.isdisjoint(other) else one - other or NOTHING


class OfHosts(dict[Any, _V]):
    """A judge's state of each host, made when the host is first asked for."""

    def __init__(self, make: Callable[[Any], _V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, host: Any) -> _V:
        made = self[host] = self._make(host)
        return made


_PASSES_ON: Final = frozenset(
    {"report", "_report", "report_all", "rule_of", "add_violation", "_finding", "_found"}
)
"""Functions that pass findings of others on."""


def rule_of(findings: object = None) -> str:
    """Return the name of the rule that has just found something: its module and its function.

    That is the innermost generator of `findings`, or else the function that reports.
    """
    while isinstance(inner := getattr(findings, "gi_yieldfrom", None), GeneratorType):
        findings = inner
    frame = getattr(findings, "gi_frame", None) or sys._getframe()
    while frame.f_code.co_name in _PASSES_ON:
        frame = frame.f_back
    module = frame.f_globals["__name__"].removeprefix("fencepost.simulation.")
    return f"{module}:{frame.f_code.co_qualname}"


class FindingReporter(WorldObserver):
    """An observer that reports findings, each invariant at most `REPORTS_PER_INVARIANT` times for a rule."""

    about = ""
    """The group that the findings which are reported now are of; empty if they are of the event's group."""
    left_out: frozenset[str] = frozenset()
    """Invariants that do not apply to the world: no finding of them is reported."""

    def attach(self, world: Any, report: FindingReport) -> None:
        """Keep the world, and the receiver of findings."""
        self.world = world
        self._report = report
        self._reported: dict[tuple[str, str], int] = {}

    def report(self, invariant: str, message: str, rule: str = "") -> None:
        """Pass one finding on, unless the rule has reported this invariant often enough.

        `rule` is the function that found it, see `rule_of`.

        :raises KeyError: if the catalogue has no such invariant.
        """
        INVARIANTS[invariant]
        if invariant in self.left_out:
            return
        kind = invariant, rule or rule_of()
        count = self._reported.get(kind, 0)
        if count < REPORTS_PER_INVARIANT:
            self._reported[kind] = count + 1
            self._report(invariant, message, kind[1])

    def report_all(self, findings: Iterable[Finding], about: str = "") -> None:
        """Pass findings on; they are about that group if it need not be the event's."""
        self.about = about
        for invariant, message in findings:
            self.report(invariant, message, rule_of(findings))
        self.about = ""


class Judge(FindingReporter, Observer):
    """A judge of a group's coordinator and its members."""

    world: WorldView


class _WithAccounts(Protocol[_A]):
    processes: OfHosts[_A]

    def report_all(self, findings: Iterable[Finding]) -> None: ...


def of_process(
    take: Callable[Concatenate[_A, _P], Iterable[Finding] | None],
) -> Callable[Concatenate[_WithAccounts[_A], Any, _P], None]:
    """Return a hook of a judge that passes its calls on to that hook of its account of the process."""

    def pass_on(judge: _WithAccounts[_A], process: Any, /, *arguments: _P.args, **named: _P.kwargs) -> None:
        if (findings := take(judge.processes[process], *arguments, **named)) is not None:
            judge.report_all(findings)

    return pass_on


class OfProcesses(Judge, ABC, Generic[_A]):
    """A judge of each process of a member by itself, with an account of each.

    An account has hooks of a judge, without their host; they may return findings.
    """

    def __init__(self) -> None:
        self.processes: OfHosts[_A] = OfHosts(self.new)

    @abstractmethod
    def new(self, host: str) -> _A:
        """Return the account of a new process."""

    def changed(self, host: str, /, what: str, now_us: int) -> None:
        """Take in a change of a process."""

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh with a new process."""
        if what != "start":
            self.changed(host, what, now_us)
        if what in ("start", "crash", "stopped"):
            self.processes[host] = self.new(host)

    def takes_request(self, host: str, /, request: Request, now_us: int) -> None:
        """Take in a request that a member's driver sent."""

    def takes_response(
        self, host: str, /, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Take in a response that a member's driver received, or the exception that stands for none."""


def shown(partitions: Partitions, names: Mapping[str, str] | None = None) -> str:
    """Return a set of partitions for people: `orders 0 1 2, payments 4`; of a topic the first dozen."""
    known = names or {}
    parts = []
    for topic_id, numbers in partitions.items():
        few = " ".join(map(str, numbers[:_SHOWN])) + (" …" if len(numbers) > _SHOWN else "")
        parts.append(f"{known.get(topic_id, topic_id)} {few}")
    return "{" + ", ".join(parts) + "}"


def shown_names(partitions: Iterable[TopicPartition]) -> str:
    """Return the same for partitions under their topics' names."""
    ordered = sorted(partitions)
    few = ", ".join(f"{topic}-{number}" for topic, number in ordered[:_SHOWN])
    return "{" + few + (", …" if len(ordered) > _SHOWN else "") + "}"


def repeated(member: object, description: type[msgspec.Struct]) -> dict[str, Any]:
    """Return what a description repeats of a member: the fields under whose names its group stores them."""
    return {name: getattr(member, name) for name in description.__struct_fields__ if hasattr(member, name)}
