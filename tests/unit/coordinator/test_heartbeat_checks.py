"""Which heartbeats are refused, with which error, and which check comes first."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode as E

JOIN: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ("x",)}


@pytest.mark.parametrize(
    ("member_id", "epoch", "owned", "fields"),
    [
        ("", 0, {}, JOIN),
        (" ", 1, None, {}),
        ("", 1, None, {"api_version": 0}),
        ("", -1, None, {"api_version": 0}),
        ("A", 0, {}, {**JOIN, "group_id": " "}),
        ("A", 0, {}, {**JOIN, "instance_id": ""}),
        ("A", 0, {}, {**JOIN, "rack_id": "  "}),
        ("A", 0, {}, {**JOIN, "rebalance_timeout_ms": -1}),
        ("A", 0, None, JOIN),
        ("A", 0, {"x": (0,)}, JOIN),
        ("A", 0, {}, {"rebalance_timeout_ms": 1_000}),
        ("A", -2, None, {}),
        ("A", -3, None, {"instance_id": "i"}),
    ],
)
def test_malformed_requests(scene: Any, member_id: str, epoch: int, owned: Any, fields: Any) -> None:
    assert scene.error(member_id, epoch, owned, **fields) is E.INVALID_REQUEST


def test_an_assignor_that_is_not_configured(scene: Any) -> None:
    assert scene.error("A", 0, {}, **JOIN, server_assignor="sticky") is E.UNSUPPORTED_ASSIGNOR


def test_a_malformed_request_is_refused_before_its_assignor(scene: Any) -> None:
    assert scene.error("A", 0, None, **JOIN, server_assignor="sticky") is E.INVALID_REQUEST


def test_the_protocol_may_be_switched_off(scenes: Any) -> None:
    scene = scenes(group_coordinator_rebalance_protocols=("classic",))
    assert scene.error("", 0, None) is E.UNSUPPORTED_VERSION


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_group_that_does_not_exist(scene: Any, epoch: int) -> None:
    assert scene.error("A", epoch) is E.GROUP_ID_NOT_FOUND
    assert scene.error("A", -2, instance_id="i") is E.GROUP_ID_NOT_FOUND


def test_empty_subscriptions_are_legal(scene: Any) -> None:
    assert scene.join("A", ()).assignment == {}
    assert scene.join("B", None, subscribed_topic_regex="").assignment == {}


def test_an_unknown_member(scene: Any) -> None:
    scene.join("A")
    assert scene.error("B", 1) is E.UNKNOWN_MEMBER_ID
    assert scene.error("B", -1) is E.UNKNOWN_MEMBER_ID


def test_a_full_group_is_full_for_strangers_of_any_epoch(scenes: Any) -> None:
    scene = scenes(group_consumer_max_size=2)
    scene.topics(x=4)
    scene.join("A")
    scene.join("B", instance_id="i")
    assert scene.error("C", 0, {}, **JOIN) is E.GROUP_MAX_SIZE_REACHED
    assert scene.error("C", 5) is E.GROUP_MAX_SIZE_REACHED
    assert scene.join("A").member_epoch == 3
    assert scene.error("C", 0, {}, **JOIN, instance_id="i") is E.UNRELEASED_INSTANCE_ID
    assert scene.error("C", -1) is E.UNKNOWN_MEMBER_ID


class TestEpochs:
    """What a known dynamic member may come with, once its epoch went from 2 to 3."""

    @pytest.fixture
    def moved(self, scene: Any) -> Any:
        scene.join("A")
        scene.join("B")
        scene.beat("A", 2)
        scene.beat("A", 2, {"x": (0, 1)})
        assert (scene.member("A").previous_member_epoch, scene.member("A").member_epoch) == (2, 3)
        return scene

    def test_its_epoch(self, moved: Any) -> None:
        assert moved.beat("A", 3).member_epoch == 3

    @pytest.mark.parametrize("owned", [{}, {"x": (0,)}, {"x": (0, 1)}])
    def test_the_epoch_before_with_what_is_assigned(self, moved: Any, owned: Any) -> None:
        assert moved.beat("A", 2, owned).member_epoch == 3

    @pytest.mark.parametrize("owned", [None, {"x": (0, 2)}, {"y": (0,)}])
    def test_the_epoch_before_with_nothing_or_with_more(self, moved: Any, owned: Any) -> None:
        assert moved.error("A", 2, owned) is E.FENCED_MEMBER_EPOCH

    @pytest.mark.parametrize("epoch", [1, 4, 99])
    def test_any_other_epoch(self, moved: Any, epoch: int) -> None:
        assert moved.error("A", epoch, {}) is E.FENCED_MEMBER_EPOCH

    def test_epoch_0_is_a_rejoin(self, moved: Any) -> None:
        reply = moved.join("A")
        assert (reply.member_epoch, reply.assignment) == (3, {"id-of-x": (0, 1)})

    def test_pending_revocation_is_not_owned_any_more(self, scene: Any) -> None:
        scene.join("A")
        scene.join("B")
        scene.beat("A", 2)
        scene.beat("A", 2, {"x": (0, 1)})
        scene.join("C")
        scene.join("D")
        scene.beat("A", 3)
        holds = scene.holds("A")
        assert holds[1] == "UNREVOKED_PARTITIONS"
        assert scene.error("A", 2, holds[3]) is E.FENCED_MEMBER_EPOCH


class TestInstances:
    """Static members (KIP-345, KIP-848)."""

    @pytest.fixture
    def static(self, scene: Any) -> Any:
        scene.join("A", instance_id="i")
        return scene

    @pytest.mark.parametrize("member_id", ["A", "B"])
    def test_an_instance_in_use_cannot_be_taken_even_by_its_holder(self, static: Any, member_id: str) -> None:
        assert static.error(member_id, 0, {}, **JOIN, instance_id="i") is E.UNRELEASED_INSTANCE_ID

    def test_an_unknown_instance(self, static: Any) -> None:
        assert static.error("A", 2, instance_id="j") is E.UNKNOWN_MEMBER_ID
        assert static.error("A", -2, instance_id="j") is E.UNKNOWN_MEMBER_ID
        assert static.error("A", -1, instance_id="j") is E.UNKNOWN_MEMBER_ID

    def test_an_instance_of_another_member(self, static: Any) -> None:
        assert static.error("B", 2, instance_id="i") is E.FENCED_INSTANCE_ID
        assert static.error("B", -2, instance_id="i") is E.FENCED_INSTANCE_ID
        assert static.error("B", -1, instance_id="i") is E.FENCED_INSTANCE_ID

    def test_its_epoch_is_checked_after_its_instance(self, static: Any) -> None:
        assert static.error("A", 9, instance_id="i") is E.FENCED_MEMBER_EPOCH

    def test_the_instance_may_be_left_out_of_a_keepalive(self, static: Any) -> None:
        assert static.beat("A", 2).member_epoch == 2
        assert static.member("A").instance_id == "i"

    @pytest.mark.parametrize("instance_id", ["i", None])
    def test_leaving_for_good_frees_the_instance(self, static: Any, instance_id: str | None) -> None:
        assert static.beat("A", -1, instance_id=instance_id).member_epoch == -1
        assert not static.group.static_members
        assert static.join("B", instance_id="i").member_epoch == 4


class TestAnswers:
    """What a successful answer holds."""

    def test_it_carries_the_interval_and_the_member(self, scene: Any) -> None:
        reply = scene.join("A")
        assert (reply.member_id, reply.heartbeat_interval_ms) == ("A", 5_000)

    def test_a_member_without_an_id_gets_the_generated_one(self, scene: Any) -> None:
        reply = scene.join("", api_version=0, generated_member_id="made")
        assert reply.member_id == "made"
        assert list(scene.group.members) == ["made"]

    def test_a_full_request_is_answered_with_the_assignment(self, scene: Any) -> None:
        scene.join("A")
        full = {**JOIN, "owned": {"x": (0, 1, 2, 3)}}
        assert scene.beat("A", 2, **full).assignment == {"id-of-x": (0, 1, 2, 3)}
        regex = {"rebalance_timeout_ms": 1_000, "subscribed_topic_regex": "", "owned": {}}
        assert scene.beat("A", 2, **regex).assignment is not None

    @pytest.mark.parametrize("missing", ["rebalance_timeout_ms", "subscribed_topic_names", "owned"])
    def test_a_request_that_lacks_any_of_it_is_not_full(self, scene: Any, missing: str) -> None:
        scene.join("A")
        full: dict[str, Any] = {**JOIN, "owned": {"x": (0, 1, 2, 3)}}
        del full[missing]
        assert scene.beat("A", 2, **full).assignment is None

    def test_an_error_carries_nothing_else(self, scene: Any) -> None:
        reply = scene.beat("A", 1)
        assert (reply.member_id, reply.member_epoch, reply.assignment) == (None, 0, None)

    def test_unchanged_fields_keep_what_is_known(self, scene: Any) -> None:
        scene.join("A", rack_id="r", server_assignor="range", client_id="c", client_host="h")
        scene.beat("A", 2, client_id="d", client_host="h")
        member = scene.member("A")
        assert (member.rack_id, member.server_assignor, member.client_id) == ("r", "range", "d")
        assert (member.subscribed_topic_names, member.rebalance_timeout_ms) == (("x",), 60_000)
        assert scene.written() == ["5:A"]

    def test_names_are_a_set(self, scene: Any) -> None:
        scene.join("A", ("z", "x", "z"))
        assert scene.member("A").subscribed_topic_names == ("x", "z")
        scene.beat("A", 2, subscribed_topic_names=("x", "z", "x"))
        assert not scene.last.records

    def test_a_failed_request_does_not_keep_the_session_alive(self, scene: Any) -> None:
        scene.join("A")
        scene.now_ms += 44_000
        scene.error("A", 9)
        assert [o.effects[0].reason for o in scene.after(1_000)] == ["session"]
        assert scene.error("A", 2) is E.UNKNOWN_MEMBER_ID
