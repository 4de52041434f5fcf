"""Streams applications in virtual time: nothing breaks, and everything ends as it was decided."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import structlog

from fencepost.member.streams.actions import StreamsMoved
from fencepost.member.streams.application.driver import StreamsDriver
from fencepost.member.streams.application.worker import Worker
from fencepost.simulation.kafka.cluster import SimulatedCluster
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.run import RunResult, run
from fencepost.simulation.scenarios.load import library, load_any, loads
from fencepost.simulation.streams.member import SimulatedMember
from fencepost.simulation.streams.member_protocols import SimulatedClassicStreamsMember
from fencepost.simulation.trace.schema import RowKind
from tests.unit.simulation.kept_rows import KeptRows

NAMES = [entry.name for entry in library() if entry.protocol == "streams"]


def played(name: str, seed: int, *overrides: str, duration: str | None = None) -> tuple[RunResult, KeptRows]:
    kept = KeptRows()
    return run(load_any(name, overrides=overrides, duration=duration), seed, trace=kept), kept


@pytest.mark.parametrize("name", NAMES[::3])  # of the others, test_determinism.py says so
def test_nothing_breaks_and_all_settles(name: str) -> None:
    result, kept = played(name, 0, duration="6m")
    assert result.violations == []
    assert result.converged
    assert kept.of(RowKind.THREAD_FAILED) or name == "streams-no-threads"  # its threads are removed
    assert kept.of(RowKind.THREAD_STATE)


def test_a_member_that_leaves_and_does_not_disconnect_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedTransport, "close", lambda _: None)
    result, _ = played("streams-classic", 0, duration="6m")
    assert "streams-dead-left" in {each.invariant for each in result.violations}


@pytest.mark.long
def test_failures_come_with_every_answer_and_in_every_place() -> None:
    said = set()
    for seed in range(2):
        _, kept = played("streams-failures", seed)
        said |= {word for row in kept.of(RowKind.THREAD_FAILED) for word in row.detail.split()}
    assert said >= {"REPLACE_THREAD", "SHUTDOWN_CLIENT", "raises", "nonsense"}
    assert said >= {"processing", "poll", "callback"}


@pytest.mark.parametrize("name", ["streams-shutdown", "streams-single-threads"])
def test_a_shutdown_brings_every_client_to_error_for_ever(name: str) -> None:
    result, kept = played(name, 5)
    clients = load_any(name).group.members
    assert result.figures["clients_shut_down"] == clients
    assert result.figures["shutdown_s"] < 60
    last = {row.actor: row.state_to for row in kept.of(RowKind.CLIENT_STATE)}
    assert last == {f"client-{number}": "ERROR" for number in range(1, clients + 1)}


def test_a_client_stands_still_for_as_long_as_the_last_freeze_lasts() -> None:
    text = """
protocol = "streams"
duration = "6m"
quiet = "2m"
[group]
members = 1
[application]
restart = "4s"
[[topics]]
name = "orders"
"""
    for kind, at_s, lasts in (
        ("freeze", 40, 'lasts = "60s"'),
        ("crash", 50, ""),
        ("freeze", 60, 'lasts = "100s"'),
    ):
        text += f'[[faults]]\nkind = "member-{kind}"\nat = "{at_s}s"\n{lasts}\n'
    kept = KeptRows()
    result = run(loads(text), 1, trace=kept)
    assert result.violations == []
    found = [(row.detail, row.t_us // 1_000_000) for row in kept.of(RowKind.HOST)]
    expected = [("freeze", 40), ("crash", 50), ("start", 54), ("freeze", 60), ("thaw", 160)]
    assert [each for each in found if 40 <= each[1] <= 160] == expected


def away_s(poll_ms: int, seed: int) -> list[float]:
    """How long threads were not RUNNING for a rebalance, with callbacks that take no time."""
    result, kept = played(
        "streams-single-threads", seed, f"application.poll_ms={poll_ms}", "application.callback=0s"
    )
    assert result.violations == []
    since: dict[str, int] = {}
    lasted = []
    for row in kept.of(RowKind.THREAD_STATE):
        if row.state_to in ("PARTITIONS_REVOKED", "PARTITIONS_ASSIGNED"):
            since.setdefault(row.actor, row.t_us)
        elif (begun := since.pop(row.actor, None)) is not None and row.state_to == "RUNNING":
            lasted.append((row.t_us - begun) / 1_000_000)
    return sorted(lasted)


def test_a_thread_takes_up_its_tasks_when_its_poll_has_ended() -> None:
    long = [each for seed in range(4) for each in away_s(2_000, seed)]
    short = [each for seed in range(4) for each in away_s(10, seed)]
    assert len(long) > 20
    assert len(short) > 20
    assert statistics.median(long) > 10 * statistics.median(short)
    assert statistics.median(long) < 2


ALONE = """
protocol = "streams"
duration = "8m"
[group]
members = 1
threads = 1
[[topics]]
name = "orders"
records_per_second = 0.5
[[faults]]
kind = "thread-exception"
every = "60s"
response = "REPLACE_THREAD"
[[faults]]
kind = "connection-loss"
every = "20s"
[[faults]]
kind = "coordinator-move"
every = "90s"
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_polls_that_are_taken_as_one_end_as_each_by_itself(
    protocol: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = loads(ALONE.replace("threads = 1", f'threads = 1\nprotocol = "{protocol}"'))
    together = run(scenario, seed)
    always = property(lambda self: 0, lambda self, value: None)
    monkeypatch.setattr(SimulatedMember, "_commit_from_us", always, raising=False)
    single = run(scenario, seed)
    assert together.digest == single.digest
    assert single.events > 1.5 * together.events


def test_a_thread_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that nobody planned: a thread does not look at its member's state."""

    async def nothing(self: Any) -> None:
        return None

    monkeypatch.setattr(Worker, "_note_state", nothing)
    result, _ = played("streams-failures", 0, duration="4m")
    assert not result.converged
    assert {violation.invariant for violation in result.violations} >= {"streams-settles"}


@pytest.mark.long
def test_an_application_that_has_no_time_to_settle_breaks_nothing() -> None:
    result = run(load_any("streams-failures", overrides=["quiet=5s"]), 2)
    assert result.violations == []
    assert not result.converged


def test_clients_that_were_to_start_later_start_when_faults_end() -> None:
    result = run(load_any("streams-failures", overrides=["group.start=1h"]), 1)
    assert result.violations == []
    assert result.converged
    assert result.heartbeats > 0


@pytest.mark.parametrize(
    ("state", "seed"), [pytest.param("DISCONNECTED", 2, marks=pytest.mark.long), ("ERROR", 0)]
)
def test_a_step_that_the_listener_does_not_hear_is_seen(
    monkeypatch: pytest.MonkeyPatch, state: str, seed: int
) -> None:
    """The last one, too: when it was taken nothing follows in that process."""
    tell = StreamsDriver._tell_listener

    def tells_of_others(self: StreamsDriver, step: StreamsMoved) -> None:
        if step.target != state:
            tell(self, step)

    monkeypatch.setattr(StreamsDriver, "_tell_listener", tells_of_others)
    result, _ = played("streams-failures", seed)
    assert {violation.invariant for violation in result.violations} == {"streams-listener"}
    assert f"to {state}" in result.violations[0].message


@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_an_application_that_cannot_keep_up_never_settles_and_breaks_nothing(protocol: str) -> None:
    """Batches of an hour, and a poll interval of a minute: threads leave, and come back for the next one."""
    overloaded = f"""
protocol = "streams"
duration = "10m"
[group]
protocol = "{protocol}"
[application]
processing = "3s"
max_poll_records = 1000
[[topics]]
name = "orders"
partitions = 2
records_per_second = 10
"""
    result = run(loads(overloaded), 1)
    assert result.violations == []
    assert not result.converged


@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_a_client_that_the_group_refuses_for_good_ends_in_error_and_does_not_come_back(protocol: str) -> None:
    text = f"""
protocol = "streams"
duration = "10m"
[group]
protocol = "{protocol}"
members = 5
threads = 1
[config]
"group.max.size" = 3
"group.streams.max.size" = 3
[[topics]]
name = "orders"
[[faults]]
kind = "thread-exception"
every = "1m"
response = "REPLACE_THREAD"
where = "processing"
"""
    kept = KeptRows()
    result = run(loads(text), 1, trace=kept, max_events=200_000)
    organic = [row for row in kept.of(RowKind.THREAD_FAILED) if row.detail == "organic"]
    assert len(organic) == 2
    last = Counter({row.actor: row.state_to for row in kept.of(RowKind.CLIENT_STATE)}.values())
    assert last == {"RUNNING": 3, "ERROR": 2}
    assert Counter(row.detail for row in kept.of(RowKind.HOST)) == {"start": 5, "stopped": 2}
    assert result.violations == []
    assert result.converged


def test_what_is_simulated_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Without a word on where logs go they take the standard library; a run has its trace for that."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    try:
        with caplog.at_level(logging.DEBUG):
            run(load_any("streams-failures", duration="4m"), 1)
    finally:
        if before is not None:
            structlog.configure(**before)
    assert caplog.records == []


def test_brokers_create_the_changelogs_that_a_group_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = SimulatedCluster.create_topic
    monkeypatch.setattr(
        SimulatedCluster,
        "create_topic",
        lambda self, name, *rest: (made.append(name), create(self, name, *rest)),
    )
    result, _ = played("streams-frozen-clients", 0, duration="5m")
    assert made == ["orders", "billing-orders-changelog"]
    assert result.converged
    monkeypatch.setattr(SimulatedCluster, "create_internal_topics", lambda self, effect: None)
    result, _ = played("streams-frozen-clients", 0, duration="5m")
    assert {violation.invariant for violation in result.violations} == {"streams-settles"}
    assert result.figures["records"] == 0


def test_a_global_thread_takes_its_client_along_whatever_the_handler_says() -> None:
    _, kept = played("streams-global-thread", 3)
    failed = [row for row in kept.of(RowKind.THREAD_FAILED) if row.actor.endswith("GlobalStreamThread")]
    assert failed
    for row in failed:
        client = row.actor.partition("-Global")[0]
        after = [
            each.state_to
            for each in kept.of(RowKind.CLIENT_STATE)
            if each.actor == client and each.seq > row.seq
        ]
        assert after[:2] == ["PENDING_ERROR", "ERROR"]


def test_a_client_stands_still_and_goes_on() -> None:
    _, kept = played("streams-frozen-clients", 1)
    hosts = [row for row in kept.of(RowKind.HOST) if row.detail in ("freeze", "thaw")]
    assert {row.detail for row in hosts} == {"freeze", "thaw"}
    asleep = [(frozen, thawed) for frozen, thawed in pairwise(hosts) if frozen.actor == thawed.actor]
    assert asleep
    for frozen, thawed in asleep:
        if (frozen.detail, thawed.detail) == ("freeze", "thaw"):
            moved = [row for row in kept.of(RowKind.THREAD_STATE) if row.actor.startswith(f"{frozen.actor}-")]
            assert not any(frozen.t_us < row.t_us < thawed.t_us for row in moved)


@pytest.mark.parametrize("name", ["streams-shutdown", "streams-single-threads"])
def test_a_classic_group_is_shut_down_by_its_leader(name: str) -> None:
    result, _ = played(name, 5, "group.protocol=classic")
    assert result.violations == []
    assert result.figures["clients_shut_down"] == load_any(name).group.members
    assert result.rebalances < 40


@pytest.mark.parametrize("seed", [19, 45])
def test_who_misses_the_round_of_a_shutdown_is_told_in_the_next_one(seed: int) -> None:
    """Its SyncGroup comes when the leader joins again already, or is lost: others repeat what they know."""
    result, _ = played("streams-single-threads", seed, "group.protocol=classic")
    assert result.violations == []
    assert result.figures["clients_shut_down"] == 4


def test_who_is_told_late_of_a_shutdown_waits_for_nobodys_session() -> None:
    """A thread fails as it hears of it, and leaves: the next round begins before all others have heard."""
    result, _ = played("streams-single-threads", 2003, "group.protocol=classic")
    assert result.violations == []
    assert result.figures["clients_shut_down"] == 4
    assert result.figures["shutdown_s"] < 10


@pytest.mark.long
def test_classic_members_that_were_told_to_end_may_be_in_the_group_until_their_sessions_end() -> None:
    """Clients stand still while others are told, so that round follows round up to the end of the run."""
    result, _ = played("streams-frozen-clients", 130, "group.protocol=classic")
    assert result.violations == []
    assert result.converged


def test_classic_threads_without_partitions_run_when_their_round_is_over() -> None:
    result, _ = played(
        "streams-single-threads", 1, "group.protocol=classic", "group.members=10", "faults=[]", duration="1m"
    )
    assert result.converged


@pytest.mark.long
def test_a_shutdown_that_does_not_reach_a_classic_member_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader spreads the request, and a client takes no notice of it."""
    monkeypatch.setattr(SimulatedClassicStreamsMember, "_shutdown_requested", told_and_forgotten)
    result, _ = played("streams-shutdown", 5, "group.protocol=classic")
    assert "streams-shutdown-reaches" in {violation.invariant for violation in result.violations}


def told_and_forgotten(self: Any) -> None:
    self._host.world.told(self._host)
