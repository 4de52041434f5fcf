"""Offsets in transactions: when they count, and who may commit them (KIP-447)."""

from __future__ import annotations

from fencepost.coordinator.protocol import offsets
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.transactions import TransactionEnded

GROUP = "g"
X0, X1 = TopicPartition("x", 0), TopicPartition("x", 1)


def commit(scene, offset: int, *partitions: TopicPartition, producer: int = -1, **fields) -> list[str]:
    request = offsets.OffsetCommitRequest(
        group_id=GROUP,
        offsets=dict.fromkeys(partitions or (X0,), offsets.OffsetAndMetadata(offset=offset)),
        producer_id=producer,
        **fields,
    )
    return [code.name for code in scene.process(request).reply.errors.values()]


def fetch(scene, *, stable: bool = True) -> dict[int, int | None]:
    """Offsets by partition; None where it is unstable."""
    request = offsets.OffsetFetchRequest(group_id=GROUP, partitions=(X0, X1), require_stable=stable)
    reply = scene.process(request).reply
    return {
        one.partition: None if one in reply.unstable else position.offset
        for one, position in reply.offsets.items()
    }


def end(scene, producer: int, *, done: bool) -> None:
    scene.process(TransactionEnded(group_id=GROUP, producer_id=producer, commit=done))
    scene.reload()


def test_offsets_count_once_the_transaction_is_committed(scene):
    commit(scene, 3, X0)
    assert commit(scene, 10, X0, X1, producer=7) == ["NONE", "NONE"]
    scene.reload(compact=True)
    assert fetch(scene) == {0: None, 1: None}
    assert fetch(scene, stable=False) == {0: 3, 1: -1}
    end(scene, 8, done=True)
    assert fetch(scene) == {0: None, 1: None}
    end(scene, 7, done=True)
    assert fetch(scene) == {0: 10, 1: 10}
    end(scene, 7, done=True)
    assert not scene.last.records


def test_an_abort_leaves_things_as_they_were(scene):
    commit(scene, 3, X0)
    commit(scene, 10, X0, X1, producer=7)
    end(scene, 7, done=False)
    assert fetch(scene) == {0: 3, 1: -1}


def test_the_newest_of_a_transaction_counts(scene):
    commit(scene, 5, producer=7)
    commit(scene, 6, producer=7)
    end(scene, 7, done=True)
    assert fetch(scene)[0] == 6


def test_what_was_committed_later_without_a_transaction_stays(scene):
    commit(scene, 5, X0, X1, producer=7)
    commit(scene, 9, X0)
    scene.reload(compact=True)
    end(scene, 7, done=True)
    assert fetch(scene) == {0: 9, 1: 5}


def test_what_the_transaction_commits_after_that_counts_again(scene):
    commit(scene, 5, producer=7)
    commit(scene, 9)
    commit(scene, 6, producer=7)
    end(scene, 7, done=True)
    assert fetch(scene)[0] == 6


def test_offsets_that_are_not_deleted_leave_those_of_transactions(scene):
    commit(scene, 10, producer=7)
    scene.join("m")
    request = offsets.OffsetDeleteRequest(group_id=GROUP, partitions=(X0,))
    assert scene.process(request).reply.errors == {X0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    end(scene, 7, done=True)
    assert fetch(scene)[0] == 10


def test_transactions_of_several_producers_are_apart(scene):
    commit(scene, 5, X0, producer=7)
    commit(scene, 6, X1, producer=8)
    end(scene, 8, done=True)
    assert fetch(scene) == {0: None, 1: 6}


def test_a_producer_that_names_no_member_is_not_fenced(scene):
    scene.join("m")
    epoch = scene.member("m").member_epoch
    assert commit(scene, 5, producer=7) == ["NONE"]
    assert commit(scene, 5) == ["UNKNOWN_MEMBER_ID"]
    assert commit(scene, 5, producer=7, member_id="m", member_epoch=epoch) == ["NONE"]
    assert commit(scene, 5, producer=7, member_id="m", member_epoch=epoch + 1) == ["STALE_MEMBER_EPOCH"]
    assert commit(scene, 5, producer=7, member_id="gone", member_epoch=epoch) == ["UNKNOWN_MEMBER_ID"]
    assert commit(scene, 5, producer=7, instance_id="i") == ["UNKNOWN_MEMBER_ID"]


def test_deleted_offsets_take_those_of_transactions_along(scene):
    commit(scene, 3, X0, X1)
    commit(scene, 10, X0, X1, producer=7)
    scene.process(offsets.OffsetDeleteRequest(group_id=GROUP, partitions=(X0,)))
    end(scene, 7, done=True)
    assert fetch(scene) == {0: -1, 1: 10}


def test_deleted_topics_take_offsets_of_transactions_along(scene):
    commit(scene, 10, X0, producer=7)
    scene.topics(x=0)
    assert fetch(scene) == {0: -1, 1: -1}
    assert not [*scene.coordinator.offsets.committed(GROUP)]
    end(scene, 7, done=True)
    assert fetch(scene) == {0: -1, 1: -1}


def test_a_group_that_is_deleted_leaves_nothing(scene):
    commit(scene, 10, producer=7)
    reply = scene.process(DeleteGroupsRequest(group_id=GROUP)).reply
    assert reply.error_code is ErrorCode.NONE
    scene.reload()
    assert GROUP not in scene.coordinator.offsets
    end(scene, 7, done=True)
    assert fetch(scene) == {0: -1, 1: -1}


def test_offsets_under_an_open_transaction_do_not_expire(scene):
    commit(scene, 3, X0, X1)
    commit(scene, 10, X0, producer=7)
    scene.after(8 * 86_400_000)
    assert fetch(scene, stable=False) == {0: 3, 1: -1}
