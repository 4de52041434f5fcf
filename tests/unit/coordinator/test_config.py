from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.config import (
    ConsumerGroupMigrationPolicy,
    ConsumerGroupSettings,
    GroupConfig,
    GroupCoordinatorConfig,
)
from fencepost.coordinator.protocol.errors import FencepostError

DEFAULTS = {
    "group.consumer.session.timeout.ms": 45000,
    "group.consumer.min.session.timeout.ms": 45000,
    "group.consumer.max.session.timeout.ms": 60000,
    "group.consumer.heartbeat.interval.ms": 5000,
    "group.consumer.min.heartbeat.interval.ms": 5000,
    "group.consumer.max.heartbeat.interval.ms": 15000,
    "group.consumer.max.size": 2147483647,
    "group.consumer.assignors": ("uniform", "range"),
    "group.consumer.migration.policy": "bidirectional",
    "group.consumer.assignment.interval.ms": 1000,
    "group.consumer.min.assignment.interval.ms": 0,
    "group.consumer.max.assignment.interval.ms": 15000,
    "group.consumer.assignor.offload.enable": True,
    "group.consumer.regex.refresh.interval.ms": 600000,
    "group.streams.session.timeout.ms": 45000,
    "group.streams.min.session.timeout.ms": 45000,
    "group.streams.max.session.timeout.ms": 60000,
    "group.streams.heartbeat.interval.ms": 5000,
    "group.streams.min.heartbeat.interval.ms": 5000,
    "group.streams.max.heartbeat.interval.ms": 15000,
    "group.streams.max.size": 2147483647,
    "group.streams.num.standby.replicas": 0,
    "group.streams.max.standby.replicas": 2,
    "group.streams.initial.rebalance.delay.ms": 3000,
    "group.streams.assignment.interval.ms": 1000,
    "group.streams.min.assignment.interval.ms": 0,
    "group.streams.max.assignment.interval.ms": 15000,
    "group.coordinator.rebalance.protocols": ("classic", "consumer", "streams"),
    "group.coordinator.threads": 4,
    "group.coordinator.background.threads": 2,
    "group.coordinator.append.linger.ms": -1,
    "group.coordinator.cached.buffer.max.bytes": 1024 * 1024 + 12,
    "group.min.session.timeout.ms": 6000,
    "group.max.session.timeout.ms": 1800000,
    "group.initial.rebalance.delay.ms": 3000,
    "group.max.size": 2147483647,
    "offset.metadata.max.bytes": 4096,
    "offsets.retention.minutes": 10080,
    "offsets.retention.check.interval.ms": 600000,
    "offsets.commit.timeout.ms": 5000,
    "offsets.load.buffer.size": 5242880,
    "offsets.topic.num.partitions": 50,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.segment.bytes": 104857600,
    "offsets.topic.compression.codec": 0,
    "transaction.max.timeout.ms": 900_000,
    "transactional.id.expiration.ms": 604_800_000,
    "release.version": "4.3",
}
"""Kafka 4.3."""

FAST = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.assignment.interval.ms": "0",
}


def test_names_and_defaults_are_kafkas() -> None:
    config = GroupCoordinatorConfig()
    fields = {field.replace("_", "."): getattr(config, field) for field in config.__struct_fields__}
    assert fields == DEFAULTS


def test_each_name_can_be_given_as_text() -> None:
    text = {
        name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in DEFAULTS.items()
    }
    assert GroupCoordinatorConfig.from_properties(text) == GroupCoordinatorConfig()
    assert GroupCoordinatorConfig.from_properties(DEFAULTS) == GroupCoordinatorConfig()


def test_bounds_may_be_lowered_with_what_they_bound() -> None:
    config = GroupCoordinatorConfig.from_properties(FAST)
    assert config.group_consumer_session_timeout_ms == 2000
    assert config.group_consumer_heartbeat_interval_ms == 100
    assert config.group_consumer_assignment_interval_ms == 0


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("group.consumer.max.size", " 7 ", 7),
        ("group.consumer.assignors", "range , uniform", ("range", "uniform")),
        ("group.consumer.assignors", ["mine"], ("mine",)),
        ("group.consumer.migration.policy", "Upgrade", ConsumerGroupMigrationPolicy.UPGRADE),
        ("group.consumer.assignor.offload.enable", "FALSE", False),
        ("group.consumer.assignor.offload.enable", False, False),
        ("group.coordinator.append.linger.ms", "-1", -1),
        ("offsets.retention.check.interval.ms", str(2**40), 2**40),
    ],
)
def test_text_is_read_as_kafka_reads_it(name: str, text: object, value: object) -> None:
    config = GroupCoordinatorConfig.from_properties({name: text})
    assert getattr(config, name.replace(".", "_")) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "group.consumer.sesion.timeout.ms",
            "1",
            "unknown configuration 'group.consumer.sesion.timeout.ms'; did you mean"
            " group.consumer.session.timeout.ms",
        ),
        ("nothing.like.it", "1", "known are group.consumer.session.timeout.ms, "),
        ("group.consumer.session.timeout.ms", "45s", "'45s' is not a whole number"),
        ("group.consumer.session.timeout.ms", True, "True is not a whole number"),
        ("group.consumer.session.timeout.ms", 1.5, "1.5 is not a whole number"),
        ("group.consumer.session.timeout.ms", "²", "is not a whole number"),
        (
            "group.consumer.session.timeout.ms",
            "44999",
            "44999 is out of range, allowed are 45000 to 60000 (group.consumer.min.session.timeout.ms,"
            " group.consumer.max.session.timeout.ms)",
        ),
        ("group.consumer.session.timeout.ms", "60001", "allowed are 45000 to 60000"),
        ("group.consumer.heartbeat.interval.ms", "15001", "allowed are 5000 to 15000"),
        ("group.consumer.assignment.interval.ms", "15001", "allowed are 0 to 15000"),
        ("group.consumer.assignment.interval.ms", "-1", "-1 is out of range, allowed is at least 0"),
        ("group.consumer.max.size", "0", "group.consumer.max.size: 0 is out of range, allowed is at least 1"),
        ("group.consumer.max.size", str(2**31), "2147483648 is out of range"),
        ("group.consumer.max.size", "9" * 5_000, "is not a whole number"),
        ("group.consumer.max.session.timeout.ms", "44000", "must be at least"),
        ("group.consumer.regex.refresh.interval.ms", "9999", "allowed is at least 10000"),
        ("group.consumer.assignors", "", "must name at least one"),
        ("group.consumer.assignors", "uniform,,range", "no name may be blank"),
        ("group.consumer.assignors", "range,range", "names one of range, range twice"),
        ("group.consumer.assignors", 5, "5 is not a list of names separated by commas"),
        (
            "group.consumer.migration.policy",
            "up",
            "'up' is not one of bidirectional, upgrade, downgrade, disabled",
        ),
        ("group.consumer.assignor.offload.enable", "yes", "'yes' is not true or false"),
        ("group.coordinator.rebalance.protocols", "classic,raft", "'raft' is not one of classic, consumer"),
        ("group.coordinator.rebalance.protocols", "consumer", "must hold 'classic'"),
        ("offsets.topic.replication.factor", "0", "allowed is 1 to 32767"),
    ],
)
def test_a_mistake_says_which_setting_and_what_is_allowed(name: str, value: object, message: str) -> None:
    with pytest.raises(FencepostError) as refused:
        GroupCoordinatorConfig.from_properties({name: value})
    assert message in str(refused.value)
    assert name in str(refused.value)
    assert refused.value.exit_code == 2


def test_the_heartbeat_interval_is_below_the_session_timeout() -> None:
    with pytest.raises(FencepostError, match=r"must be less than group\.consumer\.session\.timeout\.ms 100"):
        GroupCoordinatorConfig.from_properties({**FAST, "group.consumer.session.timeout.ms": "100"})


def test_a_value_made_in_code_is_checked_too() -> None:
    with pytest.raises(FencepostError, match=r"group\.consumer\.max\.size: 0 is out of range"):
        GroupCoordinatorConfig(group_consumer_max_size=0)
    with pytest.raises(FencepostError, match=r"group\.consumer\.session\.timeout\.ms: 1 is out of range"):
        msgspec.structs.replace(GroupCoordinatorConfig(), group_consumer_session_timeout_ms=1)


def test_retention_is_in_minutes() -> None:
    assert GroupCoordinatorConfig(offsets_retention_minutes=2).offsets_retention_ms == 120_000


BROKER = GroupCoordinatorConfig()


def test_a_group_without_its_own_settings_has_the_brokers() -> None:
    assert GroupConfig().settings(BROKER) == ConsumerGroupSettings(
        session_timeout_ms=45000,
        heartbeat_interval_ms=5000,
        assignment_interval_ms=1000,
        assignor_offload_enable=True,
    )


def test_a_groups_own_settings_win() -> None:
    properties = {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "6000",
        "consumer.assignment.interval.ms": "0",
        "consumer.assignor.offload.enable": "false",
    }
    assert GroupConfig.from_properties(properties, BROKER).settings(BROKER) == ConsumerGroupSettings(
        session_timeout_ms=50000,
        heartbeat_interval_ms=6000,
        assignment_interval_ms=0,
        assignor_offload_enable=False,
    )


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "44999 is out of range, the broker allows 45000 to 60000"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "the broker allows 5000 to 15000"),
        ({"consumer.assignment.interval.ms": "15001"}, "the broker allows 0 to 15000"),
        ({"consumer.session.timeout.ms": "soon"}, "'soon' is not a whole number"),
        ({"consumer.session.timeout": "1"}, "did you mean consumer.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "1"}, "did you mean consumer.session.timeout.ms"),
    ],
)
def test_a_mistake_in_a_groups_settings_is_named(properties: dict[str, object], message: str) -> None:
    with pytest.raises(FencepostError) as refused:
        GroupConfig.from_properties(properties, BROKER)
    assert message in str(refused.value)


def test_a_groups_heartbeat_interval_is_below_its_session_timeout() -> None:
    broker = GroupCoordinatorConfig.from_properties(FAST)
    with pytest.raises(FencepostError, match="must be less than"):
        GroupConfig.from_properties({"consumer.session.timeout.ms": "100"}, broker)


def test_a_setting_outside_the_brokers_new_bounds_is_moved_to_the_bound() -> None:
    group = GroupConfig(consumer_session_timeout_ms=2000, consumer_assignment_interval_ms=20_000)
    settings = group.settings(BROKER)
    assert settings.session_timeout_ms == 45000
    assert settings.assignment_interval_ms == 15000
