from __future__ import annotations

import asyncio
import gc

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.faults.plan import FaultKind as PlanKind
from fencepost.simulation.faults.plan import FaultPlan, draw_plan
from fencepost.simulation.kernel.loop import TooManyEvents
from fencepost.simulation.kernel.observers import Observer
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.run import plan_of, run
from fencepost.simulation.scenarios.load import library, load, load_any, loads
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.schema import COLUMNS, Row, RowKind
from tests.unit.simulation.analyses import plain_views
from tests.unit.simulation.kept_rows import KeptRows

NAMES = [entry.name for entry in library() if entry.protocol == "consumer"]
SMALL = 'duration = "2m"\nquiet = "1m"\n[group]\nmembers = 3\n[[topics]]\nname = "orders"\npartitions = 6\n'


def test_who_awaits_runs_it_in_a_thread():
    scenario = loads(SMALL)

    async def awaits():
        with pytest.raises(FencepostError, match=r"await asyncio\.to_thread"):
            run(scenario, 1)
        return await asyncio.to_thread(run, scenario, 1)

    assert asyncio.run(awaits()).converged


@pytest.mark.filterwarnings("error")
def test_a_judge_that_is_none_leaves_nothing_open():
    with pytest.raises(AttributeError):
        run(loads(SMALL), 1, judges=[object()])  # type: ignore[list-item]
    gc.collect()


@pytest.mark.parametrize("name", NAMES[::2])  # of the others, test_determinism.py says so
def test_a_scenario_of_the_library_settles_and_breaks_nothing(name):
    result = run(load(name), 11)
    assert result.violations == []
    assert result.converged
    assert result.scenario == name
    assert result.heartbeats > 200
    assert result.virtual_seconds >= 120


def test_equal_seeds_give_equal_runs_and_others_do_not():
    scenario = load("swarm")
    first, again, other = run(scenario, 1), run(scenario, 1), run(scenario, 2)
    assert first.digest == again.digest
    assert first.events == again.events
    assert first.digest != other.digest


@pytest.mark.parametrize("name", ["regex-subscriptions", "rolling-deploy", "swarm"])
def test_rebalances_are_counted_as_the_analyses_count_them(name):
    kept = KeptRows()
    result = run(load(name), 2, trace=kept)
    rows = [dict(zip(COLUMNS, ("", *row), strict=True)) for row in kept]
    spans = plain_views.rebalances(rows)
    ended = sum(settled == "Stable" and not forms for _, _, _, settled, *_, forms in spans)
    assert any(forms for *_, forms in spans)
    assert result.rebalances == ended > 1


def test_the_trace_tells_all_kinds_of_events():
    kept = KeptRows()
    seeds = {"swarm": 3, "lossy-network": 0, "growing-topics": 0, "crash-and-return": 0, "operators": 0}
    for name, seed in (*seeds.items(), ("transactions", 0)):
        run(load(name), seed, trace=kept)
    run(load_any("sac-node-failures"), 0, trace=kept)
    of_streams = {"client.state", "thread.state", "thread.failed"}
    assert {kind.value for kind in RowKind} - {row.kind for row in kept} <= {
        RowKind.VIOLATION.value,
        RowKind.TEST.value,
        *of_streams,
    }


def test_the_trace_has_what_analyses_need():
    kept = KeptRows()
    run(loads(SMALL), 1, trace=kept)
    rows = [Row(*row) for row in kept]
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert [row.t_us for row in rows] == sorted(row.t_us for row in rows)
    assert (rows[0].kind, rows[0].detail, rows[-1].kind) == ("run.start", "scenario 1 3", "run.end")
    assigned = [row for row in rows if row.kind == "callback.end" and row.detail == "assigned"]
    assert {p for row in assigned for p in row.partitions} == {("orders", n) for n in range(6)}
    moves = [(row.state_from, row.state_to) for row in rows if row.kind == "member.state"]
    assert moves.count(("UNSUBSCRIBED", "JOINING")) == 3
    heartbeats = [row for row in rows if row.kind == "heartbeat"]
    assert {row.detail.split()[0] for row in heartbeats} == {"join", "ack", "keepalive"}
    assert heartbeats[-1].member_epoch == heartbeats[-1].group_epoch > 1


def test_a_plan_takes_the_place_of_what_the_seed_draws():
    scenario = loads(SMALL + '[[faults]]\nkind = "member-crash"\nevery = "10s"\n')
    drawn = draw_plan(scenario, Draws(1), 60_000_000)
    assert drawn.entries
    calm = msgspec.structs.replace(drawn, entries=())
    assert run(scenario, 1, plan=drawn).digest == run(scenario, 1).digest
    kept = KeptRows()
    run(scenario, 1, plan=calm, trace=kept)
    assert "fault" not in {row.kind for row in kept}


def test_leaving_a_fault_out_leaves_the_run_before_it_as_it_was():
    scenario = loads(SMALL + '[[faults]]\nkind = "member-crash"\nevery = "10s"\n')
    drawn: FaultPlan = draw_plan(scenario, Draws(1), 60_000_000)
    shorter = msgspec.structs.replace(drawn, entries=drawn.entries[:-1])
    kept = [KeptRows(), KeptRows()]
    for plan, sink in zip((drawn, shorter), kept, strict=True):
        run(scenario, 1, plan=plan, trace=sink)
    before = [[row for row in sink if row[1] < drawn.entries[-1].at_us] for sink in kept]
    assert before[0] == before[1]
    assert kept[0] != kept[1]


def test_a_topic_whose_deletion_was_left_out_is_not_created_again():
    scenario = load("growing-topics")
    draws = Draws(3)
    plan = draw_plan(scenario, draws, scenario.quiet_us)
    entries = tuple(entry for entry in plan.entries if entry.kind is not PlanKind.DELETE_TOPIC)
    assert len(entries) < len(plan.entries)
    kept = KeptRows()
    result = run(scenario, 3, plan=msgspec.structs.replace(plan, entries=entries), trace=kept)
    assert result.violations == []
    told = [Row(*row) for row in kept if row[5] == RowKind.TOPIC]
    created = [row.actor for row in told if row.detail.startswith("created")]
    assert sorted(created) == ["orders", "payments", "refunds"]


def test_progress_is_told_up_to_the_end():
    told: list[float] = []
    run(loads(SMALL), 1, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) > 50


def test_a_run_can_be_bounded():
    with pytest.raises(TooManyEvents):
        run(loads(SMALL), 1, max_events=100)


def test_a_defect_of_an_observer_ends_the_run():
    class Broken(Observer):
        def on_callback(self, *_: object) -> None:
            raise ZeroDivisionError("in a judge")

    with pytest.raises(ZeroDivisionError, match="in a judge"):
        run(loads(SMALL), 1, judges=[Broken()])


def test_a_finding_is_in_the_result_and_in_the_trace():
    class Fussy(Observer):
        def attach(self, world, report):
            self._report = report

        def on_faults_end(self, now_us: int) -> None:
            self._report("one-owner", "two of them")

    kept = KeptRows()
    result = run(loads(SMALL), 1, judges=[Fussy()], trace=kept)
    (violation,) = result.violations
    assert (violation.invariant, violation.t_us, violation.message) == (
        "one-owner",
        60_000_000,
        "two of them",
    )
    row = next(Row(*row) for row in kept if row[5] == "violation")
    assert (row.error, row.detail) == ("one-owner", "two of them")


def test_the_quiet_phase_covers_all_timeouts():
    scenario = loads('duration = "5m"\n[[topics]]\nname = "orders"\n')

    assert scenario.quiet_us >= (45 + 60 + 15) * 1_000_000


def test_a_group_that_cannot_settle_is_told():
    scenario = loads(SMALL + "[network]\nlatency = '40s'\n")
    assert not run(scenario, 1, judges=[]).converged


def test_the_trace_forgets_what_members_of_a_group_were_assigned_that_is_no_more(monkeypatch):
    made = []

    class Seen(GroupTraceWriter):
        def __init__(self, recorder, *more):
            super().__init__(recorder, *more)
            made.append(self)

    monkeypatch.setattr("fencepost.simulation.kafka.world.GroupTraceWriter", Seen)
    run(load("rolling-migration"), 2)  # no other coordinator takes over once it is a classic group
    (trace_writer,) = made
    assert trace_writer._held == {}, "it ends as a classic group"


@pytest.mark.parametrize("seed", [1.5, None, True, "3"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(FencepostError, match=rf"^seed={seed!r}: expected a whole number$"):
        run(load("steady"), seed=seed)
    with pytest.raises(FencepostError, match=rf"^seed={seed!r}: expected a whole number$"):
        run(load("steady"), seed=seed, plan=plan_of(load("steady"), 1))
