"""The member's table against Kafka's list of legal predecessors, and against the drafts it grew from."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.machine import Transition
from fencepost.member.consumer.states import ACTIVE, CONSUMER_MEMBER, NEVER_TAKEN
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.machines import DRAFTS, MACHINES, OtherMachine

RECONCILIATION_LOOP = {"JOINING", "STABLE", "RECONCILE_ASSIGNMENT", "ACK_ASSIGNMENT"}
"""The first draft's composite state; an arrow from it leaves each state inside."""

FROM_THE_GROUP = {S.JOINING, S.STABLE, S.RECONCILING, S.ACKNOWLEDGING}
PREDECESSORS = {
    S.JOINING: {S.UNSUBSCRIBED, S.FENCED, S.STALE},
    S.RECONCILING: {S.JOINING, S.STABLE, S.ACKNOWLEDGING, S.RECONCILING},
    S.ACKNOWLEDGING: {S.RECONCILING},
    S.STABLE: {S.JOINING, S.ACKNOWLEDGING, S.RECONCILING},
    S.FENCED: {*FROM_THE_GROUP, S.PREPARE_LEAVING, S.LEAVING},
    S.PREPARE_LEAVING: {*FROM_THE_GROUP, S.UNSUBSCRIBED},
    S.LEAVING: {S.PREPARE_LEAVING},
    S.UNSUBSCRIBED: {S.PREPARE_LEAVING, S.LEAVING, S.FENCED},
    S.STALE: {S.LEAVING},
    S.FATAL: {*FROM_THE_GROUP, S.PREPARE_LEAVING, S.LEAVING, S.UNSUBSCRIBED},
}


@pytest.mark.parametrize("state", list(S))
def test_predecessors_are_those_of_kafkas_client(state: S) -> None:
    assert {t.source for t in CONSUMER_MEMBER.transitions if t.target is state} == PREDECESSORS[state]


def test_arrows_that_are_never_taken_are_declared() -> None:
    assert set(NEVER_TAKEN) <= set(CONSUMER_MEMBER.transitions)


def test_machines_are_listed_under_their_names() -> None:
    assert list(MACHINES)[:3] == [
        "consumer-member",
        "consumer-member-kip848-draft1",
        "consumer-member-kip848-draft2",
    ]
    assert all(name == table.name for name, table in MACHINES.items())


def test_arrows_from_the_composite_state_leave_every_state_inside() -> None:
    for target in ("LEAVING", "FENCED", "FATAL"):
        assert {t.source for t in DRAFTS[0].table.transitions if t.target == target} == RECONCILIATION_LOOP


# -- the drafts beside the machine -----------------------------------------------------------------------


def path(view: OtherMachine, step: Transition[Any, Any]) -> tuple[list[str], str] | None:
    """Where the step comes from in the draft, all names of that state, and where it arrives."""
    sources, targets = view.names[step.source], view.names[step.target]
    return (list(sources), targets[0]) if sources and targets else None


def arrows(view: OtherMachine, step: Transition[Any, Any]) -> list[Transition[Any, Any]]:
    """The draft's arrows that the step takes: along the names of its source, then to its target."""
    taken: list[Transition[Any, Any]] = []
    ends = path(view, step)
    if ends is None:
        return []
    sources, target = ends
    for here, there in zip(sources, [*sources[1:], target], strict=True):
        found = [
            arrow
            for arrow in view.table.transitions
            if arrow.source == here and arrow.target == there and step.event in view.events[arrow.event]
        ]
        if not found:
            return []
        taken += found
    return taken


def stays(view: OtherMachine, step: Transition[Any, Any]) -> bool:
    ends = path(view, step)
    return ends is not None and ends[0] == [ends[1]]


def listed(view: OtherMachine) -> list[Transition[Any, Any]]:
    return [step for difference in view.differences for step in difference.steps]


@pytest.mark.parametrize("view", DRAFTS, ids=lambda view: view.table.name)
@pytest.mark.parametrize(
    "step", CONSUMER_MEMBER.transitions, ids=lambda t: f"{t.source}-{t.event}-{t.target}"
)
def test_each_step_is_an_arrow_of_the_draft_or_a_listed_difference(
    view: OtherMachine, step: Transition[Any, Any]
) -> None:
    known = bool(arrows(view, step)) or stays(view, step)
    assert known != (step in listed(view))


@pytest.mark.parametrize("view", DRAFTS, ids=lambda view: view.table.name)
def test_no_listed_difference_is_stale_or_without_a_reason(view: OtherMachine) -> None:
    assert sorted(listed(view)) == sorted(set(listed(view)))
    assert set(listed(view)) <= set(CONSUMER_MEMBER.transitions)
    assert all(difference.reason.endswith(".") for difference in view.differences + view.untaken)


@pytest.mark.parametrize("view", DRAFTS, ids=lambda view: view.table.name)
def test_arrows_of_the_draft_that_no_step_takes_are_listed(view: OtherMachine) -> None:
    taken = {arrow for step in CONSUMER_MEMBER.transitions for arrow in arrows(view, step)}
    loops = {arrow for arrow in view.table.transitions if arrow.source == arrow.target}
    untaken = {arrow for difference in view.untaken for arrow in difference.steps}
    assert set(view.table.transitions) - taken - loops == untaken


@pytest.mark.parametrize("view", DRAFTS, ids=lambda view: view.table.name)
def test_all_states_and_events_have_a_counterpart(view: OtherMachine) -> None:
    assert set(view.names) == set(S)
    named = {name for names in view.names.values() for name in names}
    assert named == set(view.table.states)
    assert set(view.events) == {arrow.event for arrow in view.table.transitions}


def test_unsubscribing_is_a_reconciliation_in_the_second_draft() -> None:
    unsubscribe = next(
        t for t in CONSUMER_MEMBER.transitions if (t.source, t.event) == (S.STABLE, "unsubscribe")
    )
    assert [str(arrow.event) for arrow in arrows(DRAFTS[1], unsubscribe)] == ["Consumer.unsubscribe()"]
    assert DRAFTS[1].table.allows("STABLE", "RECONCILING")


def test_active_states_are_the_first_drafts_loop() -> None:
    names = {name for state in ACTIVE for name in DRAFTS[0].names[state]}
    assert names == RECONCILIATION_LOOP
