"""The explorer: every interleaving of a small group, what it finds, and that it leaves nothing out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fencepost.simulation.lab.explorer.roles as roles_module
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState, ConsumerSoftState
from fencepost.member.base.actions import Actions
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.reconciliation import Reconciler
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.simulation.cli import main
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.lab.explorer.frozen import Freezer, FrozenTokens
from fencepost.simulation.lab.explorer.group import ExploredGroup
from fencepost.simulation.lab.explorer.process import ExploredProcess
from fencepost.simulation.lab.explorer.reduced import ReducedGroup
from fencepost.simulation.lab.explorer.roles import FAULTS, USUAL_FAULTS, Roles
from fencepost.simulation.lab.explorer.space import Search, Walk
from fencepost.simulation.mutants.registry import MUTANTS

DOCS = Path(__file__).parents[3] / "docs"


def walk(
    *,
    members: int = 2,
    partitions: int = 2,
    faults: int = 0,
    kinds: tuple[str, ...] = USUAL_FAULTS,
    static: bool = False,
    max_states: int = 50_000,
    reduced: bool = False,
) -> Walk:
    world = ExploredGroup(members=members, partitions=partitions, faults=faults, kinds=kinds, static=static)
    return Search[Any](ReducedGroup(world) if reduced else world, max_states).run()


LONG = pytest.param(1, 2, 1, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("members", "partitions", "faults"),
    [(1, 1, 0), LONG, (2, 1, 0), (2, 3, 0), (3, 1, 0), pytest.param(3, 2, 0, marks=pytest.mark.long)],
)
def test_small_groups_break_nothing_and_can_always_settle(members: int, partitions: int, faults: int) -> None:
    found = walk(members=members, partitions=partitions, faults=faults)
    assert found.violations == ()
    assert found.complete
    assert 0 < found.settled < found.states < found.transitions


@pytest.mark.parametrize(("members", "partitions", "faults"), [LONG, (2, 2, 0)])
def test_small_groups_of_static_members_too(members: int, partitions: int, faults: int) -> None:
    found = walk(members=members, partitions=partitions, faults=faults, static=True)
    assert found.violations == ()
    assert found.complete
    assert found.settled > 0


def test_every_state_is_seen_once_and_always_the_same_ones() -> None:
    one, other = walk(), walk()
    assert (one.states, one.transitions, one.settled) == (796, 2_000, 36)
    assert (other.states, other.transitions, other.settled) == (796, 2_000, 36)


@pytest.mark.parametrize("kind", USUAL_FAULTS)
def test_each_kind_of_fault_happens(kind: str) -> None:
    found = walk(members=1, faults=1, kinds=(kind,))
    assert found.complete
    assert found.violations == ()
    assert found.states > walk(members=1).states


def test_a_search_is_complete_if_there_are_as_many_states_as_it_may_see() -> None:
    assert walk(max_states=796).complete
    assert not walk(max_states=795).complete


def test_a_search_that_stops_early_says_so() -> None:
    found = walk(faults=1, max_states=2_000)
    assert not found.complete
    assert 2_000 <= found.states < 5_000
    assert found.violations == ()


# -- static members ----------------------------------------------------------------------------------------


def happenings(**settings: Any) -> set[str]:
    """All that happens in a world, in words."""
    world = ExploredGroup(partitions=1, static=True, **settings)
    seen, todo, told = {world.first()}, [world.first()], set()
    while todo:
        for label, after, _, _ in world.moves(todo.pop()):
            told.update(world.told(label))
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return told


def test_a_process_cannot_have_the_place_of_one_that_died_before_its_session_ends() -> None:
    told = happenings(members=1, faults=1, kinds=("crashes",))
    assert {"a2 can't have its place, and ends", "the session of a1 ends"} <= told
    assert not any("a3" in each for each in told), "a2 was never a member: the next process is like it"


def test_the_next_process_has_the_place_of_one_that_closed() -> None:
    told = happenings(members=1, faults=1, kinds=("closes",))
    assert "the coordinator takes late the heartbeat of a1: epoch -2" in told
    assert "the coordinator takes the heartbeat of a2: epoch 0, owns []" in told


@pytest.mark.long
def test_a_join_that_is_late_does_not_get_a_static_place() -> None:
    found = walk(faults=1, kinds=("late",), static=True)
    assert found.complete
    assert {each.invariant for each in found.violations} == {"progress"}


def test_an_instance_that_stays_behind_is_found() -> None:
    with MUTANTS["stale-instance-entry"].apply():
        found = walk(members=1, faults=1, static=True)
    assert "static-bijection" in {each.invariant for each in found.violations}


# -- the reduced search ------------------------------------------------------------------------------------


WITHOUT_FAILOVER = tuple(kind for kind in USUAL_FAULTS if kind != "failover")


@pytest.mark.parametrize(
    ("members", "partitions", "faults", "kinds", "static"),
    [
        (2, 2, 0, USUAL_FAULTS, False),
        (3, 1, 0, USUAL_FAULTS, False),
        (2, 2, 0, USUAL_FAULTS, True),
        (1, 1, 1, WITHOUT_FAILOVER, False),
        pytest.param(1, 2, 1, WITHOUT_FAILOVER, True, marks=pytest.mark.long),
        pytest.param(1, 1, 2, ("breaks", "stalls"), False, marks=pytest.mark.long),
        (2, 1, 1, ("crashes", "expires"), False),
        pytest.param(2, 1, 1, ("breaks", "stalls"), False, marks=pytest.mark.long),
        pytest.param(2, 1, 1, ("unsubscribes", "closes"), False, marks=pytest.mark.long),
    ],
)
def test_the_reduced_search_sees_the_same_states_once_all_that_is_alone_is_done(
    members: int, partitions: int, faults: int, kinds: tuple[str, ...], static: bool
) -> None:
    world = ExploredGroup(members=members, partitions=partitions, faults=faults, kinds=kinds, static=static)
    reduced = ReducedGroup(world)
    full = Search(world, 1_000_000)
    few = Search(reduced, 1_000_000)
    assert full.run().complete
    assert few.run().complete
    ends = {
        _without_claims(world, after) for state in full._numbers for _, after, _, _ in reduced._run_on(state)
    }
    seen = {_without_claims(world, state) for state in few._numbers if state != world.first()}
    assert seen - {_without_claims(world, state) for state in full._numbers} == set()
    assert seen == ends
    assert len(few._numbers) < len(full._numbers)


def _without_claims(world: ExploredGroup, state: Any) -> tuple[object, ...]:
    """A state in which what a process has let go is not held for a moment longer."""
    coordinator, places, strays, left = state
    known = world.steps.processes
    roles = tuple((known[each].role, known[each].member_id) if each >= 0 else each for each in places)
    return coordinator, roles, strays, left


@pytest.mark.parametrize("static", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_reduced_search_of_small_groups_finds_nothing_either(static: bool) -> None:
    found = walk(members=1, faults=1, static=static, reduced=True)
    assert found.violations == ()
    assert found.complete
    assert 0 < found.settled < found.states < 1_000


@pytest.mark.long
def test_two_members_of_which_one_crashes_and_one_loses_its_connection_break_nothing() -> None:
    found = walk(partitions=1, faults=2, kinds=("crashes", "breaks"), static=True, reduced=True)
    assert found.violations == ()
    assert found.complete
    assert found.settled > 0


@pytest.mark.long
def test_the_reduced_search_sees_a_join_that_is_late() -> None:
    (found,) = walk(faults=1, kinds=("late",), reduced=True).violations
    assert found.invariant == "one-claimant"
    assert any("takes late the heartbeat of" in step for step in found.steps)
    (stuck,) = walk(faults=1, kinds=("late",), static=True, reduced=True).violations
    assert stuck.invariant == "progress"


@pytest.mark.parametrize("kinds", [("closes",), ("unsubscribes", "stalls")])
def test_steps_of_the_reduced_search_can_be_gone_one_by_one(kinds: tuple[str, ...]) -> None:
    with MUTANTS["target-told-early"].apply():
        found = walk(faults=1, kinds=kinds, reduced=True).violations[0]
        world = ExploredGroup(members=2, partitions=2, faults=1, kinds=kinds)
        state, wrong = world.first(), set[str]()
        for step in found.steps:
            _, state, _, findings = next(
                move for move in world.moves(state) if world.told(move[0]) == (step,)
            )
            wrong.update(name for name, _ in findings)
            wrong.update(name for name, _ in world.findings(state))
    assert found.invariant in wrong


# -- what it finds -----------------------------------------------------------------------------------------


def test_a_join_that_is_late_takes_partitions_from_the_member_that_joined_again() -> None:
    (found,) = walk(faults=1, kinds=("late",)).violations
    assert found.invariant == "one-claimant"
    assert found.message == "a1 and b1 believe that they own {orders-1}, and neither is fenced"
    assert found.steps[1] == "the connection of a1 breaks, and what it sent is still under way"
    assert "the coordinator takes late the heartbeat of a1: epoch 0, owns []" in found.steps


@pytest.mark.parametrize(
    ("name", "reduced"),
    [
        pytest.param("owner-entry-lost", True, marks=pytest.mark.long),
        ("target-told-early", True),
        pytest.param("target-told-early", False, marks=pytest.mark.long),
        pytest.param("lost-reply-fenced", True, marks=pytest.mark.long),
        ("lost-assignment-not-repeated", True),
        ("null-releases", True),
        ("contacts-leak", True),
        ("released-and-still-listed", True),
        ("partition-given-twice", True),
        pytest.param("waits-for-itself", True, marks=pytest.mark.long),
        ("target-ahead", True),
        ("refusal-writes", True),
        pytest.param("refusal-writes", False, marks=pytest.mark.long),
        ("tombstones-out-of-order", True),
        ("stable-too-soon", True),
        ("last-subscription-kept", True),
    ],
)
def test_known_bugs_are_found_by_what_is_meant_to_find_them(name: str, reduced: bool) -> None:
    mutant = MUTANTS[name]
    with mutant.apply():
        found = walk(faults=1, reduced=reduced)
    assert not found.complete
    assert {each.invariant for each in found.violations} & set(mutant.expected)


def test_what_a_coordinator_keeps_in_memory_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are worked out after a load, and must be the same in one that went on."""
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerGroupSoftState, "request_metadata_refresh", lambda self: None)
        (found,) = walk(members=1, faults=1, kinds=("grows",)).violations
        assert found.invariant == "journal-replay"
        assert "makes it respond with member_epoch 2, not 3" in found.message
        assert found.steps[-1] == "the coordinator takes the heartbeat of a1: epoch 2"

    follow = ConsumerSoftState.follow

    def answers_stay(self: ConsumerSoftState, key: Any, value: Any, group: ConsumerGroup | None) -> None:
        soft = self.groups.get(key.group_id)
        version = 0 if soft is None else soft.version
        follow(self, key, value, group)
        if soft is not None:
            soft.version = version

    monkeypatch.setattr(ConsumerSoftState, "follow", answers_stay)
    assert "journal-replay" in {each.invariant for each in walk().violations}


@pytest.mark.parametrize("reduced", [False, True], ids=["full", "reduced"])
def test_a_member_that_is_stuck_is_found_by_going_back_from_the_end(reduced: bool) -> None:
    with MUTANTS["keepalive-after-lost-reply"].apply():
        found = walk(faults=1, kinds=("breaks",), reduced=reduced)
    assert found.complete
    (stuck,) = found.violations
    assert stuck.invariant == "progress"
    assert "can never settle" in stuck.message
    assert any("breaks" in step for step in stuck.steps)


def test_what_cores_raise_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: ExploredProcess, image: object) -> list[object]:
        raise ZeroDivisionError("by nought")

    monkeypatch.setitem(roles_module._STEPS, "answer", raises)  # type: ignore[index]
    (found,) = walk().violations
    assert found.invariant == "transitions"
    assert "ZeroDivisionError: by nought" in found.message


def test_what_cores_raise_in_a_failover_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: ConsumerMember, token: int, failure: object, now_ms: int) -> Actions:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(ConsumerMember, "request_failed", raises)
    (found,) = walk(members=1, faults=1, kinds=("failover",)).violations
    assert found.invariant == "transitions"
    assert found.steps[-1] == "the coordinator moves, and all connections break"


def test_who_closes_or_joins_again_must_have_let_everything_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def released_in_silence(self: Reconciler) -> None:
        self._callbacks.release = None
        self.released()

    monkeypatch.setattr(Reconciler, "begin_release", released_in_silence)
    for kind, why in (("closes", "stopped"), ("expires", "joined"), ("stalls", "joined")):
        (found,) = walk(members=1, faults=1, kinds=(kind,)).violations
        assert found.invariant == "callbacks-balanced"
        assert found.message == f"a1 {why} without letting go {{orders-0, orders-1}}"


def test_a_transition_that_is_not_in_the_table_is_found() -> None:
    with MUTANTS["fenced-and-joining"].apply():
        found = walk(members=1, faults=1, kinds=("expires",))
    assert "transitions" in {each.invariant for each in found.violations}


@pytest.mark.long
def test_steps_lead_where_they_say() -> None:
    with MUTANTS["waits-for-itself"].apply():
        found, *_ = walk(faults=1).violations
        world = ExploredGroup(members=2, partitions=2, faults=1)
        state = world.first()
        for step in found.steps[:-1]:
            state = next(after for label, after, _, _ in world.moves(state) if world.told(label) == (step,))
        last = [move for move in world.moves(state) if world.told(move[0]) == (found.steps[-1],)]
    assert any(found.invariant == name for move in last for name, _ in move[3])


# -- machines as values ------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_is_frozen_thaws_to_the_same() -> None:
    world = ExploredGroup(members=2, partitions=2, faults=1, kinds=("breaks", "closes", "expires"))
    Search(world, 20_000).run()
    roles: Roles = world._steps.roles
    freezer = roles._freezer
    states = set()
    for known in roles.known:
        process = freezer.thaw(known.value)
        states.add(process.machine.state)
        assert freezer.freeze(process) == known.value
    assert len(roles.known) > 500
    assert states >= {
        ConsumerMemberState.JOINING,
        ConsumerMemberState.RECONCILING,
        ConsumerMemberState.ACKNOWLEDGING,
        ConsumerMemberState.STABLE,
        ConsumerMemberState.FENCED,
        ConsumerMemberState.PREPARE_LEAVING,
    }


class Part:
    __slots__ = ("at_ms", "token")

    def __init__(self, at_ms: int, token: int | None) -> None:
        self.at_ms = at_ms
        self.token = token


class Whole:
    __slots__ = ("one", "other", "tokens")

    def __init__(self, one: Part, other: Part) -> None:
        self.one = one
        self.other = other
        self.tokens = FrozenTokens()


def test_times_are_distances_and_tokens_are_renumbered() -> None:
    freezer = Freezer()
    one = freezer.freeze(Whole(Part(1_500, 7), Part(900, 9)), 1_000)
    other = freezer.freeze(Whole(Part(8_500, 3), Part(1, 5)), 8_000)
    assert one == other
    thawed = freezer.thaw(one)
    assert (thawed.one.at_ms, thawed.one.token, thawed.other.at_ms, thawed.other.token) == (500, 1, 0, 2)
    assert next(thawed.tokens) == 3


def test_parts_that_are_one_stay_one() -> None:
    freezer = Freezer()
    part = Part(0, 1)
    thawed = freezer.thaw(freezer.freeze(Whole(part, part)))
    assert thawed.one is thawed.other
    two = freezer.thaw(freezer.freeze(Whole(part, Part(0, 1))))
    assert two.one is not two.other


def test_a_time_that_nobody_has_told_about_is_refused() -> None:
    class Timed:
        __slots__ = ("snooze_ms",)

    timed = Timed()
    timed.snooze_ms = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="snooze_ms: is it a moment or a length of time"):
        Freezer().freeze(timed)


# -- the command -------------------------------------------------------------------------------------------


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--members", "1", "--faults", "1", "--kinds", "crashes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["world"] == "consumer"
    assert (document["members"], document["partitions"], document["faults"]) == (1, 2, 1)
    assert document["kinds"] == ["crashes"]
    assert document["static"] is False
    assert document["full"] is False
    assert document["complete"] is True
    assert document["violations"] == []
    assert document["states"] < document["transitions"]
    assert {"settled", "wall_seconds", "states_per_second"} <= document.keys()


def test_a_violation_is_shown_with_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "consumer", "--mutant", "target-told-early"]) == 1
    out = capsys.readouterr().out
    assert "granted-after-release" in out
    assert "   1 a1 starts\n" in out
    assert main(["explore", "--mutant", "target-told-early", "--json"]) == 1
    (first, *_) = json.loads(capsys.readouterr().out)["violations"]
    assert first["invariant"] in INVARIANTS
    assert first["steps"][0] == "a1 starts"


def test_every_order_is_taken_if_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--faults", "0", "--full"]) == 0
    assert "796 states, 2,000 transitions" in capsys.readouterr().out
    assert main(["explore", "--faults", "0"]) == 0
    assert "106 states" in capsys.readouterr().out


def test_what_is_not_complete_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--max-states", "100"]) == 0
    assert "not complete" in capsys.readouterr().out


def test_the_page_lists_every_kind_of_fault() -> None:
    page = (DOCS / "explorer.md").read_text()
    for kind, what in FAULTS.items():
        assert f"| `{kind}` | {what} |" in page
