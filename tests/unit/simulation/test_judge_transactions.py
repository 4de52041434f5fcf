"""Transactions and people's requests: real steps, and the same with one thing wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import consumer, offsets
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.coordinator.protocol.transaction_records import TransactionKey, TransactionRecord
from fencepost.coordinator.protocol.transactions import (
    EPOCH_PER_TRANSACTION,
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MarkersWritten,
    TransactionEnded,
)
from fencepost.coordinator.transactions.coordinator import TransactionCoordinator, TransactionOutcome
from fencepost.simulation.judge.coordination import Coordination
from fencepost.simulation.judge.transactions import Transactions
from tests.unit.simulation.judged_steps import Judged, beat, changed, only, recorded, replying, without

E = ErrorCode
X0, X1 = TopicPartition("x", 0), TopicPartition("x", 1)
WEEK_MS = 7 * 24 * 3_600_000
BOTH = {"transactional_id": "t", "producer_id": 7}
GONE = r.Record(r.OffsetCommitKey("g", "x", 0), None)


class Scene(Judged):
    """Both coordinators, whose every step is judged."""

    step_ms = 1_000

    def __init__(self, script: str = "") -> None:
        self.transactions = TransactionCoordinator()
        super().__init__(Coordination(), Transactions(), script=script)

    def prepare(self) -> None:
        self.world.transactions = self.transactions

    def ask(self, event: Any) -> Any:
        """A step of the coordinator of transactions."""
        self.now_ms += 1_000
        outcome = self.tamper(self.transactions.handle(event, self.now_ms))
        self.transactions.apply_batch(outcome.records)
        self.judges[1].on_transaction_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply

    # -- the steps of scripts

    def begin(self, says_who: str = "") -> None:
        who = {"producer_id": 7, "producer_epoch": 0} if says_who else {}
        self.ask(InitProducerIdRequest(transactional_id="t", next_producer_id=7, **who))

    def add(self) -> ErrorCode:
        return self.ask(AddOffsetsToTxnRequest(**BOTH, producer_epoch=0, group_id="g")).error_code

    def commit(self, offset: str, first: str = "0") -> ErrorCode:
        """In the transaction, after its records were processed."""
        now_us = self.now_ms * 1_000
        self.judges[1].on_records_processed("t", X0, int(first), int(offset), now_us)
        return self.plain(offset, 7)

    def plain(self, offset: str, producer_id: int = -1) -> ErrorCode:
        values = {X0: offsets.OffsetAndMetadata(offset=int(offset))}
        request = offsets.OffsetCommitRequest(group_id="g", offsets=values, producer_id=producer_id)
        return self.step(request).errors[X0]

    def stage(self, offset: str, first: str = "0") -> None:
        assert self.add() is E.NONE
        assert self.commit(offset, first) is E.NONE

    def decide(self, end: str = "commit", version: str = "0") -> ErrorCode:
        request = EndTxnRequest(
            **BOTH, producer_epoch=0, committed=end == "commit", client_version=int(version)
        )
        return self.ask(request).error_code

    def ended(self, end: str = "commit") -> None:
        """The group is told."""
        self.step(TransactionEnded(group_id="g", producer_id=7, commit=end == "commit"))

    def log(self, state: str) -> None:
        """The logs fail, or work again."""
        self.world.journal_fails = state == "fails"
        self.tamper = changed(records=()) if self.world.journal_fails else changed()

    def over(self) -> None:
        self.ask(MarkersWritten(**BOTH, producer_epoch=0))

    def tick(self) -> None:
        """Time of the coordinator of transactions."""
        self.ask(DeadlineReached())

    def stored(self, offset: str) -> None:
        found = self.live.offsets.get("g", X0)
        assert offset == ("none" if found is None else str(found.offset))

    def fetch(self) -> None:
        self.step(offsets.OffsetFetchRequest(group_id="g", partitions=(X0, X1), require_stable=True))

    def member(self, regex: str | None = None) -> None:
        assert self.step(beat("A", 0, subscribed_topic_regex=regex)).error_code is E.NONE


STAGED = "begin; stage 5"
OVER = f"{STAGED}; decide; ended; over"


@pytest.mark.parametrize(
    ("script", "tamper", "broken"),
    [
        (STAGED + "; decide; ended", recorded(topic_id=None), "transaction-offsets"),
        (
            STAGED + "; decide; ended",
            without(r.OffsetCommitKey),
            "transaction-offsets transaction-stable-fetch",
        ),
        (
            STAGED + "; decide; ended",
            without(r.PendingOffsetCommitKey),
            "transaction-offsets transaction-staged",
        ),
        (OVER, recorded(groups=("g",)), "transaction-decided"),
        ("plain 3; begin; stage 5; time", lambda _: Outcome(records=(GONE,)), "transaction-staged"),
        (STAGED + "; fetch", replying(unstable=frozenset()), "transaction-stable-fetch"),
        (
            "begin; begin; add =PRODUCER_FENCED",
            replying(error_code=E.NONE),
            "transaction-fenced transaction-decided",
        ),
        ("begin; begin", replying(producer_epoch=0), "transaction-epochs"),
        ("plain 5; plain 6", only(), "commit-recorded"),
    ],
)
def test_a_step_that_goes_wrong(script: str, tamper: Any, broken: str) -> None:
    assert Scene().play_wrongly(script, None) == set()
    scene = Scene()
    scene.play_wrongly(script.partition(" =")[0], tamper)
    assert scene.found[0] == broken.split(maxsplit=1)[0]
    assert set(scene.found) <= {*broken.split()}


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        (STAGED + "; plain 6; decide =NONE; ended; over; stored 6", ""),
        (STAGED + "; decide abort =NONE; ended abort; over; stored none", ""),
        (STAGED + "; decide abort; ended commit", "transaction-decided"),
        (STAGED + "; decide; over", "transaction-decided"),
        (STAGED + "; decide; log fails; ended; log works; over", "transaction-decided"),
        (STAGED + "; decide; log fails; ended; log works; ended; over", ""),
        ("begin; add; decide; log fails; ended; log works; over", ""),  # nothing to write
        (STAGED + "; later 200; end", "transaction-ends"),
        (OVER + "; stage 9 5; decide; ended", ""),
        (OVER + "; stage 9 3; decide; ended", "exactly-once"),
        (OVER + "; stage 9 7; decide; ended", "exactly-once"),
    ],
)
def test_the_life_of_a_transaction(script: str, broken: str) -> None:
    assert Scene().play(script) == set(broken.split())


@pytest.mark.parametrize(("first", "reported"), [(5, set()), (0, set()), (3, {"exactly-once"})])
def test_records_count_again_from_the_beginning_after_their_offset_expired(first, reported) -> None:
    scene = Scene(OVER)
    same, scene.tamper = scene.tamper, lambda _: Outcome(records=(GONE,))
    scene.play("time")
    scene.tamper = same
    assert scene.play(f"stage 9 {first}; decide; ended") == reported


def test_a_load_that_lost_staged_offsets_is_reported() -> None:
    scene = Scene(STAGED)
    scene.world.coordinators["b"].coordinator = GroupCoordinator(GroupCoordinatorConfig())
    scene.judges[1].on_coordinator_state("b", "active", scene.now_ms * 1_000)
    assert scene.found == ["transaction-staged"]


@pytest.mark.parametrize("own_epoch", [True, False])
@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_a_transaction_should_not_have_is_reported(own_epoch: bool, epoch: int) -> None:
    """Each transaction of newer clients has an epoch of its own (KIP-890)."""
    scene = Scene(STAGED)
    who = {"producer_id": 7, "producer_epoch": epoch} if own_epoch else {}
    scene.tamper = lambda outcome: replying(**who)(
        recorded(producer_epoch=epoch)(changed(effects=())(outcome))
    )
    version = EPOCH_PER_TRANSACTION if own_epoch else EPOCH_PER_TRANSACTION - 1
    found = scene.play(f"decide commit {version}")
    assert found == (set() if epoch == own_epoch else {"transaction-epochs"})


@pytest.mark.parametrize("says_who", [True, False])
@pytest.mark.parametrize("last", [-1, 0])
def test_a_last_epoch_by_which_no_retry_is_recognized_is_reported(says_who: bool, last: int) -> None:
    scene = Scene("begin")
    scene.tamper = recorded(last_producer_epoch=last)
    found = scene.play("begin says-who" if says_who else "begin")
    assert found == (set() if last == says_who - 1 else {"transaction-epochs"})


FORGOTTEN = TransactionOutcome(records=(TransactionRecord(TransactionKey("t"), None),))


@pytest.mark.parametrize(
    ("after_ms", "outcome", "reported"),
    [
        (WEEK_MS + 10_000, TransactionOutcome(), set()),
        (WEEK_MS + 20_000, TransactionOutcome(), {"transaction-ends"}),
        (WEEK_MS, FORGOTTEN, set()),
        (WEEK_MS - 2_000, FORGOTTEN, {"transaction-ends"}),
    ],
)
def test_an_unused_id_is_kept_for_a_week(after_ms: int, outcome: Any, reported: set[str]) -> None:
    scene = Scene(f"begin; later {after_ms / 1_000}")
    scene.tamper = lambda _: outcome
    assert scene.play("tick") == reported


# -- what people ask and change ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        consumer.ListGroupsRequest(),
        consumer.ListGroupsRequest(states_filter=("stable",), types_filter=("Consumer",)),
        consumer.ConsumerGroupDescribeRequest(group_ids=("g", "other", "")),
        DescribeGroupsRequest(group_ids=("g", "other")),
    ],
)
def test_what_people_are_told_is_judged(request_: Any) -> None:
    scene = Scene("member")
    scene.step(request_)
    assert scene.found == []

    def other(outcome: Any) -> Outcome:
        first, *rest = outcome.reply.groups
        return only(groups=(msgspec.structs.replace(first, group_state="Dead?"), *rest))(outcome)

    scene.tamper = other
    scene.step(request_)
    assert scene.found[0] == "told-equals-state"


LEAVE = consumer.LeaveGroupRequest(group_id="g", member_id="A")


@pytest.mark.parametrize(
    ("request_", "says_so_only"),
    [
        (offsets.OffsetDeleteRequest(group_id="g", partitions=(X0,)), only(errors={X0: E.NONE})),
        (consumer.DeleteGroupsRequest(group_id="g"), only(error_code=E.NONE)),
        (consumer.LeaveGroupBatchRequest(group_id="g", members=(LEAVE,)), only()),
    ],
)
def test_what_people_change_is_judged(request_: Any, says_so_only: Any) -> None:
    scene, other = Scene("plain 5; member"), Scene("plain 5; member")
    scene.step(request_)
    assert scene.found == []
    other.tamper = says_so_only
    other.step(request_)
    assert "admin-changes" in other.found


def test_a_pattern_that_is_dropped_without_a_new_epoch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene("member x.*")
    monkeypatch.setattr(regular_expressions, "change_of", lambda *_: regular_expressions.UNRESOLVED)
    scene.member("")
    assert "subscription-raises-epoch" in scene.found
