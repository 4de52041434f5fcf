"""The coverage of the library's scenarios: arrows of the state machines, and rules that `conform` tests.

What no scenario reaches, no judge of a simulation sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from unittest import mock

import msgspec

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.machine import StateTable
from fencepost.coordinator.protocol.outcome import (
    CreateInternalTopics,
    MemberFenced,
    Outcome,
    RegularExpressionsResolved,
    TopicsChanged,
)
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from fencepost.simulation.lab.conform import schedule
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformGroupView
from fencepost.simulation.lab.conform.exercised import NAMES, SETS, exercised
from fencepost.simulation.machines import TABLES
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library_names, load_any

Move: TypeAlias = tuple[str, str, str, str]
"""A machine, and an arrow of it: from, event, to. The event is empty if only the states were seen."""

SEEDS: Final = 3
"""Number of runs of each scenario."""

_STEPS: Final[Mapping[type, schedule.Step]] = {
    consumer.ConsumerGroupHeartbeatRequest: schedule.Beat(member="member"),
    StreamsGroupHeartbeatRequest: schedule.StreamsBeat(member="member"),
    offsets.OffsetCommitRequest: schedule.CommitStep(topics={}),
    offsets.OffsetFetchRequest: schedule.Fetch(),
    offsets.OffsetDeleteRequest: schedule.Forget(topics={}),
    consumer.ConsumerGroupDescribeRequest: schedule.Describe(),
    StreamsGroupDescribeRequest: schedule.DescribeStreams(),
    DescribeGroupsRequest: schedule.DescribeClassic(),
    consumer.ListGroupsRequest: schedule.List(),
    consumer.LeaveGroupBatchRequest: schedule.Remove(members=()),
    consumer.DeleteGroupsRequest: schedule.DeleteGroup(),
}
"""The step of a schedule that a request corresponds to."""
_WITHOUT_REQUEST: Final[Mapping[type, str]] = {
    RegularExpressionsResolved: "regex.resolution",
    TopicsChanged: "topics.change",
}
_OF_OTHERS: Final = "kafka-4", "kip848-draft"
"""Parts of the names of machines that are others' drafts: no code here runs by them."""
_SUCCESSORS: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer": ("none", "streams"),
    "streams": ("none", "classic", "consumer"),
}
"""Kinds that a group of the id may have after one that ended; migration ends none."""
_ONLY_BY_COMPARISON: Final = (
    "assignor.",
    "classic.waits",
    "group.configuration",
    "streams.target.",
    f"{SETS}.",
)
"""Beginnings of the names of what only a comparison of two coordinators exercises."""


class LibraryCoverage(msgspec.Struct, frozen=True):
    """The arrows and rules that runs reached, each with the scenario that reached it first."""

    moves: dict[Move, str]
    rules: dict[str, str]

    def arrows(self) -> Iterator[tuple[str, list[tuple[str, str, str]], int]]:
        """Yield each machine with the arrows that nothing reached, and how many arrows it has."""
        for table in TABLES:
            if any(part in table.name for part in _OF_OTHERS):
                continue
            missing = [
                (str(each.source), str(each.event), str(each.target))
                for each in table.transitions
                if not self._has(table.name, str(each.source), str(each.event), str(each.target))
            ]
            yield table.name, missing, len(table.transitions)

    def _has(self, name: str, source: str, event: str, target: str) -> bool:
        return any((name, source, each, target) in self.moves for each in (event, ""))

    def missing_rules(self) -> list[str]:
        """Return the rules that nothing reached, except those that need two coordinators."""
        return [each for each in NAMES if each not in self.rules and not each.startswith(_ONLY_BY_COMPARISON)]


class _ExercisedRules:
    """Notes the rules that a coordinator's steps put to the test."""

    def __init__(self, note: Callable[[str], None], note_move: Callable[[Move], None]) -> None:
        self._note = note
        self._note_move = note_move
        self._before: dict[str, ConformGroupView] = {}

    def step(self, coordinator: GroupCoordinator, event: Any, outcome: Outcome) -> None:
        """Take in a step of the coordinator; its records are applied."""
        if (rule := _WITHOUT_REQUEST.get(type(event))) is not None and (outcome.records or outcome.effects):
            self._note(rule)
        for effect in outcome.effects:
            if isinstance(effect, CreateInternalTopics):
                self._note("streams.topics.created")
            elif isinstance(effect, MemberFenced) and f"timer.{effect.reason}" in NAMES:
                self._note(f"timer.{effect.reason}")
        groups = {record.key.group_id for record in outcome.records}
        if (own := getattr(event, "group_id", None)) is not None:
            groups.add(own)
        elif group_ids := getattr(event, "group_ids", ()):
            own = group_ids[0]
            groups.add(own)
        else:
            own = next(iter(self._before), None)
        before = self._before.get(own or "", ConformGroupView())
        for group_id in sorted(groups):
            if outcome.records or group_id not in self._before:
                now = ConformGroupView.of(coordinator, group_id)
                self._ended(self._before.get(group_id), now)
                self._before[group_id] = now
        step = _STEPS.get(type(event))
        if step is None or outcome.reply is None:
            return
        exchange = ConformExchange(
            step=step,
            request=event,
            version=getattr(event, "api_version", 1),
            group_id=own or "",
            answer=outcome.reply,
            ours=outcome.reply,
            before=before,
            after=self._before.get(own or "", before),
            records=outcome.records,
            config=coordinator.config,
        )
        for name in exercised(exchange):
            self._note(name)

    def _ended(self, before: ConformGroupView | None, now: ConformGroupView) -> None:
        """Note that a group that no longer exists moved to Dead, which no table is asked about."""
        if before is not None and now.kind in _SUCCESSORS.get(before.kind, ()):
            self._note_move((f"{before.kind}-group", before.state, "", "Dead"))


@contextmanager
def _noted(note: Callable[[Move], None], rules: _ExercisedRules) -> Iterator[None]:
    """Note every move that a table allows, and the rules that group coordinators' steps exercise."""
    following, checking, allowing = StateTable.next, StateTable.check, StateTable.allows
    stepping = CoordinatorHost.step

    def next_state(table: Any, state: Any, event: Any) -> Any:
        target = following(table, state, event)
        note((table.name, str(state), str(event), str(target)))
        return target

    def check(table: Any, state: Any, event: Any, target: Any) -> Any:
        checked = checking(table, state, event, target)
        note((table.name, str(state), str(event), str(target)))
        return checked

    def allows(table: Any, state: str, target: str) -> bool:
        allowed = allowing(table, state, target)
        if allowed:
            note((table.name, str(state), "", str(target)))
        return allowed

    def step(host: CoordinatorHost[Any], event: Any, now_ms: int) -> Any:
        outcome = stepping(host, event, now_ms)
        if isinstance(host.coordinator, GroupCoordinator):
            rules.step(host.coordinator, event, outcome)
        return outcome

    with (
        mock.patch.object(CoordinatorHost, "step", step),
        mock.patch.object(StateTable, "next", next_state),
        mock.patch.object(StateTable, "check", check),
        mock.patch.object(StateTable, "allows", allows),
    ):
        yield


def library_coverage(seeds: int = SEEDS, scenarios: Sequence[str] = ()) -> LibraryCoverage:
    """Return what that many seeds of the library's scenarios, or of those named, reach."""
    found = LibraryCoverage({}, {})
    for name in scenarios or library_names():
        scenario = load_any(name)
        of_streams = scenario.protocol == "streams"

        def note(move: Move, name: str = name, of_streams: bool = of_streams) -> None:
            if of_streams and move[0] == "consumer-member":
                move = ("streams-member", *move[1:])  # a thread's member moves along the same table
            found.moves.setdefault(move, name)

        def note_rule(rule: str, name: str = name) -> None:
            found.rules.setdefault(rule, name)

        for seed in range(seeds):
            with _noted(note, _ExercisedRules(note_rule, note)):
                run(scenario, seed)
    return found


def coverage_lines(coverage: LibraryCoverage) -> Iterable[str]:
    """Yield the page: how much is reached, and what is not."""
    yield "| machine | arrows | reached |\n|---|---|---|"
    rows = list(coverage.arrows())
    for machine, missing, count in rows:
        yield f"| `{machine}` | {count} | {count - len(missing)} |"
    yield "\nArrows that no scenario reaches:\n"
    yield "| machine | from | event | to |\n|---|---|---|---|"
    for machine, missing, _ in rows:
        for source, event, target in missing:
            yield f"| `{machine}` | {source} | {event} | {target} |"
    missing_rules = coverage.missing_rules()
    judged = sum(not each.startswith(_ONLY_BY_COMPARISON) for each in NAMES)
    reached = judged - len(missing_rules)
    yield f"\nOf {judged} rules of `conform` the scenarios reach {reached}. They do not reach these:\n"
    yield "| rule | what it says |\n|---|---|"
    for name in missing_rules:
        yield f"| {name} | {NAMES[name]} |"
