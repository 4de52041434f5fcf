"""What KIP848Consumer takes, what it refuses, and which exceptions a program sees."""

from __future__ import annotations

import subprocess
import sys

import pytest
from aiokafka import errors
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition as KafkaPartition

import fencepost
from fencepost import KIP848Consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.errors import (
    CommitFailed,
    FatalMemberError,
    NoOffsetForPartition,
    PositionOutOfRange,
)
from fencepost.member.kafka.errors import as_kafka_error
from fencepost.member.kafka.listener import ApplicationListener


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("session_timeout_ms", "group.consumer.session.timeout.ms"),
        ("heartbeat_interval_ms", "group.consumer.heartbeat.interval.ms"),
        ("partition_assignment_strategy", "group_remote_assignor"),
        ("rebalance_timeout_ms", "max_poll_interval_ms"),
    ],
)
async def test_what_the_broker_decides_is_refused(setting, advice):
    with pytest.raises(
        ValueError, match=f"{setting} can't be set with the consumer group protocol.*{advice}"
    ):
        KIP848Consumer("orders", group_id="g", **{setting: 1_000})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"group_id": None}, "group_id is needed"),
        ({"group_id": " "}, "group_id is needed"),
        ({"group_id": 3}, "group_id is needed.*got 3"),
        ({"isolation_level": "serializable"}, "isolation_level should be one of"),
        ({"auto_offset_reset": "middle"}, "auto_offset_reset should be one of.*by_duration:PnDTnHnMn.nS"),
        ({"auto_offset_reset": "error"}, "auto_offset_reset should be one of"),
        ({"auto_offset_reset": 3}, "auto_offset_reset should be one of.* got 3"),
        ({"auto_offset_reset": "by_duration"}, "auto_offset_reset should be one of"),
        ({"auto_offset_reset": "by_duration:3h"}, "auto_offset_reset: '3h' is not an ISO-8601 duration"),
        ({"auto_offset_reset": "by_duration:-PT1H"}, "auto_offset_reset: the duration '-PT1H' is negative"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"max_poll_records": True}, "max_poll_records"),
        ({"client_id": 5}, "client_id should be text, got 5"),
        ({"fetch_min_bytes": "1"}, "fetch_min_bytes should be a whole number"),
        ({"fetch_max_bytes": 2**31}, "fetch_max_bytes should be a whole number.*got 2147483648"),
        ({"fetch_max_wait_ms": 2**40}, "fetch_max_wait_ms should be"),
        ({"max_partition_fetch_bytes": -5}, "max_partition_fetch_bytes should be"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms: expected at least 1 ms"),
        ({"group_instance_id": " "}, "group_instance_id"),
        ({"group_instance_id": 3}, "group_instance_id: expected text or nothing, got 3"),
        ({"security_protocol": "CARRIER_PIGEON"}, "security_protocol"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_plain_username"),
        ({"security_protocol": "SSL"}, "ssl_context"),
    ],
)
async def test_impossible_settings(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        KIP848Consumer("orders", **{"group_id": "g", **settings})


async def test_a_setting_that_nobody_knows():
    with pytest.raises(TypeError, match="heartbeat_intervall_ms"):
        KIP848Consumer("orders", group_id="g", heartbeat_intervall_ms=3)  # type: ignore[call-arg]


async def plain(key):
    return key


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"key_deserializer": 3}, "key_deserializer should be a plain function, got 3"),
        ({"value_deserializer": "utf-8"}, "value_deserializer should be a plain function, got 'utf-8'"),
        ({"value_deserializer": plain}, "value_deserializer should be a plain function, got <function plain"),
        (
            {"sasl_oauth_token_provider": "secret"},
            "sasl_oauth_token_provider should have token; 'secret' has no",
        ),
        ({"observer": print}, "observer should have on_state, .* has no on_state and no on_request"),
    ],
)
async def test_what_can_not_be_called(settings, complaint):
    with pytest.raises(TypeError, match=complaint):
        KIP848Consumer("orders", group_id="g", **settings)


@pytest.mark.parametrize("listener", [object(), print, "listener"])
async def test_listeners_that_are_none(listener):
    with pytest.raises(TypeError, match="has no on_partitions_revoked"):
        KIP848Consumer("orders", group_id="g", listener=listener)
    consumer = KIP848Consumer(group_id="g")
    with pytest.raises(TypeError, match="has no on_partitions_revoked"):
        consumer.subscribe(["orders"], listener=listener)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"topics": ["a"], "pattern": "b"}, {"topics": "orders"}, {"pattern": 7}, {"topics": [7]}],
    ids=["nothing", "both", "a string", "no string", "no strings"],
)
async def test_impossible_subscriptions(arguments):
    with pytest.raises(TypeError):
        KIP848Consumer(group_id="g").subscribe(**arguments)


async def test_a_refused_subscription_changes_nothing():
    consumer = KIP848Consumer("orders", group_id="g")
    for refused in ({"topics": [7]}, {"topics": [""]}, {"topics": ["a"], "listener": 7}):
        with pytest.raises(TypeError):
            consumer.subscribe(**refused)
    assert consumer.subscription() == {"orders"}


async def test_before_the_start():
    consumer = KIP848Consumer("orders", group_id="g")
    assert consumer.assignment() == set()
    assert consumer.subscription() == {"orders"}
    for call in (
        consumer.getone,
        consumer.getmany,
        consumer.commit,
        lambda: consumer.committed(("orders", 0)),
    ):
        with pytest.raises(errors.IllegalStateError, match="not started"):
            await call()
    await consumer.stop()
    with pytest.raises(errors.ConsumerStoppedError):
        consumer.subscribe(["orders"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitFailed(ErrorCode.STALE_MEMBER_EPOCH, "x"), errors.CommitFailedError),
        (CommitFailed(ErrorCode.UNKNOWN_MEMBER_ID, "x"), errors.CommitFailedError),
        (CommitFailed(ErrorCode.OFFSET_METADATA_TOO_LARGE, "x"), errors.OffsetMetadataTooLargeError),
        (FatalMemberError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "x"), errors.GroupAuthorizationFailedError),
        (FatalMemberError(ErrorCode.UNSUPPORTED_VERSION, "x"), errors.UnsupportedVersionError),
        (FatalMemberError(ErrorCode.UNKNOWN_SERVER_ERROR, "x"), errors.UnknownError),
        (FatalMemberError(ErrorCode.UNRELEASED_INSTANCE_ID, "x"), errors.KafkaError),
        (NoOffsetForPartition(ErrorCode.OFFSET_OUT_OF_RANGE, "x"), errors.NoOffsetForPartitionError),
        (PositionOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, "x"), errors.OffsetOutOfRangeError),
    ],
)
def test_errors_are_aiokafka_s(error, kind):
    raised = as_kafka_error(error)
    assert type(raised) is kind
    assert error.code.name in str(raised)


class Aiokafkas(ConsumerRebalanceListener):
    def __init__(self):
        self.heard = []

    def on_partitions_revoked(self, revoked):
        self.heard.append(("revoked", revoked))

    def on_partitions_assigned(self, assigned):
        self.heard.append(("assigned", assigned))


class Ours(Aiokafkas):
    def on_partitions_lost(self, lost):
        self.heard.append(("lost", lost))


@pytest.mark.parametrize(("listener", "of_lost"), [(Aiokafkas(), "revoked"), (Ours(), "lost")])
def test_lost_partitions_are_revoked_to_those_who_know_no_better(listener, of_lost):
    adapter = ApplicationListener(listener)
    partition = KafkaPartition("orders", 0)
    adapter.on_partitions_assigned((TopicPartition("orders", 0),))
    adapter.on_partitions_lost((TopicPartition("orders", 0),))
    assert listener.heard == [("assigned", {partition}), (of_lost, {partition})]
    assert all(type(each) is KafkaPartition for _, partitions in listener.heard for each in partitions)
    adapter.replace(None)
    adapter.on_partitions_revoked(())
    assert len(listener.heard) == 2


@pytest.mark.processes
def test_the_package_stays_light_until_the_consumer_is_asked_for():
    code = (
        "import sys, fencepost; assert not {'aiokafka', 'kio'} & set(sys.modules);"
        "fencepost.KIP848Consumer; assert 'aiokafka' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="KIP849Consumer"):
        _ = fencepost.KIP849Consumer
