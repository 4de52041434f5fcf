"""What producers with a transactional id may write. Real sockets on a real loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from tests.batches import batch
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested

pytestmark = pytest.mark.real

Produce = Callable[..., Awaitable[ErrorCode]]


async def init(wire: Wire, name: str) -> int:
    reply = await wire.ask(22, 4, transactional_id=name, transaction_timeout=milliseconds(60_000))
    assert reply.error_code.name == "none"
    return int(reply.producer_id)


@pytest.fixture
async def producer(wire: Wire) -> int:
    """The producer of the transactional id "own"."""
    await init(wire, "other")
    return await init(wire, "own")


@pytest.fixture
def produce(wire: Wire, producer: int) -> Produce:
    """Writes as that producer, to one topic or several; the code of the last one."""

    async def produce(
        sequence: int,
        name: str | None = "own",
        *,
        epoch: int = 0,
        version: int = 12,
        acks: int = -1,
        topics: tuple[str, ...] = ("orders",),
        records: bytes | None = None,
    ) -> ErrorCode:
        sent = records or batch(b"a", producer=(producer, epoch, sequence), transactional=True)
        one = nested(0, version, "PartitionProduceData", index=0, records=sent)
        reply = await wire.ask(
            *(0, version),
            transactional_id=name,
            acks=acks,
            timeout=milliseconds(1000),
            topic_data=tuple(
                nested(0, version, "TopicProduceData", name=topic, partition_data=(one,)) for topic in topics
            ),
        )
        return ErrorCode(int(reply.responses[-1].partition_responses[0].error_code))

    return produce


async def end(wire: Wire, producer: int, *, commit: bool) -> ErrorCode:
    reply = await wire.ask(
        26, 5, transactional_id="own", producer_id=producer, producer_epoch=0, committed=commit
    )
    return ErrorCode(int(reply.error_code))


async def test_without_a_transactional_id_nothing_of_a_request_is_stored(broker, produce):
    assert await produce(0) is ErrorCode.NONE
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await produce(1, None) is refused
    assert await produce(1, None, topics=("nowhere", "orders")) is refused
    assert await produce(1, None, topics=("orders", "nowhere")) is refused
    assert broker.cluster.log(broker.cluster.image.by_name["orders"], 0).high_watermark == 1


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_a_new_producer_begins_at_0(produce, version, code):
    assert await produce(3, version=version) is code
    assert await produce(0) is ErrorCode.NONE


@pytest.mark.parametrize("name", ["own", "other", "unknown"])
async def test_an_old_epoch_is_refused_whatever_the_transactional_id(wire, producer, produce, name):
    assert await produce(0) is ErrorCode.NONE
    assert await end(wire, producer, commit=True) is ErrorCode.NONE
    assert await produce(1, name) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await produce(0, epoch=1) is ErrorCode.NONE


async def test_what_is_refused_may_have_begun_a_transaction(wire, producer, produce):
    """As in Kafka, where the coordinator hears of a batch before its records are looked at."""
    damaged = batch(b"a", producer=(producer, 0, 0), transactional=True)[:-1] + b"!"
    assert await end(wire, producer, commit=True) is ErrorCode.INVALID_TXN_STATE
    assert await produce(0, records=damaged) is ErrorCode.CORRUPT_MESSAGE
    assert await produce(0, acks=7) is ErrorCode.INVALID_REQUIRED_ACKS
    assert await end(wire, producer, commit=True) is ErrorCode.NONE


async def test_who_may_write_is_asked_before_how_it_is_acknowledged(produce):
    assert await produce(0, "other", acks=7) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
