"""The metadata of Kafka Streams where it is not what it should be; its right bytes are compared elsewhere."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.streams import TaskId
from fencepost.member.classic.assignors.assignment_info import (
    AssignmentInfo,
    read_assignment_info,
    write_assignment_info,
)
from fencepost.member.classic.assignors.java_bytes import MalformedUserData, modified_utf8
from fencepost.member.classic.assignors.streams_metadata import HostInfo
from fencepost.member.classic.assignors.subscription_info import (
    SubscriptionInfo,
    read_subscription_info,
    write_subscription_info,
)

PROCESS = uuid.UUID(int=7)
SUBSCRIPTION = SubscriptionInfo(
    process_id=PROCESS,
    user_endpoint="host:1",
    task_offset_sums={TaskId(0, 1): -2},
    error_code=4,
    client_tags={"zone": "a"},
)
ASSIGNMENT = AssignmentInfo(
    active_tasks=(TaskId(0, 1),),
    standby_tasks={TaskId(0, 2): (TopicPartition("orders", 2),)},
    partitions_by_host={HostInfo("host", 1): (TopicPartition("orders", 1),)},
)


@pytest.mark.parametrize("version", range(7, 12))
def test_both_infos_come_back_from_their_bytes(version: int) -> None:
    subscription = SubscriptionInfo(version=version, process_id=PROCESS, task_offset_sums={TaskId(1, 2): 30})
    assert read_subscription_info(write_subscription_info(subscription)) == subscription
    assignment = AssignmentInfo(version=version, active_tasks=(TaskId(1, 2),), error_code=4)
    assert read_assignment_info(write_assignment_info(assignment)) == assignment


def test_of_a_future_version_only_the_versions_are_read() -> None:
    data = (13).to_bytes(4, "big") + (14).to_bytes(4, "big") + b"whatever comes then"
    assert read_subscription_info(data) == SubscriptionInfo(version=13, latest_supported_version=14)
    with pytest.raises(MalformedUserData, match="version 13, expected 7 to 11"):
        read_assignment_info(data)


@pytest.mark.parametrize("data", [None, b"", b"\0\0\0\x0b", b"\0\0\0\x06\0\0\0\x06", b"\0\0\0\x0b\0\0\0\x0a"])
def test_strangers_are_told_apart(data: bytes | None) -> None:
    with pytest.raises(MalformedUserData):
        read_subscription_info(data)
    with pytest.raises(MalformedUserData):
        read_assignment_info(data)


def test_what_is_cut_short_is_malformed() -> None:
    whole = write_subscription_info(SUBSCRIPTION)
    for size in range(len(whole)):
        with pytest.raises(MalformedUserData):
            read_subscription_info(whole[:size])
    whole = write_assignment_info(ASSIGNMENT)
    for size in range(len(whole)):
        with pytest.raises(MalformedUserData):
            read_assignment_info(whole[:size])


@given(st.binary(max_size=200), st.integers(7, 11))
def test_any_bytes_are_read_or_malformed(data: bytes, version: int) -> None:
    data = version.to_bytes(4, "big") + (11).to_bytes(4, "big") + data
    for read in (read_subscription_info, read_assignment_info):
        with contextlib.suppress(MalformedUserData):
            read(data)


@given(st.data())
def test_any_changed_byte_is_read_or_malformed(data: st.DataObject) -> None:
    for read, whole in (
        (read_subscription_info, write_subscription_info(SUBSCRIPTION)),
        (read_assignment_info, write_assignment_info(ASSIGNMENT)),
    ):
        changed = bytearray(whole)
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(MalformedUserData):
            read(bytes(changed))


def test_what_can_not_be_written_is_refused() -> None:
    named = TaskId(0, 0, "payments")
    assert str(named) == "payments__0_0"
    with pytest.raises(ValueError, match="version 6, expected 7 to 11"):
        write_subscription_info(SubscriptionInfo(version=6))
    with pytest.raises(ValueError, match="version 11 is above 10"):
        write_subscription_info(SubscriptionInfo(latest_supported_version=10))
    with pytest.raises(ValueError, match="takes version 10"):
        write_subscription_info(SubscriptionInfo(version=9, task_offset_sums={named: 1}))
    with pytest.raises(ValueError, match="version 12"):
        write_assignment_info(AssignmentInfo(version=12))
    with pytest.raises(ValueError, match="takes version 10"):
        write_assignment_info(AssignmentInfo(version=9, active_tasks=(named,)))
    with pytest.raises(ValueError, match="at most 65535"):
        modified_utf8("x" * 70_000)
