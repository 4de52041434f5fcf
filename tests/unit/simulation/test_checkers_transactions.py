"""Histories of transactions, and of people's requests, made by hand: those that may not be are reported."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer import regular_expressions
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import offsets
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import DescribeGroupsRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
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
from fencepost.simulation.checkers.coordination import Coordination
from fencepost.simulation.checkers.transactions import Transactions

E = ErrorCode
X0, X1 = TopicPartition("x", 0), TopicPartition("x", 1)
IMAGE = TopicsImage.of([Topic(topic_id="X" * 22, name="x", partitions=2)])


def same(outcome):
    return outcome


class Scene:
    """Both coordinators, whose every step is judged."""

    def __init__(self):
        self.live = GroupCoordinator(GroupCoordinatorConfig())
        self.transactions = TransactionCoordinator()
        self.world = SimpleNamespace(
            config=self.live.config,
            journal=MemoryJournal(),
            journal_fails=False,
            active=self.live,
            group_id="g",
            transactions=self.transactions,
            coordinators={"b": SimpleNamespace(coordinator=self.live)},
        )
        self.found = []
        self.now_ms = 0
        self.checkers = (Coordination(), Transactions())
        for checker in self.checkers:
            checker.attach(self.world, lambda invariant, message, rule="": self.found.append(invariant))
        self.step(TopicsChanged(image=IMAGE))

    def step(self, event, tamper=same):
        self.now_ms += 1_000
        outcome = tamper(self.live.handle(event, self.now_ms))
        for record in outcome.records:
            self.live.apply(record)
        for checker in self.checkers:
            checker.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply

    def ask(self, event, tamper=same):
        """A step of the coordinator of transactions."""
        self.now_ms += 1_000
        outcome = tamper(self.transactions.handle(event, self.now_ms))
        self.transactions.apply_batch(outcome.records)
        self.checkers[1].on_transaction_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply

    def begin(self, tamper=same, **fields):
        return self.ask(InitProducerIdRequest(transactional_id="t", next_producer_id=7, **fields), tamper)

    def add(self, epoch=0, tamper=same):
        request = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=7, producer_epoch=epoch, group_id="g"
        )
        return self.ask(request, tamper).error_code

    def commit(self, offset, producer_id=7, tamper=same, first=0):
        if producer_id >= 0:
            checker = self.checkers[1]
            checker.on_records_processed("t", X0, first, offset, self.now_ms * 1_000)
        request = offsets.OffsetCommitRequest(
            group_id="g", offsets={X0: offsets.OffsetAndMetadata(offset=offset)}, producer_id=producer_id
        )
        return self.step(request, tamper).errors[X0]

    def staged(self, offset=5, first=0):
        self.begin()
        assert self.add() is E.NONE
        assert self.commit(offset, first=first) is E.NONE

    def end(self, commit=True, tamper=same, ended=same, told=None, epoch=0):
        request = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=epoch, committed=commit)
        code = self.ask(request, tamper).error_code
        told = commit if told is None else told
        self.step(TransactionEnded(group_id="g", producer_id=7, commit=told), ended)
        return code

    def over(self, epoch=0):
        self.ask(MarkersWritten(transactional_id="t", producer_id=7, producer_epoch=epoch))


@pytest.fixture
def scene():
    return Scene()


def without(kind):
    """The outcome without its records of that key."""

    def tamper(outcome):
        records = tuple(each for each in outcome.records if not isinstance(each.key, kind))
        return Outcome(records=records, reply=outcome.reply)

    return tamper


def test_a_transaction_that_commits_after_a_plain_commit_is_right(scene):
    scene.staged(5)
    scene.commit(6, producer_id=-1)
    assert scene.end() is E.NONE
    scene.over()
    assert scene.found == []
    assert scene.live.offsets.get("g", X0).offset == 6


def test_an_offset_without_its_topic_id_is_reported(scene):
    scene.staged(5)

    def without_id(found):
        records = tuple(
            msgspec.structs.replace(each, value=msgspec.structs.replace(each.value, topic_id=None))
            if isinstance(each.value, r.OffsetCommitValue)
            else each
            for each in found.records
        )
        return msgspec.structs.replace(found, records=records)

    scene.end(ended=without_id)
    assert "transaction-offsets" in scene.found


def test_a_transaction_that_is_over_and_keeps_its_groups_is_reported(scene):
    scene.staged(5)
    scene.end()
    assert scene.found == []

    def keeping(found):
        (record,) = found.records
        value = msgspec.structs.replace(record.value, groups=("g",))
        return msgspec.structs.replace(found, records=(msgspec.structs.replace(record, value=value),))

    request = MarkersWritten(transactional_id="t", producer_id=7, producer_epoch=0)
    scene.ask(request, keeping)
    assert scene.found == ["transaction-decided"]


def test_an_aborted_transaction_counts_for_nothing(scene):
    scene.staged(5)
    assert scene.end(commit=False) is E.NONE
    scene.over()
    assert scene.found == []
    assert scene.live.offsets.get("g", X0) is None


def test_staged_offsets_that_do_not_count_or_stay_are_reported(scene):
    scene.staged(5)
    scene.end(ended=without(r.OffsetCommitKey))
    assert "transaction-offsets" in scene.found
    other = Scene()
    other.staged(5)
    other.end(ended=without(r.PendingOffsetCommitKey))
    assert "transaction-offsets" in other.found


def test_an_offset_that_expires_while_another_is_staged_is_reported(scene):
    scene.commit(3, producer_id=-1)
    scene.staged(5)
    gone = r.Record(r.OffsetCommitKey("g", "x", 0), None)
    scene.step(DeadlineReached(), lambda _: Outcome(records=(gone,)))
    assert "transaction-staged" in scene.found


def test_a_load_that_lost_staged_offsets_is_reported(scene):
    scene.staged(5)
    loaded = GroupCoordinator(GroupCoordinatorConfig())
    scene.world.coordinators["b"].coordinator = loaded
    scene.checkers[1].on_coordinator_state("b", "active", scene.now_ms * 1_000)
    assert scene.found == ["transaction-staged"]


def test_a_fetch_that_hides_what_is_unstable_is_reported(scene):
    scene.staged(5)
    request = offsets.OffsetFetchRequest(group_id="g", partitions=(X0, X1), require_stable=True)
    assert scene.step(request).unstable == {X0}
    assert scene.found == []
    scene.step(
        request, lambda found: Outcome(reply=msgspec.structs.replace(found.reply, unstable=frozenset()))
    )
    assert scene.found == ["transaction-stable-fetch"]


def test_a_producer_that_was_replaced_and_is_taken_is_reported(scene):
    scene.begin()
    scene.begin()
    assert scene.add(epoch=0) is E.PRODUCER_FENCED
    assert scene.found == []
    accepted = TransactionOutcome(reply=scene.transactions.handle(_adding(1), scene.now_ms).reply)
    scene.add(epoch=0, tamper=lambda _: accepted)
    assert "transaction-fenced" in scene.found


def _adding(epoch):
    return AddOffsetsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=epoch, group_id="g")


def test_an_epoch_that_two_producers_get_is_reported(scene):
    scene.begin()
    scene.begin(
        lambda found: TransactionOutcome(reply=msgspec.structs.replace(found.reply, producer_epoch=0))
    )
    assert "transaction-epochs" in scene.found


@pytest.mark.parametrize("own_epoch", [True, False])
@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_a_transaction_should_not_have_is_reported(scene, own_epoch, epoch):
    """Each transaction of newer clients has an epoch of its own (KIP-890)."""
    scene.staged(5)

    def at_epoch(found):
        (record,) = found.records
        value = msgspec.structs.replace(record.value, producer_epoch=epoch)
        who = {"producer_id": 7, "producer_epoch": epoch} if own_epoch else {}
        return msgspec.structs.replace(
            found,
            reply=msgspec.structs.replace(found.reply, **who),
            effects=(),
            records=(msgspec.structs.replace(record, value=value),),
        )

    version = EPOCH_PER_TRANSACTION if own_epoch else EPOCH_PER_TRANSACTION - 1
    request = EndTxnRequest(
        transactional_id="t", producer_id=7, producer_epoch=0, committed=True, client_version=version
    )
    scene.ask(request, at_epoch)
    assert set(scene.found) == (set() if epoch == own_epoch else {"transaction-epochs"})


@pytest.mark.parametrize("says_who", [True, False])
@pytest.mark.parametrize("last", [-1, 0])
def test_a_last_epoch_by_which_no_retry_is_recognized_is_reported(scene, says_who, last):
    scene.begin()

    def remembers(found):
        (record,) = found.records
        value = msgspec.structs.replace(record.value, last_producer_epoch=last)
        return msgspec.structs.replace(found, records=(msgspec.structs.replace(record, value=value),))

    scene.begin(remembers, **({"producer_id": 7, "producer_epoch": 0} if says_who else {}))
    assert scene.found == ([] if last == says_who - 1 else ["transaction-epochs"])


def test_another_end_than_the_one_decided_is_reported(scene):
    scene.staged(5)
    scene.end(commit=False, told=True)
    assert "transaction-decided" in scene.found


def test_a_transaction_that_is_over_before_its_group_knows_is_reported(scene):
    scene.staged(5)
    scene.ask(EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=0, committed=True))
    scene.over()
    assert scene.found == ["transaction-decided"]


def test_a_transaction_that_outlasts_its_timeout_is_reported(scene):
    scene.staged(5)
    scene.now_ms += 200_000
    scene.checkers[1].on_end(scene.now_ms * 1_000)
    assert "transaction-ends" in scene.found


WEEK_MS = 7 * 24 * 3_600_000


@pytest.mark.parametrize(
    ("after_ms", "reported"), [(WEEK_MS + 10_000, []), (WEEK_MS + 20_000, ["transaction-ends"])]
)
def test_an_unused_id_that_is_kept_is_reported(scene, after_ms, reported):
    scene.begin()
    scene.now_ms += after_ms
    scene.ask(DeadlineReached(), lambda _: TransactionOutcome())
    assert scene.found == reported


@pytest.mark.parametrize(("after_ms", "reported"), [(WEEK_MS, []), (WEEK_MS - 2_000, ["transaction-ends"])])
def test_an_id_that_is_forgotten_too_soon_is_reported(scene, after_ms, reported):
    scene.begin()
    scene.now_ms += after_ms
    gone = TransactionRecord(TransactionKey("t"), None)
    scene.ask(DeadlineReached(), lambda _: TransactionOutcome(records=(gone,)))
    assert scene.found == reported


@pytest.mark.parametrize(("first", "reported"), [(5, []), (3, ["exactly-once"]), (7, ["exactly-once"])])
def test_records_that_count_twice_or_never_are_reported(scene, first, reported):
    scene.staged(5)
    scene.end()
    scene.over()
    assert scene.add() is E.NONE
    scene.commit(9, first=first)
    scene.end()
    assert scene.found == reported


@pytest.mark.parametrize(("first", "reported"), [(5, []), (0, []), (3, ["exactly-once"])])
def test_records_count_again_from_the_beginning_after_their_offset_expired(scene, first, reported):
    scene.staged(5)
    scene.end()
    scene.over()
    gone = r.Record(r.OffsetCommitKey("g", "x", 0), None)
    scene.step(DeadlineReached(), lambda _: Outcome(records=(gone,)))
    assert scene.add() is E.NONE
    scene.commit(9, first=first)
    scene.end()
    assert scene.found == reported


def test_a_commit_that_is_not_written_as_sent_is_reported(scene):
    assert scene.commit(5, producer_id=-1) is E.NONE
    assert scene.found == []
    scene.commit(6, producer_id=-1, tamper=lambda found: Outcome(reply=found.reply))
    assert "commit-recorded" in scene.found


def joined(scene, **fields):
    full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("x",), "topic_partitions": {}}
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=0, **{**full, **fields})
    assert scene.step(request).error_code is E.NONE


REQUESTS = (
    ListGroupsRequest(),
    ListGroupsRequest(states_filter=("stable",), types_filter=("Consumer",)),
    ConsumerGroupDescribeRequest(group_ids=("g", "other", "")),
    DescribeGroupsRequest(group_ids=("g", "other")),
)


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_people_are_told_is_judged(scene, request_):
    joined(scene)
    scene.step(request_)
    assert scene.found == []

    def other(outcome):
        group = outcome.reply.groups[0]
        wrong = msgspec.structs.replace(group, group_state="Dead?")
        return Outcome(
            reply=msgspec.structs.replace(outcome.reply, groups=(wrong, *outcome.reply.groups[1:]))
        )

    scene.step(request_, other)
    assert scene.found[0] == "told-equals-state"


CHANGES = (
    (offsets.OffsetDeleteRequest(group_id="g", partitions=(X0,)), {X0: E.NONE}),
    (DeleteGroupsRequest(group_id="g"), E.NONE),
    (LeaveGroupBatchRequest(group_id="g", members=(LeaveGroupRequest(group_id="g", member_id="A"),)), None),
)


@pytest.mark.parametrize(("request_", "answer"), CHANGES)
def test_what_people_change_is_judged(scene, request_, answer):
    scene.commit(5, producer_id=-1)
    joined(scene)
    other = Scene()
    other.commit(5, producer_id=-1)
    joined(other)
    scene.step(request_)
    assert scene.found == []

    def says_so_only(outcome):
        changes = {"errors": answer} if isinstance(answer, dict) else {"error_code": answer}
        reply = outcome.reply if answer is None else msgspec.structs.replace(outcome.reply, **changes)
        return Outcome(reply=reply)

    other.step(request_, says_so_only)
    assert "admin-changes" in other.found


def test_a_pattern_that_is_dropped_without_a_new_epoch_is_reported(scene, monkeypatch):
    joined(scene, subscribed_topic_regex="x.*")
    monkeypatch.setattr(regular_expressions, "change_of", lambda *_: regular_expressions.UNRESOLVED)
    joined(scene, subscribed_topic_regex="")
    assert "subscription-raises-epoch" in scene.found
