"""The broker's settings that topics inherit: each can be set at the start, is told, and takes effect."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.cluster import MetadataRequest, TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.server import admin_apis, cluster_apis, config_apis, topic_configs
from fencepost.coordinator.server.brokers import Brokers

pytestmark = pytest.mark.real

VALUES = {
    "cleanup.policy": "compact",
    "compression.type": "gzip",
    "message.timestamp.type": "LogAppendTime",
    "min.cleanable.dirty.ratio": "0.25",
    "preallocate": "true",
    "unclean.leader.election.enable": "true",
    "segment.bytes": "2000000",
}


def asked(api_version: int = 13) -> Any:
    return SimpleNamespace(local_host="127.0.0.1", context=RequestContext(api_version, "c", "/127.0.0.1"))


def brokers_with(count: int = 1, topics: dict[str, int] | None = None, **properties: Any) -> Brokers:
    config = topic_configs.BrokerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )
    return Brokers(topics, ports=(0,) * count, config=config.groups, **config.options)


def entries(brokers: Brokers, kind: int, name: str, *keys: str) -> Any:
    request = administration.DescribeConfigsRequest(
        resources=(administration.ConfigResource(resource_type=kind, name=name, keys=keys),),
        include_synonyms=True,
    )
    (resource,) = config_apis.describe_configs(brokers.services[0], request, asked()).resources
    return resource.entries


@pytest.mark.parametrize("topic_setting", topic_configs.BROKER_SETTINGS)
async def test_a_topic_inherits_each_setting_of_the_broker(topic_setting: str) -> None:
    name, value = topic_configs.BROKER_SETTINGS[topic_setting], VALUES.get(topic_setting, "7")
    async with brokers_with(1, {"orders": 1}, **{name: value}) as brokers:
        (entry,) = entries(brokers, administration.ResourceType.TOPIC, "orders", topic_setting)
        assert (entry.value, entry.source) == (value, administration.ConfigSource.STATIC_BROKER)
        assert entry.synonyms[0] == (name, value, administration.ConfigSource.STATIC_BROKER)
        (entry,) = entries(brokers, administration.ResourceType.BROKER, "1", name)
        assert (entry.value, entry.source) == (value, administration.ConfigSource.STATIC_BROKER)


@pytest.mark.parametrize("name", topic_configs.TIME_SETTINGS)
async def test_a_topic_inherits_each_time_in_milliseconds(name: str) -> None:
    setting = topic_configs.TIME_SETTINGS[name]
    async with brokers_with(1, {"orders": 1}, **{name: 7}) as brokers:
        (entry,) = entries(brokers, administration.ResourceType.TOPIC, "orders", setting.topic_setting)
        assert entry.value == str(7 * setting.unit_ms)
        (entry,) = entries(brokers, administration.ResourceType.BROKER, "1", name)
        assert entry.value == "7"


def test_the_smaller_unit_holds() -> None:
    defaults = topic_configs.TopicDefaults({"log.retention.hours": 1, "log.retention.ms": "5"})
    assert defaults.value_of("retention.ms") == "5"


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"message.max.bytes": "many"}, "message.max.bytes: 'many': Not a number of type INT"),
        ({"compression.type": "rar"}, "compression.type: 'rar': String must be one of"),
        ({"log.retention.ms": 0}, "log.retention.ms: 0: must be unlimited (-1)"),
        ({"message.max.byte": 1}, "unknown configuration 'message.max.byte'; did you mean mes"),
        ({"queued.max.request.bytes": "1e9"}, "queued.max.request.bytes: '1e9': Not a number of type LONG"),
        (
            {"queued.max.request.bytes": 1_000},
            "queued.max.request.bytes: 1000: expected at least 104857600 (socket.request.max.bytes), or -1",
        ),
        ({"log.preallocate": None}, "log.preallocate: None: expected text, a number, true or false"),
        (
            {"log.cleaner.min.compaction.lag.ms": 5, "log.cleaner.max.compaction.lag.ms": 1},
            "log.cleaner.min.compaction.lag.ms 5 must be at most log.cleaner.max.compaction.lag.ms 1",
        ),
    ],
)
def test_what_is_wrong_with_a_setting_is_told(properties: dict[str, Any], told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        topic_configs.BrokerConfig.from_properties(properties)
    assert str(wrong.value).startswith(told)


async def test_settings_are_described_in_the_order_asked() -> None:
    async with brokers_with() as brokers:
        for names in (
            ("default.replication.factor", "num.partitions"),
            ("num.partitions", "log.preallocate"),
        ):
            found = entries(brokers, administration.ResourceType.BROKER, "1", *names, "nope", names[0])
            assert [entry.name for entry in found] == list(names)


@pytest.mark.parametrize(("version", "code"), [(1, "INVALID_REQUEST"), (3, "TOPIC_DELETION_DISABLED")])
async def test_topics_stay_if_deletion_is_disabled(version: int, code: str) -> None:
    async with brokers_with(1, {"orders": 1}, delete_topic_enable="false") as brokers:
        request = administration.DeleteTopicsRequest(topics=(TopicReference(name="orders"),))
        (topic,) = admin_apis.delete_topics(brokers.services[0], request, asked(version)).topics
        assert topic.error_code is ErrorCode[code]
        assert "orders" in brokers.cluster.image.by_name


async def test_new_topics_have_the_default_replication_factor() -> None:
    properties = {"default.replication.factor": 3, "auto.create.topics.enable": True}
    async with brokers_with(3, {"orders": 1}, **properties) as brokers:
        request = MetadataRequest(topics=(TopicReference(name="orders"), TopicReference(name="payments")))
        topics = cluster_apis.metadata(brokers.services[0], request, asked()).topics
        assert [len(topic.partitions[0].replicas) for topic in topics] == [3, 3]
    async with brokers_with(1, None, **properties) as brokers:
        (topic, _) = cluster_apis.metadata(brokers.services[0], request, asked()).topics
        assert topic.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(FencepostError, match=r"only 1 broker\(s\) are registered"):
        brokers_with(1, {"orders": 1}, **properties)


@pytest.mark.parametrize(
    ("retries", "codes"),
    [(True, ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]), (False, ["NONE", "NONE"])],
)
async def test_a_topic_on_demand_is_unknown_at_first_if_clients_shall_retry(
    retries: bool, codes: list[str]
) -> None:
    properties = {"auto.create.topics.enable": True, "auto.create.topics.retry.enable": retries}
    async with brokers_with(1, None, **properties) as brokers:
        request = MetadataRequest(topics=(TopicReference(name="orders"),))
        found = [cluster_apis.metadata(brokers.services[0], request, asked()).topics[0] for _ in range(2)]
        assert [topic.error_code.name for topic in found] == codes


async def test_a_refusal_names_the_type_of_the_resource() -> None:
    async with brokers_with() as brokers:
        request = administration.AlterConfigsRequest(
            resources=(administration.ChangedResource(resource_type=4, name="1", changes=()),)
        )
        (result,) = config_apis.alter_configs(brokers.services[0], request, asked()).resources
        assert result.error_message is not None
        assert "broker resources" in result.error_message


async def test_one_broker_has_its_ids_and_starts_no_elections() -> None:
    keys = ("node.id", "broker.id", "auto.leader.rebalance.enable")
    async with brokers_with(2) as brokers:
        told = [entry.value for entry in entries(brokers, administration.ResourceType.BROKER, "2", *keys)]
        assert told == ["2", "2", "false"]
        assert entries(brokers, administration.ResourceType.BROKER, "", *keys) == ()


@pytest.mark.parametrize(
    ("given", "limit"), [("200000000", 200_000_000), (-1, sys.maxsize), (0, sys.maxsize)]
)
async def test_the_limit_of_queued_bytes_is_set_and_described(given: object, limit: int) -> None:
    name = "queued.max.request.bytes"
    async with brokers_with(**{name: given}) as brokers:
        assert brokers._buffers.limit == limit
        (entry,) = entries(brokers, administration.ResourceType.BROKER, "1", name)
        assert (entry.value, entry.source) == (str(given), administration.ConfigSource.STATIC_BROKER)
        assert entry.synonyms[1] == (name, "-1", administration.ConfigSource.DEFAULT)
