from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, draw_plan
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.scenarios.load import loads

MINUTE = 60_000_000
BASE = 'duration = "10m"\n[group]\nmembers = 8\n[[topics]]\nname = "orders"\n'


def plan_of(text: str, seed: int = 1) -> FaultPlan:
    return draw_plan(loads(BASE + text), Draws(seed), 2 * MINUTE)


def test_a_seed_draws_the_same_plan_again_and_another_seed_another():
    text = '[[faults]]\nkind = "member-crash"\nevery = "20s"\n'
    assert plan_of(text) == plan_of(text)
    assert plan_of(text) != plan_of(text, seed=2)


def test_a_plan_goes_to_json_and_back():
    text = '[[faults]]\nkind = "slow-link"\nevery = "20s"\n[[steps]]\nkind = "rolling-restart"\nat = "1m"\n'
    plan = plan_of(text)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=FaultPlan) == plan


def test_faults_come_about_as_often_as_they_say_and_end_before_the_quiet_phase():
    plan = plan_of('[[faults]]\nkind = "connection-loss"\nevery = "2s"\nfrom = "1m"\n')
    times = [entry.at_us for entry in plan.entries]
    assert 170 < len(times) < 260  # seven minutes, one in two seconds
    assert min(times) >= MINUTE
    assert max(times) < plan.faults_end_us == 8 * MINUTE
    assert plan.end_us == 10 * MINUTE
    assert times == sorted(times)


def test_one_more_fault_leaves_the_others_as_they_are():
    one = '[[faults]]\nkind = "member-freeze"\nevery = "20s"\n'
    both = plan_of(one + '[[faults]]\nkind = "loss"\nevery = "30s"\n')
    assert [e for e in both.entries if e.kind is FaultKind.MEMBER_FREEZE] == list(plan_of(one).entries)


def test_a_run_shorter_than_its_quiet_phase_grows():
    scenario = loads(BASE, overrides=["duration=1m"])
    plan = draw_plan(scenario, Draws(1), 2 * MINUTE)
    assert (plan.faults_end_us, plan.end_us) == (MINUTE // 2, MINUTE // 2 + 2 * MINUTE)


def test_a_rolling_restart_takes_one_member_after_the_other():
    plan = plan_of('[[steps]]\nkind = "rolling-restart"\nat = "1m"\nover = "4m"\n')
    assert [(e.at_us, e.member) for e in plan.entries] == [(MINUTE + n * MINUTE // 2, n) for n in range(8)]


def test_a_rolling_restart_in_batches_takes_several_at_once():
    plan = plan_of('[[steps]]\nkind = "rolling-restart"\nat = "1m"\nover = "3m"\nbatch = 0.4\n')
    assert [e.at_us // MINUTE for e in plan.entries] == [1, 1, 1, 2, 2, 2, 3, 3]


def test_a_restart_with_an_overlap_starts_others_first():
    plan = plan_of(
        '[[steps]]\nkind = "rolling-restart"\nat = "1m"\nover = "80s"\noverlap = "4s"\ngraceful = false\n'
    )
    assert [(e.at_us // 1_000_000, e.kind, e.member, e.graceful) for e in plan.entries[:4]] == [
        (60, FaultKind.START, 8, True),
        (64, FaultKind.STOP, 0, False),
        (70, FaultKind.START, 9, True),
        (74, FaultKind.STOP, 1, False),
    ]
    assert plan.members == 16


def test_an_overlap_is_the_only_step_of_members():
    restart = '[[steps]]\nkind = "rolling-restart"\nat = "1m"\noverlap = "4s"\n'
    text = restart + '[[steps]]\nkind = "scale"\nat = "2m"\nmembers = 3\n'
    with pytest.raises(FencepostError, match="expected no other step of members"):
        plan_of(text)


def test_one_goes_as_each_part_of_a_step_begins_as_the_docs_say():
    plan = plan_of('[[steps]]\nkind = "scale"\nat = "1m"\nmembers = 12\nover = "40s"\n')
    assert [e.at_us // 1_000_000 for e in plan.entries] == [60, 70, 80, 90]


def test_scaling_starts_and_stops_the_difference():
    steps = '[[steps]]\nkind = "scale"\nat = "{}"\n{}\nover = "0s"\n'
    plan = plan_of(steps.format("1m", "members = 10") + steps.format("2m", "factor = 0.5"))
    assert [(e.kind, e.member) for e in plan.entries] == [
        (FaultKind.START, 8),
        (FaultKind.START, 9),
        *[(FaultKind.STOP, n) for n in range(9, 3, -1)],
    ]
    assert plan.members == 10


def test_a_subscription_change_reaches_its_share_of_members():
    plan = plan_of('[[steps]]\nkind = "subscribe"\nat = "1m"\npattern = "a.*"\nshare = 0.5\n')
    assert len({e.member for e in plan.entries}) == 4
    assert {e.pattern for e in plan.entries} == {"a.*"}


def test_a_step_after_the_faults_puts_the_quiet_phase_off():
    plan = plan_of('[[steps]]\nkind = "grow-topic"\nat = "9m"\nname = "orders"\npartitions = 20\n')
    assert (plan.faults_end_us, plan.end_us) == (9 * MINUTE, 11 * MINUTE)


@pytest.mark.parametrize(
    ("kind", "more", "over"),
    [
        ("member-freeze", 'lasts = "60s"', 60),
        ("connection-loss", "", 0),
        ("lost-response", "", 10),
        ("poll-timeout", 'lasts = "20s"', 20 + 60),
    ],
)
@pytest.mark.parametrize("at", ["9m", "90%"])
def test_a_fault_after_the_others_happens_at_its_moment_and_puts_the_quiet_phase_off(kind, more, over, at):
    plan = plan_of(f'[[faults]]\nkind = "{kind}"\nat = "{at}"\n{more}\n')
    assert [entry.at_us for entry in plan.entries] == [9 * MINUTE]
    assert plan.faults_end_us == 9 * MINUTE + over * MINUTE // 60
    assert plan.end_us == plan.faults_end_us + 2 * MINUTE


def test_a_fault_happens_at_its_moment_while_a_late_step_is_under_way():
    step = '[[steps]]\nkind = "rolling-restart"\nat = "90%"\nover = "40s"\n'
    frozen = '[[faults]]\nkind = "member-freeze"\nat = "{}"\nlasts = "20s"\n'
    plan = plan_of(step + frozen.format("551s"))
    assert [e.at_us for e in plan.entries if e.kind is FaultKind.MEMBER_FREEZE] == [551 * MINUTE // 60]
    assert plan.faults_end_us == 575 * MINUTE // 60, "when the last restarts"
    longer = plan_of(step + frozen.format("570s"))
    assert longer.faults_end_us == 590 * MINUTE // 60, "when it has thawed"
    again = plan_of(step + '[[faults]]\nkind = "member-freeze"\nevery = "1s"\nfrom = "9m"\n')
    times = [e.at_us for e in again.entries if e.kind is FaultKind.MEMBER_FREEZE]
    assert 9 * MINUTE < min(times) < max(times) < 580 * MINUTE // 60, "when the deploy's time is over"
    assert max(times) > 578 * MINUTE // 60


def test_a_swarm_leaves_out_about_half_of_the_kinds():
    kinds = ["member-crash", "member-freeze", "loss", "connection-loss", "coordinator-move", "lost-request"]
    text = "".join(f'[[faults]]\nkind = "{kind}"\nat = "1m"\n' for kind in kinds)
    scenario = loads("swarm = true\n" + BASE + text)
    sizes = [len(draw_plan(scenario, Draws(seed), MINUTE).entries) for seed in range(60)]
    assert 2.5 < sum(sizes) / len(sizes) < 3.5
    assert len(set(sizes)) > 3


@pytest.mark.parametrize("likely", [0.2, 1.0])
def test_a_fault_may_be_unlikely(likely):
    text = f'[[faults]]\nkind = "loss"\nat = "1m"\nlikely = {likely}\n'
    hit = sum(bool(plan_of(text, seed).entries) for seed in range(200))
    assert abs(hit - 200 * likely) < 25
