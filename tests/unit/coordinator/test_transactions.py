"""The transaction coordinator, one event at a time (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fencepost.coordinator.protocol import transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.transactions.coordinator import TransactionCoordinator, TransactionOutcome
from fencepost.coordinator.transactions.states import TransactionState

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
E = ErrorCode
DAY_MS = 86_400_000


class Scene:
    """A coordinator whose records are applied, and checked to load to the same state."""

    def __init__(self) -> None:
        self.coordinator = TransactionCoordinator()
        self.journal: list[Any] = []
        self.now_ms = 1_000
        self.markers: list[transactions.WriteMarkers] = []
        self._ids = iter(range(100, 10_000))

    def process(self, event: Any) -> Any:
        outcome: TransactionOutcome = self.coordinator.handle(event, self.now_ms)
        for record in outcome.records:
            self.journal.append(record)
            self.coordinator.apply(record)
        self.markers += outcome.effects
        again = TransactionCoordinator()
        again.replay(self.journal)
        assert dict(again.transactions) == dict(self.coordinator.transactions)
        assert again.next_deadline() == self.coordinator.next_deadline()
        return outcome.reply

    def init(self, *, producer: tuple[int, int] = (-1, -1), **fields: Any) -> tuple[str, int, int]:
        request = transactions.InitProducerIdRequest(
            transactional_id="t",
            producer_id=producer[0],
            producer_epoch=producer[1],
            next_producer_id=next(self._ids),
        )
        reply = self.process(msgspec.structs.replace(request, **fields))
        return reply.error_code.name, reply.producer_id, reply.producer_epoch

    def add(self, producer: tuple[int, int], *partitions: TopicPartition, **fields: Any) -> list[str]:
        request = transactions.AddPartitionsToTxnRequest(
            transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], partitions=partitions
        )
        reply = self.process(msgspec.structs.replace(request, **fields))
        return [code.name for code in reply.errors.values()]

    def add_group(self, producer: tuple[int, int], group_id: str = "g", **fields: Any) -> str:
        request = transactions.AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], group_id=group_id
        )
        name: str = self.process(msgspec.structs.replace(request, **fields)).error_code.name
        return name

    def end(
        self, producer: tuple[int, int], *, commit: bool = True, version: int = 0
    ) -> tuple[str, int, int]:
        request = transactions.EndTxnRequest(
            transactional_id="t",
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
            client_version=version,
            next_producer_id=next(self._ids),
        )
        reply = self.process(request)
        return reply.error_code.name, reply.producer_id, reply.producer_epoch

    def written(self) -> transactions.WriteMarkers:
        """The markers that were asked for last are in the logs."""
        effect = self.markers.pop()
        self.process(
            transactions.MarkersWritten(
                transactional_id=effect.transactional_id,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
            )
        )
        return effect

    @property
    def state(self) -> str:
        return TransactionState.of_code(self.coordinator.transactions["t"].status).value

    def set(self, **fields: Any) -> None:
        """Let the id be as if it had come that far."""
        value = msgspec.structs.replace(self.coordinator.transactions["t"], **fields)
        record = msgspec.structs.replace(self.journal[-1], value=value)
        self.journal.append(record)
        self.coordinator.apply(record)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def producer(scene: Scene) -> tuple[int, int]:
    """An initialized producer: id 100, epoch 0."""
    assert scene.init() == ("NONE", 100, 0)
    return 100, 0


def test_a_transaction_from_its_begin_to_its_end(scene: Scene, producer: tuple[int, int]) -> None:
    assert scene.state == "Empty"
    assert scene.add(producer, P1, P0) == ["NONE", "NONE"]
    assert scene.add_group(producer) == "NONE"
    assert scene.state == "Ongoing"
    assert scene.end(producer) == ("NONE", -1, -1)
    assert scene.state == "PrepareCommit"
    effect = scene.written()
    assert (effect.commit, effect.partitions, effect.groups) == (True, (P0, P1), ("g",))
    assert (effect.producer_id, effect.producer_epoch) == producer
    assert scene.state == "CompleteCommit"
    assert scene.end(producer) == ("NONE", -1, -1), "a retry"
    assert scene.end(producer, commit=False)[0] == "INVALID_TXN_STATE"
    scene.add(producer, P0)
    scene.end(producer, commit=False)
    assert not scene.written().commit
    assert scene.state == "CompleteAbort"


def test_adding_twice_writes_once(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0)
    written = len(scene.journal)
    assert scene.add(producer, P0) == ["NONE"]
    assert len(scene.journal) == written
    assert scene.add(producer, P1, verify_only=True) == ["TRANSACTION_ABORTABLE"]
    assert scene.add(producer, P0, verify_only=True) == ["NONE"]
    assert scene.add_group(producer, verify_only=True) == "TRANSACTION_ABORTABLE"


@pytest.mark.parametrize("version", [0, 2])
def test_strangers_are_told_so(scene: Scene, producer: tuple[int, int], version: int) -> None:
    scene.add(producer, P0)
    for wrong, code in (((101, 0), "INVALID_PRODUCER_ID_MAPPING"), ((100, 1), "PRODUCER_FENCED")):
        assert scene.add(wrong, P0) == [code]
        assert scene.add_group(wrong) == code
        assert scene.end(wrong, version=version) == (code, -1, -1)
    assert scene.add(producer, P0, transactional_id="other") == ["INVALID_PRODUCER_ID_MAPPING"]
    assert scene.add(producer, P0, transactional_id="") == ["INVALID_REQUEST"]
    assert scene.add_group(producer, "") == "NONE"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, "INVALID_REQUEST"),
        ({"timeout_ms": 0}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"timeout_ms": 900_001}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"producer": (5, -1)}, "INVALID_REQUEST"),
        ({"producer": (-1, 5)}, "INVALID_REQUEST"),
    ],
)
def test_impossible_initializations(scene: Scene, fields: dict[str, Any], code: str) -> None:
    assert scene.init(**fields) == (code, -1, -1)
    assert not scene.coordinator.transactions


def test_another_producer_fences_the_first(scene: Scene, producer: tuple[int, int]) -> None:
    assert scene.init() == ("NONE", 100, 1)
    assert scene.add(producer, P0) == ["PRODUCER_FENCED"]
    assert scene.add((100, 1), P0) == ["NONE"]


def test_what_the_first_left_open_is_aborted_before(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0)
    assert scene.init()[0] == "CONCURRENT_TRANSACTIONS"
    assert scene.state == "PrepareAbort"
    assert scene.init()[0] == "CONCURRENT_TRANSACTIONS"
    assert scene.end(producer)[0] == "PRODUCER_FENCED"
    effect = scene.written()
    assert (effect.commit, effect.producer_epoch) == (False, 1)
    assert scene.init() == ("NONE", 100, 2)


def test_nothing_is_added_while_markers_are_on_their_way(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0)
    scene.end(producer)
    assert scene.add(producer, P1) == ["CONCURRENT_TRANSACTIONS"]
    assert scene.add_group(producer) == "CONCURRENT_TRANSACTIONS"
    assert scene.end(producer)[0] == "CONCURRENT_TRANSACTIONS"
    assert scene.end(producer, commit=False)[0] == "INVALID_TXN_STATE"


def test_a_producer_goes_on_after_an_error(scene: Scene, producer: tuple[int, int]) -> None:
    assert scene.init(producer=producer) == ("NONE", 100, 1)
    assert scene.init(producer=producer) == ("NONE", 100, 1), "its answer was lost"
    assert scene.init() == ("NONE", 100, 2)
    assert scene.init(producer=(100, 1))[0] == "PRODUCER_FENCED"
    assert scene.init(producer=(99, 0))[0] == "PRODUCER_FENCED"


def test_epochs_run_out_and_another_id_begins(scene: Scene, producer: tuple[int, int]) -> None:
    scene.set(producer_epoch=32_766)
    name, producer_id, epoch = scene.init(producer=(100, 32_766))
    assert (name, epoch) == ("NONE", 0)
    assert producer_id != 100
    assert scene.init(producer=(100, 32_766)) == ("NONE", producer_id, 0), "its answer was lost"


def test_the_epoch_at_which_a_transaction_was_aborted_is_nobodys(
    scene: Scene, producer: tuple[int, int]
) -> None:
    last = (100, 32_766)
    scene.set(producer_epoch=last[1])
    scene.add(last, P0)
    assert scene.init(producer=last)[0] == "CONCURRENT_TRANSACTIONS"
    assert scene.written().producer_epoch == 32_767
    assert scene.init(producer=(100, 32_765))[0] == "PRODUCER_FENCED"
    name, producer_id, epoch = scene.init(producer=last)
    assert (name, epoch) == ("NONE", 0)
    assert producer_id != 100
    assert scene.init(producer=last) == ("NONE", producer_id, 0), "its answer was lost"


@pytest.mark.parametrize(
    ("before", "epoch", "commit", "code", "bumped"),
    [
        ("Empty", 0, True, "INVALID_TXN_STATE", False),
        ("Empty", 0, False, "NONE", True),
        ("Empty", -1, False, "PRODUCER_FENCED", False),
        ("CompleteAbort", 0, False, "NONE", True),
        ("CompleteAbort", -1, False, "NONE", False),
        ("CompleteAbort", 0, True, "INVALID_TXN_STATE", False),
        ("CompleteAbort", -1, True, "INVALID_TXN_STATE", False),
        ("CompleteCommit", 0, False, "NONE", True),
        ("CompleteCommit", -1, False, "INVALID_TXN_STATE", False),
        ("CompleteCommit", 0, True, "INVALID_TXN_STATE", False),
        ("CompleteCommit", -1, True, "NONE", False),
    ],
)
def test_ends_of_clients_with_an_epoch_for_each_transaction(
    scene: Scene,
    producer: tuple[int, int],
    before: str,
    epoch: int,
    commit: bool,
    code: str,
    bumped: bool,
) -> None:
    """The table in TransactionCoordinator.endTransaction: -1 is a retry, 0 the current epoch."""
    scene.init()
    scene.set(status={str(each): each.code for each in TransactionState}[before])
    found = scene.end((100, 1 + epoch), commit=commit, version=2)
    assert found[0] == code
    if code == "NONE":
        assert found == ("NONE", 100, 2 if bumped else 1)
    assert bool(scene.markers) == bumped


def test_each_transaction_has_its_epoch(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0, client_version=2)
    assert scene.end(producer, version=2) == ("NONE", 100, 1)
    assert scene.end(producer, version=2)[0] == "CONCURRENT_TRANSACTIONS"
    assert scene.written().producer_epoch == 1
    assert scene.end(producer, version=2) == ("NONE", 100, 1), "a retry"
    assert scene.add(producer, P0) == ["PRODUCER_FENCED"]
    assert scene.add((100, 1), P0) == ["NONE"]


def test_a_transaction_may_take_the_last_epoch(scene: Scene, producer: tuple[int, int]) -> None:
    scene.set(producer_epoch=32_766)
    scene.add((100, 32_766), P0, client_version=2)
    name, producer_id, epoch = scene.end((100, 32_766), version=2)
    assert (name, epoch) == ("NONE", 0)
    assert producer_id != 100
    effect = scene.written()
    assert (effect.producer_id, effect.producer_epoch) == (100, 32_767)
    assert scene.end((100, 32_766), version=2) == ("NONE", producer_id, 0), "a retry"
    assert scene.add((producer_id, 0), P0) == ["NONE"]


def test_a_transaction_that_takes_too_long_is_aborted(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0)
    assert scene.coordinator.next_deadline() == 61_000
    scene.now_ms = 30_000
    scene.add(producer, P1)
    assert scene.coordinator.next_deadline() == 61_000, "it counts from the begin"
    scene.process(DeadlineReached())
    assert scene.state == "Ongoing"
    scene.now_ms = 61_000
    scene.process(DeadlineReached())
    assert scene.state == "PrepareAbort"
    assert scene.end(producer)[0] == "PRODUCER_FENCED"
    scene.written()
    assert scene.end(producer)[0] == "PRODUCER_FENCED"
    assert scene.end(producer, version=2)[0] == "INVALID_TXN_STATE"
    assert scene.init(producer=producer) == ("NONE", 100, 1), "it may go on"
    assert scene.init() == ("NONE", 100, 2)


def test_an_id_that_nobody_uses_is_forgotten(scene: Scene, producer: tuple[int, int]) -> None:
    assert scene.coordinator.next_deadline() == 1_000 + 7 * DAY_MS
    scene.now_ms = 1_000 + 7 * DAY_MS
    scene.process(DeadlineReached())
    assert not scene.coordinator.transactions
    assert scene.coordinator.next_deadline() is None
    assert scene.add(producer, P0) == ["INVALID_PRODUCER_ID_MAPPING"]


def test_ends_that_were_decided_are_carried_out_after_a_load(scene: Scene, producer: tuple[int, int]) -> None:
    scene.add(producer, P0)
    scene.end(producer)
    again = TransactionCoordinator()
    assert again.replay(scene.journal) == tuple(scene.markers)
    scene.written()
    assert TransactionCoordinator().replay(scene.journal) == ()


def test_late_news_of_markers_change_nothing(scene: Scene, producer: tuple[int, int]) -> None:
    for id_, epoch in ((100, 0), (100, 5), (9, 0)):
        scene.process(
            transactions.MarkersWritten(transactional_id="t", producer_id=id_, producer_epoch=epoch)
        )
    scene.process(transactions.MarkersWritten(transactional_id="no", producer_id=100, producer_epoch=0))
    assert scene.state == "Empty"
