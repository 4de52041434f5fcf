"""librdkafka's admin client against our endpoint."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from fencepost import EmbeddedKafka

pytestmark = pytest.mark.real
SECONDS = 60


@pytest.fixture
def admin(served):
    return AdminClient({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})


@pytest.fixture
def member(served):
    """A member of the group "g" that owns all of "orders"."""
    consumer = Consumer(
        {
            "bootstrap.servers": served.bootstrap_servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "client.id": "judge",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    while len(consumer.assignment()) < 12:
        consumer.poll(0.05)
    yield consumer
    consumer.close()


def failure(future) -> str:
    with pytest.raises(KafkaException) as caught:
        future.result(SECONDS)
    return caught.value.args[0].name()


def test_groups_are_listed_and_described(admin, member):
    listed = admin.list_consumer_groups().result(SECONDS)
    assert [(group.group_id, group.state, group.type) for group in listed.valid] == [
        ("g", ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    ]
    assert listed.errors == []
    group = admin.describe_consumer_groups(["g"])["g"].result(SECONDS)
    assert (group.state, group.type, group.partition_assignor) == (
        ConsumerGroupState.STABLE,
        ConsumerGroupType.CONSUMER,
        "uniform",
    )
    assert group.coordinator.id == 1
    (one,) = group.members
    assert (one.client_id, one.host) == ("judge", "/127.0.0.1")
    assert sorted(part.partition for part in one.assignment.topic_partitions) == list(range(12))


def test_groups_are_listed_by_state_and_type(admin, member):
    def ids(**filters):
        return [group.group_id for group in admin.list_consumer_groups(**filters).result(SECONDS).valid]

    assert ids(states={ConsumerGroupState.STABLE}) == ["g"]
    assert ids(states={ConsumerGroupState.EMPTY}) == []
    assert ids(types={ConsumerGroupType.CONSUMER}) == ["g"]
    assert ids(types={ConsumerGroupType.CLASSIC}) == []


def test_a_group_is_deleted_once_it_is_empty(admin, member):
    assert failure(admin.delete_consumer_groups(["g"])["g"]) == "NON_EMPTY_GROUP"
    member.close()
    assert admin.delete_consumer_groups(["g"])["g"].result(SECONDS) is None
    assert failure(admin.delete_consumer_groups(["g"])["g"]) == "GROUP_ID_NOT_FOUND"


def test_offsets_of_a_group_are_altered_and_listed(admin):
    wanted = [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 7)]
    asked = [ConsumerGroupTopicPartitions("simple", wanted)]
    altered = admin.alter_consumer_group_offsets(asked)["simple"].result(SECONDS)
    assert [one.error for one in altered.topic_partitions] == [None, None]
    everything = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("simple")])["simple"]
    found = everything.result(SECONDS).topic_partitions
    assert [(one.partition, one.offset) for one in found] == [(0, 5), (1, 7)]
    some = [
        ConsumerGroupTopicPartitions("simple", [TopicPartition("orders", 1), TopicPartition("orders", 2)])
    ]
    found = admin.list_consumer_group_offsets(some)["simple"].result(SECONDS).topic_partitions
    assert [(one.partition, one.offset) for one in found] == [(1, 7), (2, -1001)]


def test_offsets_of_partitions_that_do_not_exist_are_refused(admin):
    wanted = [
        TopicPartition("orders", 99, 5),
        TopicPartition("nowhere", 0, 5),
        TopicPartition("orders", 0, 1),
    ]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("simple", wanted)])["simple"]
    errors = {
        (one.topic, one.partition): one.error and one.error.code()
        for one in altered.result(SECONDS).topic_partitions
    }
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert errors == {("orders", 99): unknown, ("nowhere", 0): unknown, ("orders", 0): None}


def test_topics_are_created_described_grown_and_deleted(admin):
    admin.create_topics([NewTopic("new", 3, 1)])["new"].result(SECONDS)
    assert failure(admin.create_topics([NewTopic("new", 3, 1)])["new"]) == "TOPIC_ALREADY_EXISTS"
    assert failure(admin.create_topics([NewTopic("thrice", 3, 3)])["thrice"]) == "INVALID_REPLICATION_FACTOR"
    assert failure(admin.create_topics([NewTopic("no/slash", 3, 1)])["no/slash"]) == "TOPIC_EXCEPTION"
    assert failure(admin.create_topics([NewTopic("none", 0, 1)])["none"]) == "INVALID_PARTITIONS"
    (described,) = admin.describe_topics(TopicCollection(["new"])).values()
    topic = described.result(SECONDS)
    assert [part.leader.id for part in topic.partitions] == [1, 1, 1]
    assert failure(admin.create_partitions([NewPartitions("new", 3)])["new"]) == "INVALID_PARTITIONS"
    admin.create_partitions([NewPartitions("new", 5)])["new"].result(SECONDS)
    assert len(admin.list_topics("new", SECONDS).topics["new"].partitions) == 5
    admin.delete_topics(["new"])["new"].result(SECONDS)
    assert failure(admin.delete_topics(["new"])["new"]) == "UNKNOWN_TOPIC_OR_PART"
    assert sorted(admin.list_topics(timeout=SECONDS).topics) == ["orders", "single"]


def test_only_asking_creates_nothing(admin):
    admin.create_topics([NewTopic("new", 3, 1)], validate_only=True)["new"].result(SECONDS)
    assert "new" not in admin.list_topics(timeout=SECONDS).topics


def test_offsets_by_time(served, admin):
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for at in (1_000, 3_000, 2_000):
        producer.produce("single", b"value", timestamp=at)
        assert producer.flush(SECONDS) == 0
    partition = TopicPartition("single", 0)

    def offset(spec) -> tuple[int, int]:
        found = admin.list_offsets({partition: spec})[partition].result(SECONDS)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (3, -1)
    assert offset(OffsetSpec.max_timestamp()) == (1, 3_000)
    assert offset(OffsetSpec.for_timestamp(1_500)) == (1, 3_000)
    assert offset(OffsetSpec.for_timestamp(4_000))[0] == -1


def test_the_cluster_is_described(served, admin):
    cluster = admin.describe_cluster().result(SECONDS)
    assert [(node.id, f"{node.host}:{node.port}") for node in cluster.nodes] == [
        (1, served.bootstrap_servers)
    ]
    assert cluster.controller.id == 1
    assert cluster.cluster_id == served.broker.cluster.cluster_id


def test_settings_are_described(admin):
    topic, broker = ConfigResource(ResourceType.TOPIC, "orders"), ConfigResource(ResourceType.BROKER, "1")
    missing = ConfigResource(ResourceType.TOPIC, "nowhere")
    answers = admin.describe_configs([topic, broker, missing])
    assert answers[topic].result(SECONDS)["cleanup.policy"].value == "delete"
    settings = answers[broker].result(SECONDS)
    assert settings["group.consumer.session.timeout.ms"].value == "20000"
    assert not settings["group.consumer.session.timeout.ms"].is_default
    assert settings["group.consumer.max.size"].is_default
    assert failure(answers[missing]) == "UNKNOWN_TOPIC_OR_PART"


def test_brokers_tell_what_holds_for_topics_that_say_nothing(admin, cluster):
    def told(client: AdminClient) -> dict[str, ConfigEntry]:
        broker = ConfigResource(ResourceType.BROKER, "1")
        return client.describe_configs([broker])[broker].result(SECONDS)

    ours, kafkas = told(admin), told(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}))
    defaults = {
        name: entry.synonyms[name].value
        for name, entry in ours.items()
        if name in kafkas and entry.synonyms and "listener" not in name  # each has addresses of its own
    }
    assert defaults == {name: kafkas[name].synonyms[name].value for name in defaults}
    assert {"num.partitions", "log.cleanup.policy", "message.max.bytes"} <= defaults.keys()
    assert ours["auto.create.topics.enable"].value == kafkas["auto.create.topics.enable"].value == "false"
    assert not ours["auto.create.topics.enable"].is_default


def test_settings_are_altered_and_told(admin):
    def entry(name: str, value: str | None, operation=AlterConfigOpType.SET) -> ConfigEntry:
        return ConfigEntry(name, value, incremental_operation=operation)

    def alter(kind, name: str, change: ConfigEntry):
        resource = ConfigResource(kind, name, incremental_configs=[change])
        return admin.incremental_alter_configs([resource])[resource]

    topic, group = (ResourceType.TOPIC, "orders"), (ResourceType.GROUP, "g")
    assert alter(*topic, entry("retention.ms", "5000")).result(SECONDS) is None
    assert alter(*group, entry("consumer.session.timeout.ms", "5000")).result(SECONDS) is None
    assert failure(alter(*topic, entry("nope", "1"))) == "INVALID_CONFIG"
    assert failure(alter(*group, entry("consumer.session.timeout.ms", "1"))) == "INVALID_CONFIG"
    resources = [ConfigResource(*topic), ConfigResource(*group)]
    told = [found.result(SECONDS) for found in admin.describe_configs(resources).values()]
    assert told[0]["retention.ms"].value == "5000"
    assert told[0]["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert told[1]["consumer.session.timeout.ms"].value == "5000"
    assert not told[1]["consumer.session.timeout.ms"].is_read_only
    assert alter(*topic, entry("retention.ms", None, AlterConfigOpType.DELETE)).result(SECONDS) is None
    again = admin.describe_configs([resources[0]])[resources[0]].result(SECONDS)
    assert again["retention.ms"].is_default


def test_records_are_deleted(served, admin):
    producer = Producer({"bootstrap.servers": served.bootstrap_servers, "log_level": 0})
    for _ in range(5):
        producer.produce("single", b"x")
        assert producer.flush(SECONDS) == 0
    wanted = TopicPartition("single", 0, 3)
    assert admin.delete_records([wanted])[wanted].result(SECONDS).low_watermark == 3
    consumer = Consumer({"bootstrap.servers": served.bootstrap_servers, "group.id": "g", "log_level": 0})
    assert consumer.get_watermark_offsets(TopicPartition("single", 0), SECONDS) == (3, 5)
    consumer.close()
    beyond = TopicPartition("single", 0, 9)
    assert failure(admin.delete_records([beyond])[beyond]) == "OFFSET_OUT_OF_RANGE"


def test_topics_are_created_with_settings(admin):
    made = admin.create_topics(
        [
            NewTopic("good", 1, config={"cleanup.policy": "compact"}),
            NewTopic("bad", 1, config={"cleanup.policy": "burn"}),
        ]
    )
    assert made["good"].result(SECONDS) is None
    assert failure(made["bad"]) == "INVALID_CONFIG"
    resource = ConfigResource(ResourceType.TOPIC, "good")
    assert admin.describe_configs([resource])[resource].result(SECONDS)["cleanup.policy"].value == "compact"


def test_replicas_are_where_an_assignment_places_them():
    with EmbeddedKafka(brokers=3) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        by_hand = NewTopic("by-hand", 2, replica_assignment=[[3, 1], [1, 2]])
        assert admin.create_topics([by_hand])["by-hand"].result(SECONDS) is None
        more = NewPartitions("by-hand", 3, replica_assignment=[[3, 2]])
        assert admin.create_partitions([more])["by-hand"].result(SECONDS) is None
        found = admin.list_topics("by-hand", SECONDS).topics["by-hand"].partitions
        assert {number: each.replicas for number, each in found.items()} == {0: [3, 1], 1: [1, 2], 2: [3, 2]}
        assert {number: each.leader for number, each in found.items()} == {0: 3, 1: 1, 2: 3}
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for number in found:
            producer.produce("by-hand", b"here", partition=number)
        assert producer.flush(SECONDS) == 0
        assert sorted(record.partition for record in kafka.records("by-hand")) == [0, 1, 2]
