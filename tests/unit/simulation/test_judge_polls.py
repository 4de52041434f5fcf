"""Histories of polls, commits and retries: for each slip what is reported of it, and the same without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetFetchRequest, OffsetFetchResponse
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.simulation.judge.polls import PollConsequences
from fencepost.simulation.judge.records import Records
from fencepost.simulation.judge.retries import Retries
from fencepost.simulation.kafka.member import MemberHost
from fencepost.simulation.kafka.requests import OffsetsSince
from tests.unit.simulation.member_worlds import CODES, History, rows

P0, P1 = (TopicPartition("x", number) for number in range(2))


class Polled(History):
    """A member that is STABLE, owns 0 and 1, and may be out of poll for 40 s; in a poll since 2 s."""

    def __init__(self) -> None:
        self.records = Records()
        super().__init__(PollConsequences(self.records), self.records)
        self.play("0 move subscribed UNSUBSCRIBED JOINING")
        self.beat(0, "0", rebalance_timeout_ms=40_000)
        self.play(
            "0 move target_received JOINING RECONCILING; 1 call assigned begin+end 0 1;"
            "1 move acknowledged ACKNOWLEDGING STABLE; 2 poll begin"
        )

    def tell(self, hook: str, *arguments: Any) -> None:
        """What a member owns the judge of records learns from callbacks, and nothing else."""
        for each in self.judges if hook in ("on_member_host", "on_callback") else self.judges[-1:]:
            getattr(each, hook)("m", *arguments)

    def target(self, at_us: int) -> None:
        self.move(at_us, "target_received", "STABLE", "RECONCILING")

    def batch(self, at_us: int, first: str) -> None:
        """A poll that ends with ten records of 0, which are processed, and the begin of the next poll."""
        self.judge.on_poll("m", "end", at_us)
        self.records.on_records_delivered("m", P0, int(first), int(first) + 10, at_us)
        self.records.on_records_processed("m", P0, int(first), int(first) + 10, at_us + 1_000)
        self.judge.on_poll("m", "begin", at_us + 2_000)

    def processed(self, at_us: int) -> None:
        self.records.on_records_processed("m", P0, 0, 5, at_us)

    def delivered(self, at_us: int, first: str, end: str) -> None:
        self.records.on_records_delivered("m", P0, int(first), int(end), at_us)

    def look(self, at_us: int) -> None:
        self.judge.on_coordinator_step("b", DeadlineReached(), Outcome(), at_us)

    def ends(self, at_us: int, *ends: str) -> None:
        """The ends of the logs."""
        self.world.log_ends.update(zip((P0, P1), map(int, ends), strict=False))

    def fetch(self, at_us: int, code: str) -> None:
        """The coordinator refuses a fetch of offsets."""
        request = OffsetFetchRequest(group_id="g", member_id="m", partitions=(P0,))
        reply = OffsetFetchResponse(group_id="g", error_code=CODES[code])
        self.judge.on_coordinator_step("b", request, Outcome(reply=reply), at_us)

    def join(self, at_us: int) -> None:
        request = JoinGroupRequest(
            group_id="g",
            member_id="m",
            protocol_type="consumer",
            protocols=(),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=40_000,
        )
        self.send(at_us, request)

    def lose(self, at_us: int) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
        self.judge.on_loss("m", "broker-1", "request", request, at_us)


POLLS = """
leaves too early: 3 poll end; 42 move poll_timed_out STABLE PREPARE_LEAVING -> poll-timeouts
leaves in time: 3 poll end; 43 move poll_timed_out STABLE PREPARE_LEAVING ->
leaves while it polls: 60 move poll_timed_out STABLE PREPARE_LEAVING -> poll-timeouts
stays without polls: 3 poll end; 43 beat 1 | 44 poll begin -> poll-timeouts
stays without polls frozen: 3 poll end; 4 host freeze; 43 beat 1; 44 poll begin ->

commits an interval later: 3 batch 0; 7 batch 10; 8.1 commit 10; 12 batch 20 | 17 batch 30; 18 batch 40;
    23 batch 50 | 24 batch 60 -> commits-go-on
commits again after a failure: 3 batch 0; 8.1 commit 10 late; 12 batch 10 | 14 batch 20; 15 batch 30;
    20 batch 40; 21 batch 50 -> commits-go-on
commits too early: 8.1 commit 10; 12.8 commit 20; 14 batch 20 -> commits-go-on
commits an interval apart: 8.1 commit 10; 12.9 commit 20; 14 batch 20 ->
makes a failed commit again: 8.1 commit 10 late; 9 commit 10; 14 batch 10 ->
commits again, or late: 8.1 commit 10 late; 12 commit 10; 12.5 commit 20; 14 batch 20 |
    15 search; 20 commit 30; 20.5 commit 40; 22 batch 40 ->
commits early after it stood still: 8.1 commit 10; 9 host freeze; 10 host thaw; 11 commit 20; 12 batch 20 ->
commits early after an assignment: 4 call assigned begin+end 1; 8 commit 10; 8.5 batch 10 -> commits-go-on
commits for a release: 8.1 commit 10; 10 commit 20; 10 call revoked begin 1; 11 batch 20; 13.2 commit 30;
    14 batch 30 ->
commits nothing while it searches: 3 batch 0; 4 search; 20 batch 10; 21 batch 20 ->
waits for a commit: 3 poll end; 3 processed; 68 look ->
waits for a commit too long: 3 poll end; 3 processed; 69 look -> commits-end
waits for a commit anew: 3 poll end; 3 processed; 4 host freeze; 60 host thaw; 120 look | 150 look
    -> commits-end

is handed records: 3 ends 5 5; 3 host thaw; 35 look; 35 ends 10 5; 66 look; 66 ends 15 5; 80 delivered 5 10;
    97 look ->
is not handed some: 3 ends 5 5; 3 host thaw; 35 look; 35 ends 10 10; 66 look; 66 ends 15 15;
    80 delivered 5 10; 97 look -> partitions-read

stays short of its target: 3 target; 33 look | 64 look -> reconciles-on
goes on towards its target: 3 target; 3 call revoked begin 1; 33 look; 64 look ->
does not join after it revoked: 3 move synced COMPLETING_REBALANCE ~STABLE; 3 call revoked begin+end 1;
    33 look | 64 look -> reconciles-on
joins after it revoked: 3 move synced COMPLETING_REBALANCE ~STABLE; 3 call revoked begin+end 1;
    4 move rejoin STABLE ~UNJOINED; 4 join; 33 look; 64 look ->
is to join and does not: 3 move rejoin STABLE ~UNJOINED; 64 look -> reconciles-on
takes no step in a poll that raises: 3 poll end; 3 call revoked raised 1; 3 target; 40 poll begin failed;
    41 poll begin end | 72 poll begin end -> reconciles-on
waits for a lost request: 3 target; 20 lose; 79 look | 110 look -> reconciles-on
needs no callback for another target: 3 target; 3 lookup names x;
    4 move target_received RECONCILING RECONCILING; 5 call assigned begin ->

begins a callback late: 3 target; 3.001 call lost begin 1 -> reconciles-on
begins a callback late as a classic one: 3 move synced COMPLETING_REBALANCE ~STABLE; 3.001 call lost begin 1
    -> reconciles-on
begins a callback late when stale: 3 move leave_built LEAVING STALE; 3.001 call lost begin 1 -> reconciles-on
begins a callback late when fenced: 3 move fenced STABLE FENCED; 3.001 call lost begin 1 -> reconciles-on
begins a callback at once: 3 target; 3 call lost begin 1 ->
begins a callback at once as a classic one: 3 move synced COMPLETING_REBALANCE ~STABLE; 3 call lost begin 1 ->
begins a callback after a commit: 3 target; 3 commit 10; 4 call assigned begin ->
begins a callback after a lookup: 3 target; 3 lookup names x; 4 call assigned begin ->
begins a callback after a search: 3 target; 3 search; 4 call assigned begin ->
begins a callback after it stood still: 3 target; 3 host freeze; 4 call assigned begin ->
begins a callback out of poll: 3 poll end; 3 target; 4 call assigned begin ->

hides an error of a callback: 3 call revoked begin 1; 4 call revoked raised 1; 4 poll end; 5 poll begin |
    6 poll end -> errors-raised
raises an error of a callback: 3 call revoked begin 1; 4 call revoked raised 1; 4 poll end; 5 poll begin;
    6 poll failed ->
polls on after an error: 3 call assigned begin+raised; 40 look -> errors-raised
calls back again in one poll: 3 target; 3 call revoked begin+raised 1; 4 call revoked begin 1 -> errors-raised
calls back again after a poll: 3 target; 3 call revoked begin+raised 1; 3 poll failed;
    4 call revoked begin 1 ->
calls back again in another membership: 3 target; 3 call revoked begin+raised 1;
    3 move fenced RECONCILING FENCED; 3 move released FENCED JOINING;
    4 move target_received JOINING RECONCILING; 4 call revoked begin 1 ->
raises what it retries: 3 beat 3 LOADING; 4 poll failed -> errors-raised
raises that it was fenced: 3 beat 3 FENCED_MEMBER_EPOCH; 4 poll failed -> errors-raised
raises a refusal: 3 beat 3 REFUSED; 4 poll failed ->
raises a refusal twice: 3 beat 3 REFUSED; 4 poll failed; 5 poll begin; 6 poll end;
    7 poll begin failed -> errors-raised
raises a stale epoch of a fetch: 3 fetch STALE; 4 poll failed -> errors-raised
raises a refusal of a fetch: 3 fetch REFUSED; 4 poll failed ->
raises nothing that a callback did: 3 move synced COMPLETING_REBALANCE STABLE; 3 call assigned begin+end 1;
    4 poll failed -> errors-raised
raises the error of a lost: 3 move synced COMPLETING_REBALANCE STABLE; 3 call lost begin+end 1;
    4 poll failed ->
raises the error of a classic callback: 3 move synced COMPLETING_REBALANCE ~STABLE;
    3 call assigned begin+end 1; 4 poll failed ->
"""


@pytest.mark.parametrize(("script", "broken"), rows(POLLS))
def test_a_member_whose_application_polls(script, broken):
    assert Polled().play(script) == broken


def test_a_frozen_application_is_handed_nothing():
    history = Polled()
    history.world.members["m"].status = "frozen"
    assert history.play("3 host thaw; 35 look; 35 ends 35; 66 look; 66 ends 66; 97 look") == []


@pytest.mark.parametrize("reported", [{}, {P0: 10}, {P0: 12}, None], ids=str)
def test_a_member_reports_what_its_application_was_handed(reported):
    """A driver in another process reports nothing."""
    history = Polled()
    positions = {each: OffsetAndMetadata(offset=offset) for each, offset in (reported or {}).items()}
    driver = SimpleNamespace(assignment=(P0,)) if reported is None else None
    history.world.members["m"].driver = driver or SimpleNamespace(delivered=lambda: positions)
    broken = [] if reported in (None, {P0: 10}) else ["owned-honest"]
    assert history.play("3 delivered 0 10; 40 look") == broken


# -- retries -------------------------------------------------------------------------------------------------


class Retried(History):
    """A member of any epoch."""

    def __init__(self) -> None:
        super().__init__(Retries())

    def fail(self, at_us: int, attempts: str, every_ms: str) -> None:
        for attempt in range(int(attempts)):
            self.beat(at_us + attempt * int(every_ms) * 1_000, "0", "LOADING")

    def ask(self, at_us: int, attempts: str, every_ms: str, *what: str) -> None:
        for attempt in range(int(attempts)):
            wanted = [each.replace("#", str(attempt)) for each in what]
            self.lookup(at_us + attempt * int(every_ms) * 1_000, *wanted)

    def sync(self, at_us: int) -> None:
        self.send(at_us, SyncGroupRequest(group_id="g", member_id="m", generation=3), "sync")

    def since(self, at_us: int, attempts: str, every_ms: str) -> None:
        """A simulated member searches for offsets of ever another time."""
        host: Any = SimpleNamespace(name="m")
        for attempt in range(int(attempts)):
            loop = SimpleNamespace(now_us=at_us + attempt * int(every_ms) * 1_000)
            hooks = {"on_member_lookup": [self.judge.on_member_lookup]}
            host.world = SimpleNamespace(hooks=hooks, loop=loop)
            MemberHost._looks_up(host, OffsetsSince((P0,), since_us=attempt))


RETRIES = """
retries at once: 0 fail 6 10 -> retries-back-off
retries slowly: 0 fail 6 200 ->
gets a response in between: 0 fail 5 1; 0.005 beat 0 1; 0.006 fail 5 1 | 0.011 fail 1 1 -> retries-back-off
asks the wrong broker again: 1 beat 3 NOT_COORDINATOR; 1 beat 3 -> searches-anew
searches for the right one: 1 beat 3 NOT_COORDINATOR; 1 search; 1 beat 3 ->
gets no response: 1 beat 3 late; 2 beat 3 -> searches-anew
gets no response and searches: 1 beat 3 late; 1 search; 2 beat 3 ->
gets no response to its join: 1 beat 0 late; 2 beat 0 -> searches-anew
gets no response to its join and searches: 1 beat 0 late; 1 search; 2 beat 0 ->
gets no response to its leave: 1 beat -1 late; 2 beat 0 ->
loses the connection of a commit: 1 commit 5 sent; 3 ended cut; 4 beat 3 -> searches-anew
loses the connection of a commit in vain: 1 commit 5 sent; 2 move fenced STABLE FENCED; 3 ended cut;
    4 beat 3 ->
gets no response to a commit: 1 commit 5 sent; 3 ended late; 4 beat 3 ->
hears of an older coordinator: 1 beat 3; 2 search; 3 beat 4; 4 answer 3 NOT_COORDINATOR; 5 beat 5 |
    6 answer 4 NOT_COORDINATOR; 7 beat 6 -> searches-anew
hears of a round: 1 sync; 3 answer sync NOT_COORDINATOR; 4 beat 3 -> searches-anew
hears of a round that it gave up: 1 sync; 2 move sync_refused COMPLETING_REBALANCE UNJOINED;
    3 answer sync NOT_COORDINATOR; 4 beat 3 ->
asks for the same again and again: 0 ask 6 40 sizes x -> retries-back-off
asks for the same from time to time: 0 ask 6 60 sizes x ->
asks for different metadata at once: 1 ask 9 0 sizes x# ->
asks for offsets of any time: 0 since 6 40 -> retries-back-off
"""


@pytest.mark.parametrize(("script", "broken"), rows(RETRIES))
def test_a_member_that_retries(script, broken):
    assert Retried().play(script) == broken


# -- records and commits -------------------------------------------------------------------------------------


class Read(History):
    """Members of which only their records are judged; `n` may be one of them, too."""

    def __init__(self) -> None:
        super().__init__(Records())

    def written(self, at_us: int, offset: str) -> None:
        record = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(int(offset), -1, "", 0))
        self.judge.on_coordinator_step("b", DeadlineReached(), Outcome(records=(record,)), at_us)

    def delivered(self, at_us: int, first: str, end: str) -> None:
        self.judge.on_records_delivered("m", P0, int(first), int(end), at_us)

    def processed(self, at_us: int, first: str, end: str, host: str = "m") -> None:
        self.judge.on_records_processed(host, P0, int(first), int(end), at_us)

    def topic(self, at_us: int, what: str) -> None:
        self.judge.on_topic("x", what, 2, at_us)


OWNED = "0 call assigned begin 0; 0 delivered 0 10; 0 processed 0 10"
COMMITTED = "0 processed 0 9 n; 1 written 5; 2 written 7; 3 call assigned begin 0; 4 written 9"
RECORDS = {
    "": """
was handed some from elsewhere: 0 delivered 5 10 | 0 delivered 11 12 -> at-least-once
was handed some since it owns it again: 0 delivered 5 10; 0 call assigned begin 0; 0 delivered 0 4 ->
commits what another one processed: 0 processed 0 5 n; 0 call assigned begin 0; 0 commit 5 ->
commits what no other one processed: 0 processed 0 5 n; 0 call assigned begin 0; 0 commit 6
    -> commit-within-processed
commits without owning: 0 processed 0 10; 0 commit 10 -> commit-while-owned
""",
    OWNED: """
goes back: 0 processed 5 20 n ->
goes on: 0 processed 10 20 n ->
leaves a gap after another one: 0 processed 11 20 n -> at-least-once
leaves a gap: 0 processed 11 20 -> at-least-once
commits what it processed: 0 commit 10 ->
commits what it did not process: 0 commit 11 -> commit-within-processed
releases without a commit: 0 call revoked end 0 1 -> commit-before-release
releases after a commit: 0 commit 10; 0 call revoked end 0 1 ->
commits after the release: 0 commit 10; 0 call revoked end 0 1 | 0 commit 10 -> commit-while-owned
releases without a commit while it searches: 0 search; 0 call revoked end 0 1 ->
processes what was deleted: 0 delivered 10 20; 0 topic deleted; 0 topic created; 0 processed 10 20 |
    0 processed 5 6 n -> at-least-once
""",
    COMMITTED: """
begins at an offset of its time: 5 delivered 9 10 ->
begins at the offset before its time: 5 delivered 7 8 ->
begins at no offset: 5 delivered 0 1 -> starts-at-committed
begins at an offset of long ago: 5 delivered 5 6 -> starts-at-committed
""",
}


@pytest.mark.parametrize(
    ("before", "script", "broken"),
    [
        pytest.param(before, *row.values, id=row.id)
        for before, table in RECORDS.items()
        for row in rows(table)
    ],
)
def test_records_and_commits_of_a_member(before, script, broken):
    history = Read()
    assert history.play(before) == []
    assert history.play(script) == broken


def test_an_application_does_not_process_what_it_was_handed_of_a_topic_before():
    history = Read()
    history.play(
        "0 call assigned begin 0; 0 delivered 0 10; 0 topic deleted; 0 topic created; 0 processed 0 10"
    )
    assert not history.judge.is_processing("m")
