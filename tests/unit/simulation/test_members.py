"""What befalls a member's host, and what the trace then tells of it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load, loads
from fencepost.simulation.trace.schema import Row
from tests.unit.simulation.kept_rows import KeptRows

SECOND = 1_000_000
BASE = """
duration = "4m"
quiet = "2m"
[group]
members = 3
start = "1s"
rebalance_timeout = "30s"
[application]
poll = "1s"
[[topics]]
name = "orders"
partitions = 6
records_per_second = 6
"""


class Trace(KeptRows):
    def __init__(self, text: str, *overrides: str) -> None:
        super().__init__()
        self.result = run(loads(BASE + text, overrides=overrides), 1, trace=self)
        assert self.result.violations == []
        assert self.result.converged

    def of(self, kind: str, actor: str | None = None, detail: str | None = None) -> list[Row]:
        return [
            row
            for row in self
            if row.kind == kind and actor in (None, row.actor) and detail in (None, row.detail)
        ]

    def states(self, actor: str) -> list[str]:
        return [row.state_to for row in self.of("member.state", actor)]


def fault(kind: str, lasts: str | None = None, more: str = "") -> str:
    return f'[[faults]]\nkind = "{kind}"\nat = "40s"\n' + (f'lasts = "{lasts}"\n' if lasts else "") + more


def victim(trace: Trace, what: str) -> str:
    (row,) = trace.of("host", detail=what)
    return row.actor


def test_a_short_freeze_is_a_gap_in_heartbeats_and_nothing_else():
    trace = Trace(fault("member-freeze", "20s"))
    actor = victim(trace, "freeze")
    times = [row.t_us for row in trace.of("heartbeat", actor)]
    assert not [t for t in times if 41 * SECOND < t < 60 * SECOND]
    assert trace.of("member.removed") == []
    assert "FENCED" not in trace.states(actor)


def test_a_long_freeze_costs_the_membership():
    trace = Trace(fault("member-freeze", "60s"))
    actor = victim(trace, "freeze")
    (removed,) = trace.of("member.removed")
    assert (removed.actor, removed.detail) == (actor, "session")
    assert 80 * SECOND < removed.t_us < 86 * SECOND
    states = trace.states(actor)
    assert states[states.index("FENCED") :][:2] == ["FENCED", "JOINING"]
    lost = trace.of("callback.end", actor, "lost")
    assert [len(row.partitions) for row in lost] == [2]


def test_a_batch_that_takes_too_long_makes_the_member_leave_and_come_back():
    trace = Trace(fault("poll-timeout", "10s"))
    (actor,) = {row.actor for row in trace.of("member.state") if row.state_to == "STALE"}
    states = trace.states(actor)
    at = states.index("PREPARE_LEAVING")
    assert states[at : at + 4] == ["PREPARE_LEAVING", "LEAVING", "STALE", "JOINING"]
    (removed,) = trace.of("member.removed")
    assert (removed.actor, removed.detail) == (actor, "left")


def test_a_static_member_that_takes_too_long_comes_back_under_its_own_id():
    trace = Trace(fault("poll-timeout", "10s"), "group.static=true")
    (removed,) = trace.of("member.removed")
    assert removed.detail == "replaced"


def test_a_crash_is_noticed_when_the_session_ends():
    trace = Trace(fault("member-crash", "1s", "returns = 0.0\n"))
    victim(trace, "crash")
    (removed,) = trace.of("member.removed")
    assert removed.detail == "session"
    assert 80 * SECOND < removed.t_us < 86 * SECOND
    assert sum(len(row.partitions) for row in trace.of("callback.end", detail="assigned")[-2:]) > 0


def test_a_crashed_process_comes_back_as_another_member():
    trace = Trace(fault("member-crash", "10s"))
    actor = victim(trace, "crash")
    assert [row.detail for row in trace.of("host", actor)] == ["start", "crash", "start"]
    assert [row.detail.split()[0] for row in trace.of("heartbeat", actor)].count("join") == 2


def test_a_graceful_restart_leaves_and_a_static_one_keeps_its_partitions():
    restart = '[[steps]]\nkind = "rolling-restart"\nat = "40s"\nover = "30s"\n'
    dynamic = Trace(restart, "application.restart=3s")
    assert [row.detail for row in dynamic.of("member.removed")] == ["left"] * 3
    static = Trace(restart, "application.restart=3s", "group.static=true")
    assert [row.detail for row in static.of("member.removed")] == ["replaced"] * 3
    owned: dict[str, set[object]] = defaultdict(set)
    for row in static.of("callback.end", detail="assigned"):
        if row.t_us > 30 * SECOND:
            owned[row.actor] |= set(row.partitions)
    assert sorted(map(len, owned.values())) == [2, 2, 2]
    assert len(static.of("group.target")) < len(dynamic.of("group.target"))


def test_a_slow_callback_outlasts_its_rebalance_timeout_and_is_fenced():
    crash = '[[faults]]\nkind = "member-crash"\nat = "41s"\nlasts = "3s"\n'
    stalls = "".join(fault("slow-callback", "50s").replace("40s", f"{at}s") for at in (38, 39, 40))
    trace = Trace(stalls + crash)
    details = {row.detail for row in trace.of("member.removed")}
    assert "rebalance" in details


def test_a_callback_that_raises_is_tried_again():
    scale = '[[steps]]\nkind = "scale"\nat = "45s"\nmembers = 4\n'
    trace = Trace("".join(fault("callback-error").replace("40s", f"{at}s") for at in range(40, 44)) + scale)
    raised = [row for row in trace.of("callback.end") if row.error]
    assert raised
    for row in raised:
        later = [
            r for r in trace.of("callback.end", row.actor, row.detail) if r.t_us > row.t_us and not r.error
        ]
        assert later


def test_scaling_starts_and_stops_processes():
    steps = (
        '[[steps]]\nkind = "scale"\nat = "30s"\nmembers = 5\nover = "1s"\n'
        '[[steps]]\nkind = "scale"\nat = "60s"\nmembers = 2\nover = "1s"\n'
    )
    trace = Trace(steps)
    assert len(trace.of("host", detail="start")) == 5
    assert len(trace.of("host", detail="stopped")) == 3


CRASHES = fault("member-crash", "60s") * 2
"""Two of three members are down from 40 s to 100 s."""


def alive(trace: Trace, at_s: int) -> int:
    last = {row.actor: row.detail for row in trace.of("host") if row.t_us <= at_s * SECOND}
    return sum(what == "start" for what in last.values())


def scale(at_s: int, members: int) -> str:
    return f'[[steps]]\nkind = "scale"\nat = "{at_s}s"\nmembers = {members}\nover = "1s"\n'


def test_a_member_that_is_scaled_away_while_it_is_down_stays_away():
    trace = Trace(CRASHES + scale(50, 1), "duration=5m")
    down = {row.actor for row in trace.of("host", detail="crash")}
    assert len(down) == 2
    assert alive(trace, 49) == 1
    started = {row.actor for row in trace.of("host", detail="start") if row.t_us > 50 * SECOND}
    assert started == down & {"member-1"}
    assert alive(trace, 299) == 1


def test_a_member_that_is_scaled_away_and_out_again_while_it_is_down_is_there():
    trace = Trace(CRASHES + scale(50, 1) + scale(70, 3), "duration=5m")
    assert alive(trace, 299) == 3


def test_a_member_that_is_told_to_stop_while_it_stands_still_stays_away_if_it_crashes_then():
    frozen = fault("member-freeze", "60s") * 2
    crashed = fault("member-crash", "10s").replace("40s", "60s") * 2
    trace = Trace(frozen + scale(50, 1) + crashed, "group.members=2", "duration=5m")
    assert len(trace.of("host", "member-2", "crash")) == 1
    assert alive(trace, 299) == 1


def test_a_restart_that_is_under_way_does_not_bring_back_who_was_scaled_away():
    restart = '[[steps]]\nkind = "rolling-restart"\nat = "45s"\nover = "45s"\ngraceful = {}\n'
    for graceful in ("true", "false"):
        trace = Trace(CRASHES + restart.format(graceful) + scale(50, 1), "duration=5m")
        assert alive(trace, 299) == 1


@pytest.mark.parametrize("graceful", ["true", "false"])
@pytest.mark.parametrize("returns", ["0.0", "1.0"])
def test_a_restart_starts_a_member_that_is_down(graceful, returns):
    crashes = fault("member-crash", "100s", f"returns = {returns}\n") * 3
    restart = f'[[steps]]\nkind = "rolling-restart"\nat = "50s"\nover = "0s"\ngraceful = {graceful}\n'
    trace = Trace(crashes + restart, "duration=5m", "application.restart=4s")
    assert len(trace.of("host", detail="crash")) == 3
    started = [row.t_us for row in trace.of("host", detail="start")][3:]
    assert started == [54 * SECOND] * 3


def everybody(kind: str, at_s: int, lasts_s: int) -> str:
    """A fault of each of the three members."""
    return fault(kind, f"{lasts_s}s").replace("40s", f"{at_s}s") * 3


def restart(at_s: int) -> str:
    return f'[[steps]]\nkind = "rolling-restart"\nat = "{at_s}s"\nover = "0s"\ngraceful = false\n'


def seconds(trace: Trace, what: str) -> list[int]:
    return [row.t_us // SECOND for row in trace.of("host", detail=what)][-3:]


@pytest.mark.parametrize("again_s", [20, 100])
@pytest.mark.parametrize(("kind", "ended"), [("member-crash", "start"), ("member-freeze", "thaw")])
def test_a_fault_that_a_deploy_has_ended_does_not_end_the_next_one(kind, ended, again_s):
    first, again = everybody(kind, 40, 60), everybody(kind, 60, again_s)
    trace = Trace(first + restart(50) + again, "duration=5m", "application.restart=4s")
    assert len(trace.of("host", detail=kind.removeprefix("member-"))) == 6
    assert seconds(trace, ended) == [60 + again_s] * 3


def test_a_restart_that_a_process_has_come_before_does_not_end_its_crash():
    crashes = everybody("member-crash", 40, 2) + everybody("member-crash", 50, 60)
    trace = Trace(crashes + restart(41), "duration=5m", "application.restart=20s")
    assert len(trace.of("host", detail="start")) == 9
    assert seconds(trace, "start") == [110] * 3


@pytest.mark.parametrize("lasts", [(50, 1), (1, 50)])
def test_of_two_slow_callbacks_the_longer_one_counts(lasts):
    slow = "".join(fault("slow-callback", f"{each}s") for each in lasts)
    trace = Trace(slow + scale(45, 2), "group.members=1", "group.rebalance_timeout=5m", "duration=5m")
    (begun,) = trace.of("callback.begin", detail="revoked")
    (ended,) = trace.of("callback.end", detail="revoked")
    assert 50 * SECOND <= ended.t_us - begun.t_us < 51 * SECOND


@pytest.mark.parametrize("lasts", [(20, 1), (1, 20)])
def test_of_two_batches_that_are_to_take_too_long_the_longer_one_counts(lasts):
    freeze = fault("member-freeze", "5s").replace("40s", "38s")
    slow = "".join(fault("poll-timeout", f"{each}s") for each in lasts)
    trace = Trace(freeze + slow, "group.members=1")
    processed = [row.t_us // SECOND for row in trace.of("records")]
    assert not [at for at in processed if 38 < at < 90]
    assert max(processed) > 90


def test_every_record_is_processed_and_none_before_its_turn():
    trace = Trace(fault("member-crash", "5s"))
    next_offset: dict[object, int] = {}
    for row in trace.of("records"):
        first, end = map(int, row.detail.split(" of ")[0].split(".."))
        (partition,) = row.partitions
        assert first <= next_offset.get(partition, 0)  # again after a crash, never with a gap
        next_offset[partition] = max(end, next_offset.get(partition, 0))
    assert len(next_offset) == 6
    assert min(next_offset.values()) > 200


@pytest.mark.parametrize("commit", ["sync", "async"])
def test_an_application_that_commits_itself_loses_nothing(commit):
    trace = Trace(
        fault("member-crash", "5s") + '[[steps]]\nkind = "rolling-restart"\nat = "60s"\nover = "40s"\n',
        f"application.commit={commit}",
        "application.auto_commit_interval=1h",
    )
    assert len(trace.of("commit")) > 100, "each batch is committed"
    next_offset: dict[object, int] = {}
    again = 0
    for row in trace.of("records"):
        first, end = map(int, row.detail.split(" of ")[0].split(".."))
        (partition,) = row.partitions
        assert first <= next_offset.get(partition, 0)
        again += next_offset.get(partition, 0) - first
        next_offset[partition] = max(end, next_offset.get(partition, 0))
    assert again <= 12, "what the crash left uncommitted, and nothing of what restarts handed over"


@pytest.mark.parametrize("name", ["lossy-network", "partitioned-members"])
@pytest.mark.parametrize("commit", ["sync", "async"])
def test_its_commits_keep_the_invariants_under_faults(name, commit):
    for seed in range(2):
        result = run(load(name, overrides=[f"application.commit={commit}"]), seed)
        assert result.violations == []
        assert result.converged


@pytest.mark.parametrize("kind", ["lost-request", "lost-response", "connection-loss"])
def test_what_the_network_loses_is_made_good(kind):
    scale = '[[steps]]\nkind = "scale"\nat = "45s"\nmembers = 4\n'
    trace = Trace(fault(kind) + scale)
    lost = trace.of("request.lost") + trace.of("response.lost")
    assert len(lost) == (0 if kind == "connection-loss" else 1)


def test_subscriptions_change_while_members_run():
    text = (
        '[[topics]]\nname = "payments"\npartitions = 4\n'
        '[[steps]]\nkind = "subscribe"\nat = "40s"\npattern = "pay.*"\n'
    )
    trace = Trace(text)
    last = {row.actor: row.partitions for row in trace.of("member.state")}
    assert {p.topic for partitions in last.values() for p in partitions} == {"payments"}
    assert sum(map(len, last.values())) == 4
