"""Online migration (KIP-848): groups change their kind under their members, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.config import ConsumerGroupMigrationPolicy as Policy
from fencepost.coordinator.protocol.consumer import ConsumerGroupDescribeRequest, MemberType
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
    write_assignment,
    write_subscription,
)

Held = dict[str, tuple[int, ...]]


def assigned(partitions: Held, user_data: bytes | None = None) -> bytes:
    return write_assignment(ConsumerProtocolAssignment(partitions=partitions, user_data=user_data))


def owning(partitions: Held | None = None, topics: tuple[str, ...] = ("x",)) -> dict[str, bytes]:
    return {"range": write_subscription(ConsumerProtocolSubscription(topics=topics, owned=partitions or {}))}


def two_classic(classic: Any, **fields: Any) -> tuple[str, str]:
    """A Stable classic group whose members have x-0, x-1 and x-2, x-3."""
    one, two = (classic.enter(**fields)[0] for _ in range(2))
    while classic.state == "PreparingRebalance":
        classic.after(3_000)
    classic.sync(two, 1)
    classic.sync(one, 1, {one: assigned({"x": (0, 1)}), two: assigned({"x": (2, 3)})})
    return one, two


def upgraded(classic: Any) -> tuple[str, str]:
    """The same, after a consumer `A` has joined."""
    one, two = two_classic(classic)
    assert classic.scene.join("A").error_code.name == "NONE"
    return one, two


def sync_of(classic: Any, member_id: str, generation: int) -> Held:
    answer = classic.synced(classic.sync(member_id, generation))
    assert answer.error_code.name == "NONE"
    return dict(read_assignment(answer.assignment).partitions)


def converge(classic: Any, *classic_members: str) -> dict[str, Held]:
    """Everybody does what they are told, classic consumers cooperatively; what each has then."""
    scene, has, generation = classic.scene, {}, {}
    for member_id in classic_members:
        member = scene.member(member_id)
        has[member_id] = {key.removeprefix("id-of-"): held for key, held in member.assigned.items()}
        generation[member_id] = member.member_epoch
    for _ in range(8):
        for member_id in [m for m in scene.group.members if m not in classic_members]:
            scene.settle(member_id)
        for member_id in classic_members:
            if classic.beat(member_id, generation[member_id]) == "REBALANCE_IN_PROGRESS":
                answer = classic.joined(classic.join(member_id, protocols=owning(has[member_id])))
                generation[member_id] = answer.generation
                has[member_id] = sync_of(classic, member_id, answer.generation)
    assert scene.group.state == "Stable"
    return has


class TestUpgrade:
    def test_a_joining_consumer_makes_it_a_consumer_group(self, classic: Any) -> None:
        one, two = two_classic(classic)
        answer = classic.scene.join("A")
        assert (answer.error_code.name, answer.member_epoch) == ("NONE", 2)
        written = classic.scene.written()
        assert written[:8] == [
            "-2",
            f"5:{one}",
            f"5:{two}",
            "3",
            f"7:{one}",
            f"7:{two}",
            "6",
            f"8:{one}",
        ]
        assert dict(classic.scene.coordinator.classic.groups) == {}
        assert classic.scene.holds(one) == (1, "STABLE", {"x": (0, 1)}, {})
        assert classic.scene.group.state == "Reconciling"
        assert classic.scene.group.members[two].classic.session_timeout_ms == 10_000
        classic.scene.reload()

    def test_members_go_on_until_they_are_told(self, classic: Any) -> None:
        one, two = upgraded(classic)
        assert [classic.beat(member, 1) for member in (one, two)] == ["REBALANCE_IN_PROGRESS"] * 2
        assert classic.commit(one, 1, api_version=8) == "NONE"
        assert classic.commit(one, 2) == "ILLEGAL_GENERATION"
        assert classic.beat(one, 2) == "ILLEGAL_GENERATION"

    def test_everybody_gets_a_share(self, classic: Any) -> None:
        has = converge(classic, *upgraded(classic))
        held = [*(one.get("x", ()) for one in has.values()), classic.scene.holds("A")[2]["x"]]
        assert sorted(partition for each in held for partition in each) == [0, 1, 2, 3]
        assert sorted(map(len, held)) == [1, 1, 2]

    def test_those_who_wait_join_again(self, classic: Any) -> None:
        one, two = two_classic(classic)
        token = classic.join(one)
        classic.scene.join("A")
        classic._collect(classic.scene.last)
        assert classic.error(token) == "REBALANCE_IN_PROGRESS"
        assert classic.beat(two, 1) == "REBALANCE_IN_PROGRESS"

    def test_those_who_wait_for_an_assignment_join_again(self, classic: Any) -> None:
        (_, _), (two, _) = classic.enter(), classic.enter()
        while classic.state == "PreparingRebalance":
            classic.after(3_000)
        token = classic.sync(two, 1)
        assert classic.scene.join("A").error_code.name == "NONE"
        classic._collect(classic.scene.last)
        assert classic.error(token) == "REBALANCE_IN_PROGRESS"

    def test_first_members_that_still_gather_become_members(self, classic: Any) -> None:
        one, token = classic.enter()
        assert classic.scene.join("A").error_code.name == "NONE"
        classic._collect(classic.scene.last)
        assert classic.error(token) == "REBALANCE_IN_PROGRESS"
        converge(classic, one)

    @pytest.mark.parametrize("policy", [Policy.DISABLED, Policy.DOWNGRADE])
    def test_not_against_the_policy(self, classics: Any, policy: Policy) -> None:
        classic = classics(group_consumer_migration_policy=policy)
        two_classic(classic)
        assert classic.scene.join("A").error_code.name == "GROUP_ID_NOT_FOUND"
        assert classic.state == "Stable"

    def test_not_a_group_that_would_be_too_large(self, classics: Any) -> None:
        classic = classics(group_consumer_max_size=1)
        two_classic(classic)
        assert classic.scene.join("A").error_code.name == "GROUP_ID_NOT_FOUND"

    @pytest.mark.parametrize(
        ("fields", "assignment"),
        [
            ({"protocol_type": "connect"}, b""),
            ({"protocols": {"range": b"\x00"}}, b""),
            ({}, b"\x00"),
            ({}, assigned({"x": (0,)}, b"data of an assignor")),
        ],
    )
    def test_not_one_that_cannot_be_read(
        self, classic: Any, fields: dict[str, Any], assignment: bytes
    ) -> None:
        one, _ = classic.enter(**fields)
        classic.after(3_000)
        classic.sync(one, 1, {one: assignment})
        answer = classic.scene.join("A")
        assert (answer.error_code.name, classic.state) == ("GROUP_ID_NOT_FOUND", "Stable")

    def test_not_one_whose_assignor_gave_a_partition_to_two(self, classic: Any) -> None:
        one, two = classic.enter()[0], classic.enter()[0]
        classic.after(3_000)
        classic.after(3_000)
        classic.sync(one, 1, dict.fromkeys((one, two), assigned({"x": (0,)})))
        assert classic.scene.join("A").error_code.name == "GROUP_ID_NOT_FOUND"

    def test_topics_that_are_gone_are_left_out(self, classic: Any) -> None:
        one, _ = classic.enter()
        classic.after(3_000)
        classic.sync(one, 1, {one: assigned({"gone": (0,), "x": (0, 1)})})
        assert classic.scene.join("A").error_code.name == "NONE"
        assert classic.scene.holds(one)[2] == {"x": (0, 1)}

    def test_only_a_join_does(self, classic: Any) -> None:
        two_classic(classic)
        assert classic.scene.beat("A", 3).error_code.name == "GROUP_ID_NOT_FOUND"
        assert classic.scene.beat("A", -1).error_code.name == "GROUP_ID_NOT_FOUND"


class TestClassicMembers:
    def test_a_new_one_gets_its_id_and_a_share(self, classic: Any) -> None:
        classic.scene.join("A")
        required = classic.joined(classic.join())
        assert (required.error_code.name, required.member_id) == ("MEMBER_ID_REQUIRED", "1")
        answer = classic.joined(classic.join("1", protocols=owning()))
        assert (answer.generation, answer.leader, answer.members) == (3, "", ())
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        assert sync_of(classic, "1", 3) == {}
        assert classic.beat("1", 3) == "NONE", "others still have what it shall get"
        classic.scene.settle("A")
        assert classic.beat("1", 3) == "REBALANCE_IN_PROGRESS"
        assert classic.joined(classic.join("1", protocols=owning())).generation == 3
        assert sync_of(classic, "1", 3) == {"x": (2, 3)}
        assert classic.beat("1", 3) == "NONE"

    @pytest.mark.parametrize("syncs", [False, True])
    def test_one_that_does_not_sync_in_time_is_removed(self, classic: Any, syncs: bool) -> None:
        classic.join()
        classic.scene.join("A")
        classic.joined(classic.join("1", protocols=owning(), rebalance_timeout_ms=20_000))
        if syncs:
            assert sync_of(classic, "1", 3) == {}
        for _ in range(3):
            classic.after(9_000)
            classic.beat("1", 3)
        assert ("1" in classic.scene.group.members) is syncs

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
            ({"protocols": ()}, "INCONSISTENT_GROUP_PROTOCOL"),
            ({"protocols": ("sticky",)}, "INCONSISTENT_GROUP_PROTOCOL"),
            ({"session_timeout_ms": 1}, "INVALID_SESSION_TIMEOUT"),
            ({"api_version": 3, "protocols": {"range": b"\x00"}}, "INCONSISTENT_GROUP_PROTOCOL"),
            ({"member_id": "m", "instance_id": "i"}, "UNKNOWN_MEMBER_ID"),
        ],
    )
    def test_not_everybody_joins(self, classic: Any, fields: dict[str, Any], error: str) -> None:
        upgraded(classic)
        assert classic.error(classic.join(**fields)) == error

    @pytest.mark.parametrize(
        ("fields", "member_id"), [({"protocol_type": "connect"}, ""), ({"session_timeout_ms": 1}, "m")]
    )
    def test_what_the_group_refuses_is_answered_without_an_id(
        self, classic: Any, fields: dict[str, Any], member_id: str
    ) -> None:
        upgraded(classic)
        assert classic.joined(classic.join("m", **fields)).member_id == member_id

    def test_nobody_joins_if_migration_is_disabled(self, classics: Any) -> None:
        classic = classics(group_consumer_migration_policy=Policy.DISABLED)
        classic.scene.join("A")
        assert classic.error(classic.join()) == "INCONSISTENT_GROUP_PROTOCOL"

    def test_nobody_joins_a_full_group(self, classics: Any) -> None:
        classic = classics(group_consumer_max_size=1)
        classic.scene.join("A")
        assert classic.error(classic.join()) == "GROUP_MAX_SIZE_REACHED"

    @pytest.mark.parametrize(
        ("member", "generation", "fields", "error"),
        [
            ("A", 2, {}, "UNKNOWN_MEMBER_ID"),
            ("stranger", 1, {}, "UNKNOWN_MEMBER_ID"),
            (None, 2, {}, "ILLEGAL_GENERATION"),
            (None, 1, {"protocol_name": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
            (None, 1, {"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
            (None, 1, {"instance_id": "i"}, "UNKNOWN_MEMBER_ID"),
            (None, 1, {}, "REBALANCE_IN_PROGRESS"),
        ],
    )
    def test_not_everybody_syncs(
        self, classic: Any, member: str | None, generation: int, fields: dict[str, Any], error: str
    ) -> None:
        one, _ = upgraded(classic)
        assert classic.error(classic.sync(member or one, generation, **fields)) == error

    def test_its_own_session_counts(self, classic: Any) -> None:
        one, two = upgraded(classic)
        classic.after(9_999)
        classic.beat(one, 1)
        classic.after(1)
        assert sorted(classic.scene.group.members) == ["A", one]
        assert classic.beat(two, 1) == "UNKNOWN_MEMBER_ID"

    def test_it_may_own_what_is_gone(self, classic: Any) -> None:
        one, _ = upgraded(classic)
        answer = classic.joined(classic.join(one, protocols=owning({"gone": (0,), "x": (0, 1)})))
        assert answer.error_code.name == "NONE"

    def test_nobody_joins_under_the_instance_id_of_another(self, classic: Any) -> None:
        one, _ = upgraded(classic)
        other = classic.joined(classic.join(instance_id="i", protocols=owning())).member_id
        fenced = classic.join(one, instance_id="i", protocols=owning())
        assert classic.error(fenced) == "FENCED_INSTANCE_ID"
        unknown = classic.join(one, instance_id="j", protocols=owning())
        assert classic.error(unknown) == "UNKNOWN_MEMBER_ID"
        assert {one, other} <= set(classic.scene.group.members)

    def test_it_must_join_when_told_to(self, classic: Any) -> None:
        one, two = two_classic(classic, session_timeout_ms=1_000_000)
        classic.scene.join("A")
        assert classic.beat(one, 1) == "REBALANCE_IN_PROGRESS"
        for _ in range(2):
            classic.after(29_999)
            classic.beat(one, 1)
            classic.scene.beat("A", 2)
        assert one in classic.scene.group.members
        classic.after(2)
        assert one not in classic.scene.group.members
        assert two in classic.scene.group.members

    def test_it_must_sync_after_it_joined(self, classic: Any) -> None:
        one, _ = two_classic(classic, session_timeout_ms=1_000_000)
        classic.scene.join("A")
        classic.join(one, protocols=owning({"x": (0, 1)}), session_timeout_ms=1_000_000)
        for _ in range(2):
            classic.after(30_000)
            classic.scene.beat("A", 2)
        assert one not in classic.scene.group.members

    def test_it_becomes_a_consumer_in_place(self, classic: Any) -> None:
        one, two = upgraded(classic)
        converge(classic, one, two)
        assert classic.scene.join(one).error_code.name == "NONE"
        assert classic.scene.group.members[one].classic is None
        assert classic.beat(one, 2) == "UNKNOWN_MEMBER_ID"
        classic.after(20_000)
        assert one in classic.scene.group.members, "its session is a consumer's now"

    def test_a_consumer_s_session_counts_from_then_on(self, classic: Any) -> None:
        one, _ = two_classic(classic, session_timeout_ms=300_000)
        classic.scene.join("A")
        assert classic.scene.join(one).error_code.name == "NONE"
        classic.after(44_999)
        classic.scene.beat("A", classic.scene.member("A").member_epoch)
        assert one in classic.scene.group.members
        classic.after(1)
        assert one not in classic.scene.group.members

    def test_it_is_described_as_what_it_is(self, classic: Any) -> None:
        one, _ = upgraded(classic)
        (group,) = classic.process(ConsumerGroupDescribeRequest(group_ids=("g",))).reply.groups
        types = {member.member_id: member.member_type for member in group.members}
        assert (types["A"], types[one]) == (MemberType.CONSUMER, MemberType.CLASSIC)

    def test_it_leaves(self, classic: Any) -> None:
        one, two = upgraded(classic)
        assert classic.leave(one) == ["NONE"]
        assert sorted(classic.scene.group.members) == ["A", two]

    def test_a_load_keeps_it(self, classic: Any) -> None:
        one, two = upgraded(classic)
        has = converge(classic, one, two)
        epoch = classic.scene.member(one).member_epoch
        classic.scene.reload()
        assert classic.beat(one, epoch) == "NONE"
        assert sync_of(classic, one, epoch) == has[one]


class TestDowngrade:
    def test_when_the_last_consumer_leaves(self, classic: Any) -> None:
        one, two = upgraded(classic)
        has = converge(classic, one, two)
        epoch = classic.scene.group.group_epoch
        assert classic.scene.beat("A", -1).error_code.name == "NONE"
        assert (classic.state, classic.group.generation) == ("PreparingRebalance", epoch)
        assert dict(classic.scene.coordinator.groups) == {}
        assert {
            m: dict(read_assignment(each.assignment).partitions) for m, each in classic.group.members.items()
        } == has
        assert classic.beat(one, epoch) == "REBALANCE_IN_PROGRESS"
        tokens = [classic.join(one), classic.join(two)]
        assert [classic.joined(token).generation for token in tokens] == [epoch + 1] * 2
        classic.assign()
        classic.scene.reload()
        assert classic.state == "Stable"

    def test_when_its_session_ends(self, classic: Any) -> None:
        one, two = two_classic(classic, session_timeout_ms=1_000_000)
        classic.scene.join("A")
        classic.after(45_000)
        assert (classic.state, list(classic.group.members)) == ("PreparingRebalance", [one, two])

    def test_when_an_administrator_removes_it(self, classic: Any) -> None:
        one, two = upgraded(classic)
        assert classic.leave("A") == ["NONE"]
        assert (classic.state, list(classic.group.members)) == ("PreparingRebalance", [one, two])

    def test_a_load_finds_the_group_stable(self, classic: Any) -> None:
        one, two = upgraded(classic)
        converge(classic, one, two)
        classic.scene.beat("A", -1)
        classic.scene.reload()
        assert classic.state == "Stable"
        assert classic.beat(one, classic.group.generation) == "NONE"

    def test_not_against_the_policy(self, classics: Any) -> None:
        classic = classics(group_consumer_migration_policy=Policy.UPGRADE)
        one, two = upgraded(classic)
        classic.scene.beat("A", -1)
        assert sorted(classic.scene.group.members) == [one, two]

    def test_not_if_nobody_is_left(self, classic: Any) -> None:
        classic.scene.join("A")
        classic.scene.beat("A", -1)
        assert classic.scene.group.state == "Empty"

    def test_not_if_the_group_would_be_too_large(self, classics: Any) -> None:
        classic = classics(group_max_size=2)
        classic.scene.join("A")
        members = []
        for _ in range(3):
            member_id = classic.joined(classic.join()).member_id
            classic.join(member_id, protocols=owning())
            members.append(member_id)
        classic.scene.beat("A", -1)
        assert sorted(classic.scene.group.members) == sorted(members)

    def test_when_a_static_consumer_comes_back_as_a_classic_one(self, classic: Any) -> None:
        classic.scene.join("A", instance_id="i")
        classic.scene.beat("A", -2, instance_id="i")
        epoch = classic.scene.group.group_epoch
        answer = classic.joined(classic.join(instance_id="i", protocols=owning()))
        assert (answer.error_code.name, answer.generation) == ("NONE", epoch)
        assert dict(classic.scene.coordinator.groups) == {}
        assert (classic.state, list(classic.group.members)) == ("Stable", [answer.member_id])
        assert sync_of(classic, answer.member_id, epoch) == {"x": (0, 1, 2, 3)}
        assert classic.beat(answer.member_id, epoch, instance_id="i") == "NONE"
        classic.scene.reload()

    def test_members_that_wait_for_partitions_then_join_anew(self, classic: Any) -> None:
        """The group's target is theirs already, but nobody would tell them any more."""
        classic.scene.join("A", instance_id="i")
        member_id = classic.enter(protocols=owning())[0]
        assert classic.scene.holds(member_id)[1:3] == ("UNRELEASED_PARTITIONS", {})
        classic.scene.settle("A")
        classic.scene.beat("A", -2, instance_id="i")
        answer = classic.joined(classic.join(instance_id="i", protocols=owning()))
        assert answer.error_code.name == "NONE"
        assert classic.state == "PreparingRebalance"
        assert classic.beat(member_id, classic.group.generation) == "REBALANCE_IN_PROGRESS"

    def test_a_static_classic_member_comes_back_as_a_consumer(self, classic: Any) -> None:
        token = classic.join(instance_id="i")
        classic.after(3_000)
        old = classic.joined(token).member_id
        classic.sync(old, 1, {old: assigned({"x": (0, 1, 2, 3)})})
        answer = classic.scene.join("A", instance_id="i")
        assert (answer.error_code.name, list(classic.scene.group.members)) == ("NONE", ["A"])
        assert classic.scene.holds("A")[::2] == (1, {"x": (0, 1, 2, 3)})
        assert classic.beat(old, 1, instance_id="i") == "FENCED_INSTANCE_ID"

    @pytest.mark.parametrize("partitions", [{"x": 6}, {"x": 4, "z": 2}], ids=["grown", "created"])
    def test_partitions_that_no_round_has_seen_are_given(
        self, classic: Any, partitions: dict[str, int]
    ) -> None:
        """The digest of topics in the new group's record is today's, so nobody would notice them later."""
        wanted = tuple(sorted({"x", *partitions}))
        token = classic.join(instance_id="i", protocols=owning(topics=wanted))
        classic.after(3_000)
        old = classic.joined(token).member_id
        classic.sync(old, 1, {old: assigned({"x": (0, 1, 2, 3)})})
        classic.scene.topics(**partitions)
        assert (
            classic.scene.join("A", instance_id="i", subscribed_topic_names=wanted).error_code.name == "NONE"
        )
        assert classic.scene.group.group_epoch == 2
        every = {topic: tuple(range(count)) for topic, count in partitions.items()}
        assert classic.scene.holds("A")[::2] == (2, every)
        classic.scene.reload()

    def test_a_round_that_it_ends_is_not_forgotten(self, classic: Any) -> None:
        """Nothing changes with it, but a member has just gone, and its partitions are nobody's."""
        token, other = classic.join(instance_id="i"), classic.join(instance_id="j")
        while classic.state == "PreparingRebalance":
            classic.after(3_000)
        old, gone = classic.joined(token).member_id, classic.joined(other).member_id
        classic.sync(gone, 1)
        classic.sync(old, 1, {old: assigned({"x": (0, 1)}), gone: assigned({"x": (2, 3)})})
        classic.leave((gone, "j"))
        assert classic.state == "PreparingRebalance"
        answer = classic.scene.join("A", instance_id="i")
        assert answer.error_code.name == "NONE"
        classic.scene.settle("A")
        assert classic.scene.holds("A")[2] == {"x": (0, 1, 2, 3)}
        classic.scene.reload()
