"""Settings of topics and groups: what may be set, what is told, and what it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.administration import (
    AlterConfigsRequest,
    ChangedResource,
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    DescribeConfigsRequest,
    ResourceType,
)
from fencepost.coordinator.protocol.cluster import DescribeTopicPartitionsRequest, PartitionCursor
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server import config_apis
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.cluster_apis import describe_topic_partitions
from fencepost.coordinator.server.topic_configs import TOPIC_SETTINGS, read_topic_configs

pytestmark = pytest.mark.real

ASKED: Any = SimpleNamespace(may=None)
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.fixture
async def brokers():
    async with Brokers({"orders": 3, "payments": 2}, config=GroupCoordinatorConfig()) as found:
        yield found


def alter(brokers: Brokers, kind: int, name: str, *changes: tuple[Any, ...], **fields: Any) -> str:
    request = AlterConfigsRequest(
        resources=(
            ChangedResource(
                resource_type=kind, name=name, changes=tuple(ConfigChange(*each) for each in changes)
            ),
        ),
        **fields,
    )
    (result,) = config_apis.alter_configs(brokers.services[0], request, ASKED).resources
    return result.error_code.name


def entry_of(brokers: Brokers, kind: int, name: str, key: str) -> ConfigEntry:
    request = DescribeConfigsRequest(
        resources=(ConfigResource(resource_type=kind, name=name, keys=(key,)),), include_synonyms=True
    )
    (resource,) = config_apis.describe_configs(brokers.services[0], request, ASKED).resources
    assert resource.error_message == ""
    (entry,) = resource.entries
    return entry


def told(brokers: Brokers, kind: int, name: str, key: str) -> tuple[str | None, ConfigSource]:
    entry = entry_of(brokers, kind, name, key)
    assert [each[1:] for each in entry.synonyms[:1]] in ([], [(entry.value, entry.source)])
    return entry.value, entry.source


def default(name: str, value: str) -> tuple[str, str, ConfigSource]:
    return name, value, ConfigSource.DEFAULT


@pytest.mark.parametrize(
    ("kind", "name", "value", "source", "others"),
    [
        (TOPIC, "segment.bytes", "2000000", 1, [default("log.segment.bytes", "1073741824")]),
        (TOPIC, "retention.ms", "5", 1, []),
        (
            GROUP,
            "streams.session.timeout.ms",
            "50000",
            8,
            [default("group.streams.session.timeout.ms", "45000")],
        ),
    ],
)
async def test_synonyms_are_what_else_is_set_and_the_brokers_default(
    brokers, kind, name, value, source, others
):
    assert list(entry_of(brokers, kind, "orders", name).synonyms) == others
    alter(brokers, kind, "orders", (name, value))
    assert list(entry_of(brokers, kind, "orders", name).synonyms) == [(name, value, source), *others]


async def test_settings_of_topics_are_set_told_and_taken_back(brokers):
    assert told(brokers, TOPIC, "orders", "cleanup.policy") == ("delete", ConfigSource.DEFAULT)
    assert alter(brokers, TOPIC, "orders", ("cleanup.policy", "compact")) == "NONE"
    assert told(brokers, TOPIC, "orders", "cleanup.policy") == ("compact", ConfigSource.DYNAMIC_TOPIC)
    assert told(brokers, TOPIC, "payments", "cleanup.policy")[0] == "delete"
    assert alter(brokers, TOPIC, "orders", ("cleanup.policy", "delete", ConfigOperation.APPEND)) == "NONE"
    assert told(brokers, TOPIC, "orders", "cleanup.policy")[0] == "compact,delete"
    assert alter(brokers, TOPIC, "orders", ("cleanup.policy", "compact", ConfigOperation.SUBTRACT)) == "NONE"
    assert told(brokers, TOPIC, "orders", "cleanup.policy")[0] == "delete"
    assert alter(brokers, TOPIC, "orders", ("cleanup.policy", None, ConfigOperation.DELETE)) == "NONE"
    assert told(brokers, TOPIC, "orders", "cleanup.policy") == ("delete", ConfigSource.DEFAULT)


async def test_the_older_request_replaces_all_that_was_set(brokers):
    alter(brokers, TOPIC, "orders", ("retention.ms", "5"), ("segment.ms", "7"))
    assert alter(brokers, TOPIC, "orders", ("segment.ms", "8"), incremental=False) == "NONE"
    assert told(brokers, TOPIC, "orders", "retention.ms") == ("-1", ConfigSource.DEFAULT)
    assert told(brokers, TOPIC, "orders", "segment.ms")[0] == "8"


async def test_a_question_changes_nothing(brokers):
    assert alter(brokers, TOPIC, "orders", ("retention.ms", "5"), validate_only=True) == "NONE"
    assert told(brokers, TOPIC, "orders", "retention.ms")[0] == "-1"
    assert alter(brokers, TOPIC, "orders", ("retention.ms", "soon"), validate_only=True) == "INVALID_CONFIG"


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "orders", [("nope", "1")], "INVALID_CONFIG"),
        (TOPIC, "orders", [("retention.ms", "x")], "INVALID_CONFIG"),
        (TOPIC, "orders", [("retention.ms", "-2")], "INVALID_CONFIG"),
        (TOPIC, "orders", [("retention.ms", None)], "INVALID_REQUEST"),
        (TOPIC, "orders", [("retention.ms", None, ConfigOperation.APPEND)], "INVALID_REQUEST"),
        (TOPIC, "nowhere", [("retention.ms", "abc")], "INVALID_CONFIG"),
        (TOPIC, "", [("retention.ms", "1")], "INVALID_REQUEST"),
        (TOPIC, "orders", [("retention.ms", "1"), ("retention.ms", "2")], "INVALID_REQUEST"),
        (TOPIC, "orders", [("retention.ms", "1", 2)], "INVALID_CONFIG"),
        (TOPIC, "orders", [("retention.ms", "1", 9)], "INVALID_REQUEST"),
        (TOPIC, "nowhere", [("retention.ms", "1")], "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "a b", [("retention.ms", "1")], "INVALID_TOPIC_EXCEPTION"),
        (GROUP, "", [("consumer.session.timeout.ms", "50000")], "INVALID_REQUEST"),
        (GROUP, "g", [("consumer.session.timeout.ms", "1")], "INVALID_CONFIG"),
        (GROUP, "g", [("consumer.nope", "1")], "INVALID_CONFIG"),
        (ResourceType.BROKER, "1", [("group.max.size", "1")], "INVALID_REQUEST"),
        (99, "x", [("y", "1")], "INVALID_REQUEST"),
    ],
)
async def test_what_is_refused_changes_nothing(brokers, kind, name, changes, code):
    assert alter(brokers, kind, name, *changes) == code
    assert brokers.cluster.configs == {}


async def test_a_resource_that_comes_twice_is_refused(brokers):
    one = ChangedResource(resource_type=TOPIC, name="orders", changes=(ConfigChange("retention.ms", "1"),))
    reply = config_apis.alter_configs(brokers.services[0], AlterConfigsRequest(resources=(one, one)), ASKED)
    assert [result.error_code.name for result in reply.resources] == ["INVALID_REQUEST"] * 2


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("cleanup.policy", "delete, compact", "delete,compact"),
        ("cleanup.policy", " compact,compact ", "compact"),
        ("retention.ms", " +5 ", "5"),
        ("retention.ms", "007", "7"),
        ("preallocate", "True", "true"),
        ("compression.type", " gzip ", "gzip"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("min.cleanable.dirty.ratio", ".5d", "0.5"),
        ("leader.replication.throttled.replicas", "0:1, 1:1", "0:1,1:1"),
        ("leader.replication.throttled.replicas", "0:1, ,0:1,", "0:1,,0:1,"),
        ("retention.bytes", "-2", "-2"),
    ],
)
async def test_settings_of_topics_are_read_as_by_kafka(brokers, name, written, read):
    assert alter(brokers, TOPIC, "orders", (name, written)) == "NONE"
    assert told(brokers, TOPIC, "orders", name) == (read, ConfigSource.DYNAMIC_TOPIC)


async def test_a_list_with_spaces_is_a_list(brokers):
    alter(brokers, TOPIC, "orders", ("cleanup.policy", "delete, compact"))
    log = brokers.cluster.log(brokers.cluster.image.by_name["orders"], 0)
    assert log.settings.compacts


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("max.message.bytes", "5000000000", "Not a number of type INT"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "0_1", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "2", "Value must be no more than 1"),
        ("segment.bytes", "1", "Value must be at least 1048576"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("message.timestamp.type", "now", "String must be one of: CreateTime, LogAppendTime"),
        ("cleanup.policy", "compact,keep", "String must be one of: compact, delete"),
        ("cleanup.policy", "compact,", "values must not be empty"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("leader.replication.throttled.replicas", "all", "expected the literal '*' or a list"),
        ("leader.replication.throttled.replicas", "*,*", "expected the literal '*' or a list"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker"),
    ],
)
def test_what_is_wrong_with_a_setting_of_a_topic_is_told(name, value, problem):
    with pytest.raises(ProtocolError) as refused:
        read_topic_configs({name: value})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message.startswith(f"Invalid value {value} for configuration {name}: {problem}")


def test_records_cannot_be_kept_from_compaction_for_longer_than_until_compaction():
    with pytest.raises(
        ProtocolError, match=r"min\.compaction\.lag\.ms \(9\) > max\.compaction\.lag\.ms \(8\)"
    ):
        read_topic_configs({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


async def test_settings_of_a_group_hold_for_its_members_also_after_a_restart(brokers):
    def session_ms() -> int:
        (runner,) = brokers.groups.active()
        return runner.coordinator.settings("g").session_timeout_ms

    assert session_ms() == 45_000
    assert alter(brokers, GROUP, "g", ("consumer.session.timeout.ms", " +50000 ")) == "NONE"
    assert told(brokers, GROUP, "g", "consumer.session.timeout.ms") == ("50000", ConfigSource.DYNAMIC_GROUP)
    assert session_ms() == 50_000
    brokers.restart()
    assert session_ms() == 50_000
    alter(brokers, GROUP, "g", ("consumer.session.timeout.ms", None, ConfigOperation.DELETE))
    assert session_ms() == 45_000


async def test_the_largest_batch_is_what_the_topic_says(brokers):
    log = brokers.cluster.log(brokers.cluster.image.by_name["orders"], 0)
    alter(brokers, TOPIC, "orders", ("max.message.bytes", "1000"))
    assert log.settings.max_batch_bytes == 1_000
    assert brokers.cluster.log(brokers.cluster.image.by_name["orders"], 1).settings.max_batch_bytes == 1_000
    alter(brokers, TOPIC, "orders", ("max.message.bytes", None, ConfigOperation.DELETE))
    assert log.settings.max_batch_bytes == 1_048_588


async def test_a_topic_that_is_created_again_has_no_settings(brokers):
    alter(brokers, TOPIC, "orders", ("retention.ms", "5"))
    brokers.cluster.delete_topic(brokers.cluster.image.by_name["orders"])
    brokers.cluster.create_topics({"orders": 1})
    assert told(brokers, TOPIC, "orders", "retention.ms")[0] == "-1"


def test_every_default_is_allowed():
    defaults = {name: setting.default for name, setting in TOPIC_SETTINGS.items()}
    assert read_topic_configs(defaults) == defaults
    assert list(TOPIC_SETTINGS) == sorted(TOPIC_SETTINGS)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
async def test_topics_are_described_in_parts(brokers, limit):
    found: list[tuple[str, int]] = []
    cursor: PartitionCursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(topics=(), partition_limit=limit, cursor=cursor)
        reply = describe_topic_partitions(brokers.services[0], request, ASKED)
        part = [(str(topic.name), one.partition) for topic in reply.topics for one in topic.partitions]
        assert 0 < len(part) <= limit
        found += part
        cursor = reply.next_cursor
        if cursor is None:
            break
    assert found == [("orders", 0), ("orders", 1), ("orders", 2), ("payments", 0), ("payments", 1)]


async def test_a_topic_that_is_not_there_is_described_as_such(brokers):
    request = DescribeTopicPartitionsRequest(topics=("no", "orders"), partition_limit=100)
    reply = describe_topic_partitions(brokers.services[0], request, ASKED)
    assert [(topic.name, topic.error_code.name) for topic in reply.topics] == [
        ("no", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("orders", "NONE"),
    ]
