"""Which transactional id a commit in a transaction needs. Real sockets on a real loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested

pytestmark = pytest.mark.real

Commit = Callable[..., Awaitable[ErrorCode]]


@pytest.fixture
async def commit(wire: Wire) -> Commit:
    """Commits as the producer of "own"; there is another one, of "other"."""
    producers = {
        name: (await wire.ask(22, 4, transactional_id=name, transaction_timeout=milliseconds(60_000)))
        for name in ("own", "other")
    }
    producer_id = producers["own"].producer_id

    async def commit(name: str, *, epoch: int = 0, version: int = 5, group: str = "g") -> ErrorCode:
        one = nested(
            *(28, version, "TxnOffsetCommitRequestPartition"),
            partition_index=0,
            committed_offset=3,
            committed_metadata="",
        )
        topic = nested(28, version, "TxnOffsetCommitRequestTopic", name="orders", partitions=(one,))
        reply = await wire.ask(
            *(28, version),
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
            topics=(topic,),
        )
        return ErrorCode(int(reply.topics[0].partitions[0].error_code))

    return commit


@pytest.mark.parametrize("name", ["other", "unknown"])
async def test_another_id_commits_what_the_producers_transaction_has_offsets_of(commit, name):
    assert await commit(name) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await commit("own") is ErrorCode.NONE
    assert await commit(name) is ErrorCode.NONE
    assert await commit(name, group="another group") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_another_id_commits_at_the_epoch_of_the_transaction(commit):
    assert await commit("own") is ErrorCode.NONE
    assert await commit("other", epoch=-1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await commit("other", epoch=1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_a_group_that_was_not_added_is_refused_as_the_client_knows_it(commit, version, code):
    assert await commit("own", version=version) is code
