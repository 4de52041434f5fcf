from __future__ import annotations

from collections.abc import Mapping

import pytest

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.groups import check_commit
from fencepost.coordinator.epoch_groups import check_fetch_epoch
from fencepost.coordinator.offsets.commit import (
    code_of,
    commit,
    fence_without_members,
    not_recorded,
    rejected,
    that_count,
)
from fencepost.coordinator.offsets.delete import delete
from fencepost.coordinator.offsets.expiry import expired, of_deleted_topics
from fencepost.coordinator.offsets.fetch import FetchFence, fetch
from fencepost.coordinator.offsets.store import OffsetStore, tombstones
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionFence,
)
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Record,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage

IMAGE = TopicsImage.of(
    [Topic(topic_id="id-x", name="x", partitions=3), Topic(topic_id="id-y", name="y", partitions=1)]
)
X0, X1, X2, Y0 = (TopicPartition(*pair) for pair in [("x", 0), ("x", 1), ("x", 2), ("y", 0)])
NOW = 1_000_000
LARGE = ErrorCode.OFFSET_METADATA_TOO_LARGE


def refusing(code: ErrorCode) -> ProtocolError:
    return ProtocolError(code, "no")


def anyone(request: OffsetCommitRequest) -> PartitionFence | None:
    return None


def apply(store: OffsetStore, outcome: Outcome) -> Outcome:
    for record in outcome.records:
        assert isinstance(record.key, OffsetCommitKey)
        assert record.value is None or isinstance(record.value, OffsetCommitValue)
        store.apply(record.key, record.value)
    return outcome


def committing(offsets: Mapping[TopicPartition, int], **fields: object) -> OffsetCommitRequest:
    positions = {partition: OffsetAndMetadata(offset=offset) for partition, offset in offsets.items()}
    return OffsetCommitRequest(**{"group_id": "g", "offsets": positions, **fields})


def run(request: OffsetCommitRequest, fence: object = anyone, limit: int = 4096) -> Outcome:
    return commit(request, image=IMAGE, fence=fence, metadata_max_bytes=limit, now_ms=NOW)


def errors(outcome: Outcome) -> dict[TopicPartition, ErrorCode]:
    assert isinstance(outcome.reply, OffsetCommitResponse | OffsetDeleteResponse)
    return dict(outcome.reply.errors)


def stored(*offsets: tuple[TopicPartition, int], group: str = "g", age_ms: int = 0) -> OffsetStore:
    store = OffsetStore()
    for partition, offset in offsets:
        put(store, partition, offset, group=group, commit_timestamp_ms=NOW - age_ms)
    return store


def put(
    store: OffsetStore, partition: TopicPartition, offset: int, *, group: str = "g", **fields: object
) -> None:
    topic = IMAGE.by_name.get(partition.topic)
    value = {
        "offset": offset,
        "leader_epoch": -1,
        "metadata": "",
        "commit_timestamp_ms": NOW,
        "topic_id": None if topic is None else topic.topic_id,
    }
    store.apply(
        OffsetCommitKey(group, partition.topic, partition.partition), OffsetCommitValue(**{**value, **fields})
    )


class TestCommit:
    def test_each_partition_is_one_record(self) -> None:
        position = OffsetAndMetadata(offset=5, leader_epoch=2, metadata="m")
        outcome = run(OffsetCommitRequest(group_id="g", offsets={X1: position, Y0: position}))
        value = OffsetCommitValue(
            offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=NOW, topic_id="id-x"
        )
        assert outcome.records[0] == Record(OffsetCommitKey("g", "x", 1), value)
        assert outcome.records[1].key == OffsetCommitKey("g", "y", 0)
        assert errors(outcome) == {X1: ErrorCode.NONE, Y0: ErrorCode.NONE}

    def test_a_retention_of_the_request_sets_the_time_of_expiry(self) -> None:
        record = run(committing({X0: 1}, retention_time_ms=500, api_version=4)).records[0]
        assert isinstance(record.value, OffsetCommitValue)
        assert record.value.expire_timestamp_ms == NOW + 500

    def test_what_does_not_exist_fails_alone_and_keeps_its_place(self) -> None:
        gone, beyond, below = TopicPartition("z", 0), TopicPartition("x", 3), TopicPartition("x", -1)
        outcome = run(committing({gone: 1, X0: 1, beyond: 1, below: 1}))
        assert list(errors(outcome).items()) == [
            (gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (X0, ErrorCode.NONE),
            (beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (below, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [record.key for record in outcome.records] == [OffsetCommitKey("g", "x", 0)]

    @pytest.mark.parametrize(("topic", "stated"), [("x", "id-of-older-x"), ("z", "id-z")])
    def test_an_id_that_is_not_the_topics_fails_alone(self, topic: str, stated: str) -> None:
        partition = TopicPartition(topic, 0)
        outcome = run(committing({partition: 1, Y0: 1}, topic_ids={topic: stated, "y": "id-y"}))
        assert errors(outcome) == {partition: ErrorCode.UNKNOWN_TOPIC_ID, Y0: ErrorCode.NONE}

    def test_the_group_is_not_asked_when_no_partition_exists(self) -> None:
        def nobody(request: OffsetCommitRequest) -> PartitionFence | None:
            raise refusing(ErrorCode.STALE_MEMBER_EPOCH)

        gone = TopicPartition("z", 0)
        assert errors(run(committing({gone: 1}), nobody)) == {gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def test_a_refused_member_refuses_all_that_exists(self) -> None:
        def nobody(request: OffsetCommitRequest) -> PartitionFence | None:
            raise refusing(ErrorCode.STALE_MEMBER_EPOCH)

        gone = TopicPartition("z", 0)
        outcome = run(committing({X0: 1, gone: 1, Y0: 1}), nobody)
        stale = ErrorCode.STALE_MEMBER_EPOCH
        assert errors(outcome) == {X0: stale, gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Y0: stale}
        assert outcome.records == ()

    def test_one_refused_partition_refuses_the_request(self) -> None:
        seen = []

        def only_x(topic_id: str, partition: int) -> None:
            seen.append((topic_id, partition))
            if topic_id != "id-x":
                raise refusing(ErrorCode.STALE_MEMBER_EPOCH)

        outcome = run(committing({X0: 1, Y0: 1, X1: 1}), lambda request: only_x)
        assert set(errors(outcome).values()) == {ErrorCode.STALE_MEMBER_EPOCH}
        assert outcome.records == ()
        assert seen == [("id-x", 0), ("id-y", 0)]

    def test_metadata_that_is_too_large_fails_alone(self) -> None:
        def position(metadata: str) -> OffsetAndMetadata:
            return OffsetAndMetadata(offset=1, metadata=metadata)

        offsets = {X0: position("aaa"), X1: position("aaaa"), X2: position("a\N{GRINNING FACE}a")}
        outcome = run(OffsetCommitRequest(group_id="g", offsets=offsets), limit=3)
        assert errors(outcome) == {X0: ErrorCode.NONE, X1: LARGE, X2: LARGE}
        assert len(outcome.records) == 1

    def test_metadata_that_is_too_large_fails_before_its_partition_is_fenced(self) -> None:
        """A partition that is not written anyway refuses nobody (OffsetMetadataManager.commitOffset)."""

        def only_x(topic_id: str, partition: int) -> None:
            if topic_id != "id-x":
                raise refusing(ErrorCode.STALE_MEMBER_EPOCH)

        offsets = {X0: OffsetAndMetadata(offset=1), Y0: OffsetAndMetadata(offset=1, metadata="aaaa")}
        request = OffsetCommitRequest(group_id="g", offsets=offsets)
        outcome = run(request, lambda asked: only_x, limit=3)
        assert errors(outcome) == {X0: ErrorCode.NONE, Y0: LARGE}
        assert [record.key for record in outcome.records] == [OffsetCommitKey("g", "x", 0)]

    def test_a_refused_member_is_refused_whatever_its_metadata(self) -> None:
        def nobody(request: OffsetCommitRequest) -> PartitionFence | None:
            raise refusing(ErrorCode.UNKNOWN_MEMBER_ID)

        offsets = {X0: OffsetAndMetadata(offset=1, metadata="aaaa")}
        outcome = run(OffsetCommitRequest(group_id="g", offsets=offsets), nobody, limit=3)
        assert errors(outcome) == {X0: ErrorCode.UNKNOWN_MEMBER_ID}

    def test_a_failed_request_answers_each_partition(self) -> None:
        reply = rejected(committing({X0: 1, Y0: 1}), ErrorCode.NOT_COORDINATOR)
        assert reply.errors == dict.fromkeys([X0, Y0], ErrorCode.NOT_COORDINATOR)

    def test_what_does_not_exist_is_told_whether_or_not_the_rest_was_appended(self) -> None:
        missing = TopicPartition("x", 9)
        outcome = run(committing({X0: 1, missing: 1}), lambda asked: None)
        reply = not_recorded(outcome.reply, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert reply.errors == {
            X0: ErrorCode.COORDINATOR_NOT_AVAILABLE,
            missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


class TestRepeatedPartitions:
    """As Kafka 4.3.1 answers requests that name partitions more than once."""

    @pytest.mark.parametrize(
        ("texts", "counts", "codes"),
        [
            (("a", "aaaa"), 0, (ErrorCode.NONE, LARGE)),
            (("aaaa", "a"), 1, (LARGE, ErrorCode.NONE)),
            (("a", "b"), 1, (ErrorCode.NONE, ErrorCode.NONE)),
            (("aaaa", "bbbb"), 1, (LARGE, LARGE)),
            (("aaaa", "a", "bbbb"), 1, (LARGE, ErrorCode.NONE, LARGE)),
        ],
    )
    def test_the_last_one_that_is_not_too_large_counts(
        self, texts: tuple[str, ...], counts: int, codes: tuple[ErrorCode, ...]
    ) -> None:
        positions = [OffsetAndMetadata(offset=number, metadata=text) for number, text in enumerate(texts)]
        chosen = that_count([(X0, one) for one in positions], 3)
        assert chosen == {X0: positions[counts]}
        answered = errors(run(OffsetCommitRequest(group_id="g", offsets=chosen), limit=3))[X0]
        assert tuple(code_of(one, answered, 3) for one in positions) == codes

    def test_what_refuses_the_request_refuses_each_position(self) -> None:
        position = OffsetAndMetadata(offset=1, metadata="aaaa")
        assert code_of(position, ErrorCode.UNKNOWN_MEMBER_ID, 3) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_each_partition_keeps_its_place(self) -> None:
        one, other = OffsetAndMetadata(offset=1), OffsetAndMetadata(offset=2)
        assert list(that_count([(X1, one), (X0, one), (X1, other)], 3)) == [X1, X0]


class TestCommitWithoutMembers:
    @pytest.mark.parametrize("exists", [True, False])
    def test_without_an_epoch_anyone_may(self, exists: bool) -> None:
        assert fence_without_members(committing({X0: 1}), group_exists=exists) is None

    @pytest.mark.parametrize(
        ("exists", "version", "code"),
        [
            (False, 9, ErrorCode.GROUP_ID_NOT_FOUND),
            (False, 8, ErrorCode.ILLEGAL_GENERATION),
            (True, 9, ErrorCode.UNKNOWN_MEMBER_ID),
            (True, 8, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_an_epoch_needs_a_member(self, exists: bool, version: int, code: ErrorCode) -> None:
        request = committing({X0: 1}, member_id="m", member_epoch=3, api_version=version)
        outcome = run(request, lambda asked: fence_without_members(asked, group_exists=exists))
        assert errors(outcome) == {X0: code}


def group_with_member(epoch: int) -> ConsumerGroup:
    """A member "m" that holds x-0 since epoch 2, gives x-1 back, which it holds since 4, and no more."""
    group = ConsumerGroup("g")
    said = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="h",
        subscribed_topic_names=("x",),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=1,
        server_assignor=None,
    )
    group.apply_member_metadata(ConsumerGroupMemberMetadataKey("g", "m"), said)
    current = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=1,
        assigned={"id-x": (0,)},
        pending_revocation={"id-x": (1,)},
        assignment_epochs={"id-x": {0: 2, 1: 4}},
    )
    group.apply_current_assignment(ConsumerGroupCurrentMemberAssignmentKey("g", "m"), current)
    return group


class TestFencing:
    """The rules of a consumer group, through its own fences."""

    @pytest.mark.parametrize(
        ("partitions", "epoch", "code"),
        [
            ((X0, X2), 5, ErrorCode.NONE),
            ((X0,), 6, ErrorCode.STALE_MEMBER_EPOCH),
            ((X0,), 4, ErrorCode.NONE),
            ((X0,), 2, ErrorCode.NONE),
            ((X0,), 1, ErrorCode.STALE_MEMBER_EPOCH),
            ((X1,), 4, ErrorCode.NONE),
            ((X1,), 3, ErrorCode.STALE_MEMBER_EPOCH),
            ((X2,), 4, ErrorCode.STALE_MEMBER_EPOCH),
            ((X0, X1), 3, ErrorCode.STALE_MEMBER_EPOCH),
            ((X0, X1), 4, ErrorCode.NONE),
        ],
    )
    def test_an_older_epoch_commits_what_it_held_then(
        self, partitions: tuple[TopicPartition, ...], epoch: int, code: ErrorCode
    ) -> None:
        group = group_with_member(5)
        request = committing(dict.fromkeys(partitions, 1), member_id="m", member_epoch=epoch)
        outcome = run(request, lambda asked: check_commit(group, asked))
        assert set(errors(outcome).values()) == {code}
        assert len(outcome.records) == (len(partitions) if code is ErrorCode.NONE else 0)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"member_id": "other", "member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"member_id": "m", "member_epoch": 5, "api_version": 8}, ErrorCode.UNSUPPORTED_VERSION),
            ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_who_may_not_commit(self, fields: dict[str, object], code: ErrorCode) -> None:
        group = group_with_member(5)
        outcome = run(committing({X0: 1}, **fields), lambda asked: check_commit(group, asked))
        assert errors(outcome) == {X0: code}

    def test_a_static_member_that_is_away_commits_nothing(self) -> None:
        group = group_with_member(-2)
        request = committing({X0: 1}, member_id="m", member_epoch=5)
        outcome = run(request, lambda asked: check_commit(group, asked))
        assert errors(outcome) == {X0: ErrorCode.STALE_MEMBER_EPOCH}

    def test_without_members_an_administrator_may_commit(self) -> None:
        group = ConsumerGroup("g")
        assert len(run(committing({X0: 1}), lambda asked: check_commit(group, asked)).records) == 1


def fetching(store: OffsetStore, fence: FetchFence | None = None, **fields: object) -> OffsetFetchResponse:
    request = OffsetFetchRequest(**{"group_id": "g", **fields})
    outcome = fetch(request, store, image=IMAGE, fence=fence)
    assert outcome.records == ()
    assert isinstance(outcome.reply, OffsetFetchResponse)
    return outcome.reply


class TestFetch:
    def test_what_was_committed_is_read(self) -> None:
        store = OffsetStore()
        offsets = {X0: OffsetAndMetadata(offset=7, leader_epoch=3, metadata="m")}
        apply(store, run(OffsetCommitRequest(group_id="g", offsets=offsets)))
        assert fetching(store, partitions=(X0,)).offsets == offsets

    def test_a_partition_without_an_offset_has_minus_one(self) -> None:
        unknown = TopicPartition("z", 0)
        reply = fetching(stored((X0, 7)), partitions=(X1, unknown))
        assert [(p, o.offset, o.leader_epoch, o.metadata) for p, o in reply.offsets.items()] == [
            (X1, -1, -1, ""),
            (unknown, -1, -1, ""),
        ]

    def test_a_missing_group_has_no_offsets_and_no_error(self) -> None:
        assert fetching(OffsetStore()) == OffsetFetchResponse(group_id="g")
        assert fetching(OffsetStore(), partitions=(X0,)).offsets[X0].offset == -1

    def test_all_offsets_come_sorted_whatever_their_order(self) -> None:
        store = stored((Y0, 3), (X1, 2), (X0, 1))
        put(store, X2, 9, group="other")
        assert [(p, o.offset) for p, o in fetching(store).offsets.items()] == [(X0, 1), (X1, 2), (Y0, 3)]

    def test_an_offset_of_an_older_topic_of_that_name_is_none(self) -> None:
        store = stored((Y0, 3))
        put(store, X0, 7, topic_id="id-of-older-x")
        put(store, X1, 8, topic_id=None)
        assert [fetching(store, partitions=(p,)).offsets[p].offset for p in (X0, X1)] == [-1, 8]
        assert list(fetching(store).offsets) == [X1, Y0]

    def test_stable_offsets_are_the_committed_ones(self) -> None:
        assert fetching(stored((X0, 7)), partitions=(X0,), require_stable=True).offsets[X0].offset == 7

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({}, ErrorCode.NONE),
            ({"member_id": "m", "member_epoch": 5}, ErrorCode.NONE),
            ({"member_id": "m", "member_epoch": 4}, ErrorCode.STALE_MEMBER_EPOCH),
            ({"member_id": "m", "member_epoch": 6}, ErrorCode.STALE_MEMBER_EPOCH),
            ({"member_id": "m"}, ErrorCode.STALE_MEMBER_EPOCH),
            ({"member_id": "other", "member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_a_member_reads_at_its_epoch_only(self, fields: dict[str, object], code: ErrorCode) -> None:
        group = group_with_member(5)
        reply = fetching(
            stored((X0, 7)), lambda asked: check_fetch_epoch(group, asked), partitions=(X0,), **fields
        )
        assert reply.error_code == code
        assert list(reply.offsets) == ([X0] if code is ErrorCode.NONE else [])


def deleting(store: OffsetStore, *partitions: TopicPartition, exists: bool = True) -> Outcome:
    request = OffsetDeleteRequest(group_id="g", partitions=partitions)
    return delete(request, store, image=IMAGE, group_exists=exists, is_subscribed=lambda topic: topic == "y")


class TestDelete:
    def test_a_topic_that_members_subscribe_to_is_kept(self) -> None:
        store = stored((X0, 1), (Y0, 2))
        outcome = apply(store, deleting(store, X0, Y0))
        assert errors(outcome) == {X0: ErrorCode.NONE, Y0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert [partition for partition, _ in store.committed("g")] == [Y0]

    def test_a_partition_without_an_offset_writes_nothing(self) -> None:
        outcome = deleting(stored((X0, 1)), X1)
        assert errors(outcome) == {X1: ErrorCode.NONE}
        assert outcome.records == ()

    def test_a_partition_named_twice_is_deleted_once(self) -> None:
        assert len(deleting(stored((X0, 1)), X0, X0).records) == 1

    @pytest.mark.parametrize("partition", [TopicPartition(*each) for each in (("z", 0), ("x", 3), ("x", -1))])
    def test_what_does_not_exist_is_named(self, partition: TopicPartition) -> None:
        outcome = deleting(stored((X0, 1)), partition)
        assert errors(outcome) == {partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    def test_a_group_that_neither_exists_nor_has_offsets_is_not_found(self) -> None:
        reply = deleting(OffsetStore(), X0, exists=False).reply
        assert reply == OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)

    def test_offsets_alone_are_a_group(self) -> None:
        assert errors(deleting(stored((X0, 1)), X0, exists=False)) == {X0: ErrorCode.NONE}

    def test_all_offsets_go_with_their_group(self) -> None:
        store = stored((Y0, 1), (X0, 2))
        put(store, X0, 3, group="other")
        apply(store, Outcome(tombstones(store, "g")))
        assert (dict(store.topics("g")), set(store.topics("other"))) == ({}, {"x"})


def due(store: OffsetStore, subscribed: str = "", retention_ms: int = 100) -> list[object]:
    records = expired(
        store,
        "g",
        is_subscribed=lambda topic: topic in subscribed,
        retention_ms=retention_ms,
        now_ms=NOW,
    )
    assert all(record.value is None for record in records)
    return [record.key for record in records]


class TestExpiry:
    @pytest.mark.parametrize(("age_ms", "left"), [(99, True), (100, False), (101, False)])
    def test_an_offset_expires_when_its_retention_is_over(self, age_ms: int, left: bool) -> None:
        keys = due(stored((X0, 1), age_ms=age_ms))
        assert keys == ([] if left else [OffsetCommitKey("g", "x", 0)])

    def test_a_topic_with_a_subscriber_never_expires(self) -> None:
        assert due(stored((X0, 1), (Y0, 1), age_ms=10**6), "x") == [OffsetCommitKey("g", "y", 0)]

    def test_an_offset_with_a_time_of_its_own_expires_then(self) -> None:
        store = stored((X2, 1), age_ms=100)
        put(store, X0, 1, commit_timestamp_ms=0, expire_timestamp_ms=NOW + 1)
        put(store, X1, 1, commit_timestamp_ms=NOW, expire_timestamp_ms=NOW)
        assert due(store) == [OffsetCommitKey("g", "x", 1), OffsetCommitKey("g", "x", 2)]

    def test_a_group_without_offsets_has_none_to_expire(self) -> None:
        assert due(OffsetStore()) == []

    def test_offsets_of_a_deleted_topic_go_in_every_group(self) -> None:
        store = stored((X0, 1), (Y0, 1))
        put(store, X1, 1, group="other")
        keys = [record.key for record in of_deleted_topics(store, IMAGE, IMAGE.without("x"))]
        assert keys == [OffsetCommitKey("g", "x", 0), OffsetCommitKey("other", "x", 1)]

    def test_a_topic_that_was_created_again_keeps_its_new_offsets(self) -> None:
        store = stored((X0, 1))
        put(store, X1, 1, topic_id="id-of-newer-x")
        put(store, X2, 1, topic_id=None)
        after = IMAGE.with_topic(Topic(topic_id="id-of-newer-x", name="x", partitions=3))
        keys = [record.key for record in of_deleted_topics(store, IMAGE, after)]
        assert keys == [OffsetCommitKey("g", "x", 0), OffsetCommitKey("g", "x", 2)]

    def test_a_topic_that_grows_loses_nothing(self) -> None:
        after = IMAGE.with_topic(Topic(topic_id="id-x", name="x", partitions=9))
        assert of_deleted_topics(stored((X0, 1)), IMAGE, after) == ()


class TestStore:
    def test_the_newest_offset_counts(self) -> None:
        store = stored((X0, 1), (X0, 2))
        assert store.get("g", X0) is not None
        assert [value.offset for _, value in store.committed("g")] == [2]

    def test_a_tombstone_of_what_is_not_there_is_accepted(self) -> None:
        store = stored((X0, 1))
        for key in (OffsetCommitKey("g", "x", 1), OffsetCommitKey("g", "z", 0), OffsetCommitKey("h", "x", 0)):
            store.apply(key, None)
        assert store == stored((X0, 1))

    def test_nothing_is_left_of_a_group_without_offsets(self) -> None:
        store = stored((X0, 1), (X1, 1))
        for partition in (X0, X1):
            assert "g" in store
            store.apply(OffsetCommitKey("g", "x", partition.partition), None)
        assert store == OffsetStore()
        assert store.topics("g") == {}

    @pytest.mark.parametrize("has_group", [True, False])
    def test_only_a_simple_group_is_known_without_offsets(self, has_group: bool) -> None:
        store = OffsetStore(lambda group_id: has_group)
        put(store, X0, 1)
        store.apply(OffsetCommitKey("g", "x", 0), None)
        assert ("g" in store) is not has_group
        assert store.group_ids == (() if has_group else ("g",))
