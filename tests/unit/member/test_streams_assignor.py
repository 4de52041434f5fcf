"""The assignor of Kafka Streams in the classic protocol: what a leader makes of members, and they of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors import subscription_info
from fencepost.member.classic.assignors.assignment_info import (
    NO_REBALANCE_MS,
    AssignmentInfo,
    read_assignment_info,
    write_assignment_info,
)
from fencepost.member.classic.assignors.streams import (
    ASK_AGAIN_MS,
    MOST_REPEATS,
    PROBING_REBALANCE_MS,
    StreamsAssignor,
    share,
    tasks_of,
)
from fencepost.member.classic.assignors.streams_metadata import AssignorError, HostInfo

Owned = Mapping[str, tuple[int, ...]]


def process(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


class Group:
    """Threads by member id: each an assignor, and what it owns. The first one leads."""

    def __init__(self, **threads: StreamsAssignor) -> None:
        self.threads = threads
        self.owned: dict[str, Owned] = {key: {} for key in threads}
        self.again: dict[str, int | None] = {}

    def subscribers(self) -> list[Subscriber]:
        return [
            Subscriber(
                name,
                None,
                ConsumerProtocolSubscription(
                    topics=("t",), user_data=thread.user_data(), owned=self.owned[name]
                ),
            )
            for name, thread in self.threads.items()
        ]

    def round(self, sizes: Mapping[str, int], *more: Subscriber) -> dict[str, ConsumerProtocolAssignment]:
        """One generation: everybody joins, the first assigns, everybody takes what it is given."""
        leader = next(iter(self.threads.values()))
        given = dict(leader.assign(sizes, [*self.subscribers(), *more]))
        for name, thread in self.threads.items():
            self.again[name] = thread.on_assignment(given[name])
            self.owned[name] = given[name].partitions
        return given

    def settle(self, sizes: Mapping[str, int]) -> int:
        """Rounds until nobody wants another one."""
        for number in range(1, 10):
            self.round(sizes)
            if set(self.again.values()) == {None}:
                return number
        raise AssertionError(f"it never ends: {self.again}")

    def partitions(self, name: str) -> set[int]:
        return {number for numbers in self.owned[name].values() for number in numbers}


def thread(number: int, *, topics: tuple[str, ...] = ("t",), **more: object) -> StreamsAssignor:
    return StreamsAssignor(process(number), (topics,), **more)  # type: ignore[arg-type]


def test_tasks_are_the_partitions_of_a_subtopologys_topics() -> None:
    tasks = tasks_of((("a", "b"), ("c",)), {"a": 1, "b": 2, "c": 1})
    assert tasks == {
        TaskId(0, 0): (TopicPartition("a", 0), TopicPartition("b", 0)),
        TaskId(0, 1): (TopicPartition("b", 1),),
        TaskId(1, 0): (TopicPartition("c", 0),),
    }


def test_a_newcomer_gets_its_share_once_the_others_have_let_go() -> None:
    group = Group(a=thread(1), b=thread(1))
    assert group.settle({"t": 9}) == 1
    before = {name: group.partitions(name) for name in "ab"}
    group.threads["c"], group.owned["c"] = thread(2), {}
    given = group.round({"t": 9})
    assert given["c"].partitions == {}
    assert read_assignment_info(given["c"].user_data).next_rebalance_ms == 0
    assert group.again == {"a": None, "b": None, "c": 0}
    assert group.settle({"t": 9}) == 1
    assert sorted(len(group.partitions(name)) for name in "abc") == [3, 3, 3]
    assert group.partitions("a") < before["a"]
    assert group.partitions("b") < before["b"]
    assert group.threads["c"].active_tasks == {
        TaskId(0, number): (TopicPartition("t", number),) for number in sorted(group.partitions("c"))
    }


@given(st.data())
def test_any_group_ends_up_even_sticky_and_whole(data: st.DataObject) -> None:
    group = Group(m0=thread(0))
    size = data.draw(st.integers(1, 30))
    for step in range(data.draw(st.integers(1, 5))):
        before = {name: group.partitions(name) for name in group.threads}
        if data.draw(st.booleans()) or len(group.threads) == 1:
            name = f"m{step + 1}"
            group.threads[name], group.owned[name] = thread(data.draw(st.integers(0, 3))), {}
        else:
            gone = data.draw(st.sampled_from(sorted(group.threads)))
            del group.threads[gone], group.owned[gone]
            group.again.pop(gone, None)
        group.settle({"t": size})
        held = [group.partitions(name) for name in group.threads]
        assert sorted(number for each in held for number in each) == list(range(size))
        assert max(map(len, held)) - min(map(len, held)) <= 1
        for name, mine in before.items():
            if name in group.threads:
                kept = len(mine & group.partitions(name))
                assert kept >= min(len(mine), size // len(group.threads))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"), min_size=1),
    st.lists(st.integers(0, 40), unique=True),
    st.data(),
)
def test_tasks_are_shared_evenly_whatever_was_before(members, numbers, data) -> None:
    tasks = [TaskId(0, number) for number in numbers]
    before = {task: data.draw(st.sampled_from("abcdefgh")) for task in tasks if data.draw(st.booleans())}
    given_ = share(tasks, members, before, {})
    assert sorted(task for mine in given_.values() for task in mine) == sorted(tasks)
    assert max(map(len, given_.values())) - min(map(len, given_.values())) <= 1


def test_a_task_goes_back_to_where_its_state_is() -> None:
    leader = thread(1)
    far = {TaskId(0, 0): subscription_info.RUNS_ACTIVE, TaskId(0, 1): 5}
    further = {TaskId(0, 0): 900, TaskId(0, 1): 900}

    def joins(number: int, sums: Mapping[TaskId, int]) -> Subscriber:
        info = subscription_info.SubscriptionInfo(process_id=process(number), task_offset_sums=sums)
        data = subscription_info.write_subscription_info(info)
        return Subscriber(f"m{number}", None, ConsumerProtocolSubscription(topics=("t",), user_data=data))

    given_ = leader.assign({"t": 2}, [joins(1, further), joins(2, far)])
    assert {name: dict(each.partitions) for name, each in given_.items()} == {
        "m1": {"t": (1,)},
        "m2": {"t": (0,)},
    }


# -- escalation ------------------------------------------------------------------------------------------


def test_one_request_for_a_shutdown_reaches_all_those_without_partitions_included() -> None:
    group = Group(a=thread(1), b=thread(2), c=thread(3))
    group.settle({"t": 2})
    group.threads["b"].request_shutdown()
    given_ = group.round({"t": 2})
    assert all(each.partitions == {} for each in given_.values())
    assert [each.error for each in group.threads.values()] == [AssignorError.SHUTDOWN_REQUESTED] * 3
    assert set(group.again.values()) == {0}, "everybody repeats it"
    assert all(each.shutdown_requested for each in group.threads.values()), "it is never taken back"
    assert not any(each.all_know for each in group.threads.values())
    group.round({"t": 2})
    assert set(group.again.values()) == {None}, "once"
    assert all(each.all_know for each in group.threads.values())


def test_who_was_told_of_a_shutdown_tells_those_that_missed_it() -> None:
    group = Group(a=thread(1), b=thread(2), c=thread(3))
    group.settle({"t": 3})
    group.threads["b"].request_shutdown()
    late = group.threads.pop("c")
    group.round({"t": 3})
    del group.threads["b"]
    group.threads["c"] = late
    group.round({"t": 3})
    assert late.error == AssignorError.SHUTDOWN_REQUESTED
    assert group.again["a"] == group.again["c"] == 0, "nobody knows whether c has heard it this time"
    group.round({"t": 3})
    assert group.again["a"] is group.again["c"] is None
    assert late.all_know


def test_a_shutdown_is_not_repeated_for_ever_to_those_who_come_anew() -> None:
    group = Group(a=thread(1))
    group.threads["a"].request_shutdown()
    for number in range(MOST_REPEATS):
        group.threads["b"], group.owned["b"] = thread(number + 2), {}
        group.round({"t": 1})
        assert group.again["a"] == 0
    group.threads["b"], group.owned["b"] = thread(99), {}
    group.round({"t": 1})
    assert (group.again["a"], group.threads["a"].all_know) == (None, False)
    assert group.again["b"] == 0


def test_members_that_can_not_say_it_keep_nobody_from_ending() -> None:
    group = Group(a=thread(1), b=thread(2, latest_version=8), c=thread(3))
    group.threads["a"].request_shutdown()
    group.round({"t": 3})
    assert set(group.again.values()) == {0}
    group.round({"t": 3})
    assert set(group.again.values()) == {None}


def test_what_a_leader_of_kafka_streams_says_of_a_shutdown_is_repeated_once() -> None:
    """It says the same in every round, whoever knows."""
    info = AssignmentInfo(error_code=AssignorError.SHUTDOWN_REQUESTED)
    told = ConsumerProtocolAssignment(partitions={}, user_data=write_assignment_info(info))
    one = thread(1)
    one.request_shutdown()
    assert (one.on_assignment(told), one.all_know) == (0, False)
    assert (one.on_assignment(told), one.all_know) == (None, False)


def test_the_request_is_read_from_members_that_are_older_and_answered_so_that_they_can_read_it() -> None:
    group = Group(a=thread(1), b=thread(2, latest_version=9))
    group.threads["b"].request_shutdown()
    given_ = group.round({"t": 2})
    info = read_assignment_info(given_["a"].user_data)
    assert (info.version, info.commonly_supported_version, info.error_code) == (9, 9, 4)


def test_version_8_can_not_carry_the_request() -> None:
    group = Group(a=thread(1), b=thread(2, latest_version=8))
    group.threads["b"].request_shutdown()
    group.round({"t": 2})
    assert group.threads["a"].error == AssignorError.NONE


def test_who_asks_and_is_not_answered_asks_again_after_a_while() -> None:
    one = thread(1)
    one.request_shutdown()
    info = AssignmentInfo(active_tasks=(TaskId(0, 0),))
    given_ = ConsumerProtocolAssignment(partitions={"t": (0,)}, user_data=write_assignment_info(info))
    assert one.on_assignment(given_) == ASK_AGAIN_MS


def test_a_missing_source_topic_is_told_to_all() -> None:
    group = Group(a=thread(1, topics=("t", "missing")), b=thread(2))
    group.round({"t": 2})
    assert [each.error for each in group.threads.values()] == [1, 1]
    group.threads["b"].request_shutdown()
    group.round({"t": 2})
    assert [each.error for each in group.threads.values()] == [4, 4], "a shutdown comes first"


def test_joins_differ_also_when_nothing_else_does() -> None:
    one = thread(1)
    said = [subscription_info.read_subscription_info(one.user_data()).unique_field for _ in range(257)]
    assert said[:2] == [1, 2]
    assert said[126:129] == [127, -128, -127]
    assert said[256] == said[0]


# -- versions --------------------------------------------------------------------------------------------


def test_a_group_goes_down_to_its_oldest_member_and_up_again_when_that_has_left() -> None:
    group = Group(new=thread(1), old=thread(2, latest_version=8))
    group.round({"t": 4})
    assert group.again == {"new": 0, "old": None}
    assert group.threads["new"].used_version == 8
    group.settle({"t": 4})
    del group.threads["old"], group.owned["old"], group.again["old"]
    group.round({"t": 4})
    assert (group.again, group.threads["new"].used_version) == ({"new": 0}, 11)
    assert group.settle({"t": 4}) == 1


def test_an_old_leader_works_with_members_from_the_future() -> None:
    group = Group(old=thread(1, latest_version=9), new=thread(2))
    group.round({"t": 4})
    assert group.again == {"old": None, "new": 0}
    group.settle({"t": 4})
    assert sorted(len(group.partitions(name)) for name in group.threads) == [2, 2]


def test_of_a_version_that_nobody_knows_yet_the_versions_are_enough() -> None:
    data = (12).to_bytes(4, "big") + (13).to_bytes(4, "big") + b"and what else it may be"
    future = Subscriber(
        "future", None, ConsumerProtocolSubscription(topics=("t",), user_data=data, owned={"t": (3,)})
    )
    given_ = Group(a=thread(1)).round({"t": 4}, future)
    info = read_assignment_info(given_["future"].user_data)
    assert (info.version, info.commonly_supported_version) == (11, 11)
    assert given_["future"].partitions["t"][-1] == 3


def test_a_request_in_a_version_that_nobody_knows_yet_is_not_seen() -> None:
    known = thread(2)
    known.request_shutdown()
    data = (12).to_bytes(4, "big") * 2 + (known.user_data() or b"")[8:]
    future = Subscriber("future", None, ConsumerProtocolSubscription(topics=("t",), user_data=data))
    given_ = Group(a=thread(1)).round({"t": 4}, future)
    assert read_assignment_info(given_["a"].user_data).error_code == AssignorError.NONE


@pytest.mark.parametrize("data", [None, b"", b"\0\1 any assignor's own", b"\0\0\0\6\0\0\0\6" + bytes(40)])
def test_a_stranger_is_given_nothing_and_the_leader_lives(data: bytes | None) -> None:
    strangers = (
        Subscriber("s1", None, ConsumerProtocolSubscription(topics=("t",), user_data=data)),
        Subscriber("s2", None, None),
    )
    group = Group(a=thread(1))
    given_ = group.round({"t": 4}, *strangers)
    assert sorted(given_) == ["a"]
    assert group.partitions("a") == {0, 1, 2, 3}


# -- what a member makes of it ---------------------------------------------------------------------------


def takes(info: AssignmentInfo, partitions: Owned, **more: object) -> tuple[int | None, StreamsAssignor]:
    one = thread(1, **more)
    return one.on_assignment(
        ConsumerProtocolAssignment(partitions=partitions, user_data=write_assignment_info(info))
    ), one


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        (ConsumerProtocolAssignment(partitions={}, user_data=None), "can't be read"),
        (ConsumerProtocolAssignment(partitions={}, user_data=b"\0\0\0\x0c"), "version 12, expected 7 to 11"),
        (
            ConsumerProtocolAssignment(
                partitions={"t": (0,)}, user_data=write_assignment_info(AssignmentInfo())
            ),
            "0 tasks for 1 partitions",
        ),
        (
            ConsumerProtocolAssignment(
                partitions={},
                user_data=write_assignment_info(AssignmentInfo(commonly_supported_version=12)),
            ),
            "version 12 is above 11",
        ),
    ],
)
def test_an_assignment_that_makes_no_sense_is_an_error_of_the_assignment(
    assignment: ConsumerProtocolAssignment, text: str
) -> None:
    one = thread(1)
    assert one.on_assignment(assignment) is None
    assert one.error == AssignorError.ASSIGNMENT_ERROR
    assert text in one.message


def test_an_answer_in_a_newer_version_than_was_used_makes_no_sense() -> None:
    _, one = takes(AssignmentInfo(), {}, latest_version=9)
    assert one.error == AssignorError.ASSIGNMENT_ERROR


def test_errors_that_nobody_knows_are_kept() -> None:
    again, one = takes(AssignmentInfo(error_code=77), {})
    assert (again, one.error, one.message) == (None, 77, "the leader sent error 77")


@pytest.mark.parametrize(
    ("at", "after"), [(0, 0), (NO_REBALANCE_MS, None), (1_700_000_000_000, PROBING_REBALANCE_MS)]
)
def test_when_the_leader_wants_it_a_member_joins_again(at: int, after: int | None) -> None:
    assert takes(AssignmentInfo(next_rebalance_ms=at), {})[0] == after


def test_tasks_go_by_the_order_of_partitions() -> None:
    info = AssignmentInfo(active_tasks=(TaskId(0, 0), TaskId(0, 1), TaskId(0, 0)))
    _, one = takes(info, {"u": (0,), "t": (1, 0)})
    assert one.active_tasks == {
        TaskId(0, 0): (TopicPartition("t", 0), TopicPartition("u", 0)),
        TaskId(0, 1): (TopicPartition("t", 1),),
    }


def test_where_instances_answer_queries_is_told_to_all() -> None:
    group = Group(
        a=thread(1, user_endpoint="here:80"),
        b=thread(1, user_endpoint="here:80"),
        c=thread(2, user_endpoint="[::1]:81"),
        d=thread(3, user_endpoint="nonsense"),
    )
    given_ = group.round({"t": 4})
    hosts = read_assignment_info(given_["d"].user_data).partitions_by_host
    assert sorted(hosts) == [HostInfo("::1", 81), HostInfo("here", 80)]
    assert [len(hosts[host]) for host in sorted(hosts)] == [1, 2]
    assert set(group.again.values()) == {None}
    info = AssignmentInfo(partitions_by_host={HostInfo("elsewhere", 1): ()})
    assert takes(info, {}, user_endpoint="here:80")[0] == 0
