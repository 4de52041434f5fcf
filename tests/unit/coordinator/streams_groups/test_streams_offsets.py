"""Who may commit, fetch and delete offsets of a streams group: its members, as far as their epochs reach."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)


def commit(scene, member_id, epoch, *partitions, topic="in", **fields):
    """The names of the codes that a commit gets, one for each partition."""
    offset = OffsetAndMetadata(offset=7)
    offsets = {TopicPartition(topic, partition): offset for partition in partitions}
    request = OffsetCommitRequest(
        group_id="app", member_id=member_id, member_epoch=epoch, offsets=offsets, **fields
    )
    return [code.name for code in scene.process(request).reply.errors.values()]


@pytest.fixture
def shared(scene):
    """`a` has tasks 0 and 1 since epoch 2 and 4 since epoch 4, `b` 2 and 3 since epoch 3; both are at 4."""
    scene.topics(**{"in": 4}, other=1)
    scene.join("a")
    scene.join("b")
    scene.settle("a", "b")
    scene.topics(**{"in": 5}, other=1)
    scene.settle("a", "b")
    epochs = [(member.member_epoch, member.assignment_epochs) for member in scene.group.members.values()]
    assert epochs == [(4, {"0": {0: 2, 1: 2, 4: 4}}), (4, {"0": {2: 3, 3: 3}})]
    return scene


class TestCommits:
    def test_the_present_epoch_commits_for_any_partition(self, shared):
        assert commit(shared, "a", 4, 0, 1, 2, 3) == ["NONE"] * 4
        assert commit(shared, "a", 4, 0, topic="other") == ["NONE"]

    @pytest.mark.parametrize(
        ("member_id", "epoch", "good"),
        [("a", 2, {0, 1}), ("a", 3, {0, 1}), ("a", 1, set()), ("b", 3, {2, 3}), ("b", 2, set())],
    )
    def test_an_older_one_commits_for_tasks_that_the_member_has_had_since(
        self, shared, member_id, epoch, good
    ):
        for partition in range(5):
            code = "NONE" if partition in good else "STALE_MEMBER_EPOCH"
            assert commit(shared, member_id, epoch, partition) == [code]

    def test_one_partition_that_it_may_not_commit_for_refuses_all(self, shared):
        assert commit(shared, "a", 2, 0, 4) == ["STALE_MEMBER_EPOCH"] * 2

    def test_a_task_that_is_to_be_given_up_is_still_the_member_s(self, scene):
        scene.join("a")
        scene.join("b")
        scene.beat("a", 2)
        assert commit(scene, "a", 2, 0, 1, 2, 3) == ["NONE"] * 4

    def test_an_older_one_does_not_for_topics_outside_of_the_topology(self, shared):
        assert commit(shared, "a", 2, 0, topic="other") == ["STALE_MEMBER_EPOCH"]

    def test_one_that_the_member_has_not_reached_is_stale(self, shared):
        assert commit(shared, "a", 5, 0) == ["STALE_MEMBER_EPOCH"]

    def test_strangers_do_not_commit(self, shared):
        assert commit(shared, "x", 4, 0) == ["UNKNOWN_MEMBER_ID"]
        assert commit(shared, "", -1, 0) == ["UNKNOWN_MEMBER_ID"]

    def test_anybody_does_while_the_group_has_no_members(self, scene):
        scene.join("a")
        assert commit(scene, "", -1, 0) == ["UNKNOWN_MEMBER_ID"]
        scene.beat("a", -1)
        assert commit(scene, "", -1, 0) == ["NONE"]
        assert commit(scene, "a", 2, 0) == ["UNKNOWN_MEMBER_ID"]

    def test_a_request_from_before_member_epochs_is_refused(self, shared):
        assert commit(shared, "a", 4, 0, api_version=8) == ["UNSUPPORTED_VERSION"]

    def test_a_transaction_of_nobody_is_not_fenced_and_one_of_a_member_is(self, shared):
        assert commit(shared, "", -1, 0, producer_id=1) == ["NONE"]
        assert commit(shared, "a", 4, 0, producer_id=1, api_version=3) == ["NONE"]
        assert commit(shared, "a", 1, 0, producer_id=1, api_version=3) == ["STALE_MEMBER_EPOCH"]


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("a", 4, ErrorCode.NONE),
        ("a", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 5, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 4, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 4, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, -1, ErrorCode.NONE),
    ],
)
def test_a_member_fetches_at_its_present_epoch_only(shared, member_id, epoch, code):
    request = OffsetFetchRequest(group_id="app", member_id=member_id, member_epoch=epoch)
    assert shared.process(request).reply.error_code is code


def test_offsets_of_topics_that_the_application_reads_are_not_deleted(shared):
    assert commit(shared, "a", 4, 0) == ["NONE"]
    assert commit(shared, "a", 4, 0, topic="other") == ["NONE"]
    read, other = TopicPartition("in", 0), TopicPartition("other", 0)
    request = OffsetDeleteRequest(group_id="app", partitions=(read, other))
    assert shared.process(request).reply.errors == {
        read: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        other: ErrorCode.NONE,
    }
    shared.beat("a", -1)
    shared.beat("b", -1)
    assert shared.process(request).reply.errors[read] is ErrorCode.NONE
