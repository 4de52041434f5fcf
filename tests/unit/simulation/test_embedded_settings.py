"""What an embedded Kafka is given wrongly is told in one line, with what was expected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as Known

from fencepost import AsyncEmbeddedKafka, EmbeddedKafka
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.simulation.embedded.settings import PROFILE, api_of, config_of, error_of


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as running:
        yield running


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"brokers": 0}, "brokers=0: expected a whole number, 1 to 100"),
        ({"brokers": 101}, "brokers=101"),
        ({"brokers": True}, "brokers=True"),
        ({"brokers": "3"}, "brokers='3'"),
        ({"topics": {"orders": 0}}, "topics: orders=0: expected a whole number, 1 or more"),
        ({"topics": {"orders": "12"}}, "topics: orders='12'"),
        ({"topics": 3}, "topics=3: expected partitions by name, or names"),
        ({"ports": 9092}, "ports=9092: expected a list with one for each broker, such as [9092]"),
        ({"ports": "9092"}, "ports='9092': expected a list"),
        ({"racks": "abc"}, "racks='abc': expected one for each broker, such as ['a', 'b', 'c']"),
        ({"racks": 3}, "racks=3: expected one for each broker"),
        ({"racks": ["a", "b"]}, "racks: 2 racks for 1 brokers, expected one for each"),
        ({"racks": [" "]}, "rack ' ': expected a name or None"),
        ({"config": {"broker.rack": "a"}}, "config: broker.rack is the argument racks"),
        (
            {"config": {"replica.selector.class": "RackAware"}},
            "replica.selector.class: 'RackAware' is unknown, expected org.apache.kafka.common.replica.Leader",
        ),
        ({"host": ""}, "host='': expected an address of this machine, such as '127.0.0.1'"),
        ({"host": 3}, "host=3: expected an address"),
        ({"host": "a..b"}, "host='a..b': expected an address"),
        ({"users": {"alice": "\ud800"}}, "user 'alice': expected a password that UTF-8 can express"),
        ({"users": {"\ud800": "geheim"}}, "user='\\ud800': expected text that UTF-8 can express"),
        ({"config": {3: 4}}, "config: 3 is not the name of a setting, expected text"),
        ({"topics": [12]}, "topics: 12 is no topic's name, expected text"),
        ({"ports": [0, 0]}, "ports: 2 ports for 1 brokers"),
        ({"ports": [70_000]}, "ports=70000: expected a whole number, 0 to 65535"),
        ({"config": {"group.consumer.session.timeout": 1}}, "unknown configuration 'group.consumer.session"),
        ({"config": {"group.consumer.session.timeout.ms": 1}}, "group.consumer.session.timeout.ms: 1 is out"),
        (
            {"config": {"auto.create.topics.enable": True}},
            "config: auto.create.topics.enable is the argument auto_create_topics of an embedded Kafka",
        ),
        ({"config": {"num.partitions": 3}}, "config: num.partitions is the argument default_partitions"),
        ({"config": 7}, "config=7: expected a GroupCoordinatorConfig, or a mapping of settings"),
        ({"default_partitions": 0}, "default_partitions=0"),
        ({"default_partitions": 10**9}, "default_partitions=1000000000: expected a whole number, 1 to"),
        ({"auto_create_topics": "no"}, "auto_create_topics='no': expected True or False"),
        ({"users": {"": "geheim"}}, "user '': expected a name"),
        ({"users": {"alice": 1}}, "user 'alice': expected a password"),
        ({"users": {}}, "users: expected at least one user, or None"),
        ({"users": "alice:geheim"}, "users: expected a mapping of passwords by name"),
        ({"tls": 7}, "tls=7: expected an ssl.SSLContext, a PEM file, or the PEM files"),
        (
            {"tls": ("a", "b", "c")},
            "tls=('a', 'b', 'c'): expected an ssl.SSLContext, a PEM file, or the PEM files",
        ),
        ({"tls": "none.pem"}, "TLS certificate none.pem: no such file or directory"),
        ({"trace_topic": "h:1/"}, "trace_topic h:1/: expected HOST:PORT/TOPIC"),
        ({"trace_topic": 3}, "trace_topic=3: expected HOST:PORT/TOPIC, or a topic of this Kafka"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        EmbeddedKafka(**settings)
    assert str(wrong.value).startswith(told)


@pytest.mark.parametrize("place", ["nothing", "127.0.0.1:1/traces", "here/traces"])
def test_a_trace_s_topic_that_can_t_be_is_told_by_its_parameter(place: str) -> None:
    with pytest.raises(FencepostError, match=r"^trace_topic.*(has no topic|no Kafka broker|expected HOST)"):
        EmbeddedKafka(trace_topic=place).start()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"topics": {"no such/name": 1}}, "topic name 'no such/name'"),
        ({"topics": {"orders": 100_001}}, "100001 partitions, expected 1 to 100000"),
        ({"journal": 7}, "journal=7: expected a path, or an object"),
    ],
)
def test_settings_that_the_cluster_refuses(settings: dict[str, Any], told: str) -> None:
    kafka = EmbeddedKafka(**settings)
    for _ in range(2):
        with pytest.raises(FencepostError) as wrong:
            kafka.start()
        assert str(wrong.value).startswith(told)
    assert not kafka.thread.is_running


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (lambda k: k.create_topic("orders", 1), "Topic 'orders' already exists."),
        (lambda k: k.create_topic("new", 0), "partitions=0: expected a whole number, 1 or more"),
        (lambda k: k.create_topic("a b"), "topic name 'a b'"),
        (lambda k: k.create_topic("new", config=["compact"]), "config=['compact']: expected a mapping"),
        (lambda k: k.create_topic("new", config={1: "x"}), "config: 1 is not the name of a setting"),
        (
            lambda k: k.create_topic("new", config={"retention.ms": None}),
            "config: retention.ms=None: expected text, a number, True or False",
        ),
        (
            lambda k: k.create_topic("new", config={"compression.type": "\ud800"}),
            "config: compression.type='\\ud800': expected text that UTF-8 can express",
        ),
        (lambda k: k.create_topic("new", config={"\ud800": 1}), "config='\\ud800': expected text that UTF-8"),
        (
            lambda k: k.create_topic("new", config={"retention": 1}),
            "Unknown topic config name: retention; did you mean retention.",
        ),
        (
            lambda k: k.create_topic("new", config={"size": 1}),
            "Unknown topic config name: size; ",
        ),
        (
            lambda k: k.create_topic("new", config={"retention.ms": "soon"}),
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (lambda k: k.create_topic("new", config={"retention.ms": "9" * 5_000}), "Invalid value 99999"),
        (lambda k: k.produce("nope", "x"), "there is no topic 'nope'; there are orders"),
        (lambda k: k.produce("orders", "x", partition=4), "topic 'orders' has partitions 0 to 3, not 4"),
        (lambda k: k.produce("orders", "x", partition="0"), "topic 'orders' has partitions 0 to 3, not '0'"),
        (lambda k: k.produce("orders", 7), "value=7: expected bytes, text or None"),
        (lambda k: k.produce("orders", "x", key=7), "key=7: expected bytes, text or None"),
        (
            lambda k: k.produce("orders", ["x", "y"]),
            "value=['x', 'y']: expected bytes, text or None, or several as produce(topic, *values)",
        ),
        (lambda k: k.produce("orders", "x", headers={"h": 1}), "headers: h=1: expected bytes, text or None"),
        (
            lambda k: k.produce("orders", "x", headers={1: "h"}),
            "headers={1: 'h'}: expected a mapping, or pairs",
        ),
        (
            lambda k: k.produce("orders", "x", headers="h"),
            "headers='h': expected a mapping, or pairs of a name",
        ),
        (lambda k: k.produce("orders", "x", headers=3), "headers=3: expected a mapping, or pairs of a name"),
        (lambda k: k.records("nope"), "there is no topic 'nope'"),
        (lambda k: k.records("orders", -1), "topic 'orders' has partitions 0 to 3, not -1"),
        (lambda k: k.group(""), "group '': expected a group id"),
        (lambda k: k.group("g").fence("m"), "group 'g' has no member 'm'; it has none"),
        (lambda k: k.group("g").expire("m"), "group 'g' has no member 'm'"),
        (lambda k: k.group("g").rebalance(), "group 'g' has no members that could rebalance"),
        (lambda k: k.group("g").wait_stable(members=-1), "members=-1: expected a whole number, 0 or more"),
        (lambda k: k.group("g").wait_stable(timeout=-1), "timeout=-1: expected seconds, 0 or more"),
        (
            lambda k: k.lose_next_response("Heartbeats"),
            "API 'Heartbeats' is unknown; did you mean Heartbeat?",
        ),
        (
            lambda k: k.fail_next("Nope", "NOT_COORDINATOR"),
            "API 'Nope' is unknown; known are ",
        ),
        (lambda k: k.lose_next_response(999), "API 999 is not supported"),
        (lambda k: k.lose_next_response(True), "API True is not supported"),
        (lambda k: k.lose_next_response(["Fetch"]), "API ['Fetch'] is not supported"),
        (lambda k: k.fail_next("Fetch", False), "error False is not one of Kafka's"),
        (lambda k: k.lose_next_response("Fetch", times=0), "times=0: expected a whole number, 1 or more"),
        (lambda k: k.fail_next("Fetch", "NO_SUCH_ERROR"), "error 'NO_SUCH_ERROR' is unknown; "),
        (
            lambda k: k.fail_next("ConsumerGroupHeartbeat", "FENCED"),
            "error 'FENCED' is unknown; did you mean FENCED_MEMBER_EPOCH, PRODUCER_FENCED or ",
        ),
        (
            lambda k: k.fail_next("Fetch", "###"),
            "error '###' is unknown; expected a name that Kafka has, such",
        ),
        (lambda k: k.fail_next("Fetch", 9_999), "error 9999 is not one of Kafka's: -1 to 133"),
        (lambda k: k.fail_next("Fetch", "NONE"), "error NONE is success"),
        (lambda k: k.delay("Fetch", -1), "seconds=-1: expected seconds, 0 or more"),
        (lambda k: k.delay("Fetch", float("nan")), "seconds=nan"),
        (lambda k: k.disconnect("m"), "no connection of a member or client 'm' is open"),
        (lambda k: k.move_coordinator("g", to=2), "there is no broker 2; the brokers are numbered 1"),
        (lambda k: k.move_coordinator("g", to=True), "there is no broker True; the brokers are numbered 1"),
        (lambda k: k.move_coordinator(load_seconds=-1), "load_seconds=-1"),
        (lambda k: k.clock.advance(-1), "advance=-1: expected seconds, 0 or more"),
        (lambda k: k.move_coordinator(5), "group 5: expected a group id"),
        (lambda k: k.move_coordinator(""), "group '': expected a group id"),
        (lambda k: k.move_coordinator("\ud800"), "group='\\ud800': expected text that UTF-8 can express"),
        (lambda k: k.create_topic(["new"]), "topic ['new']: expected a name"),
        (lambda k: k.records(["orders"]), "topic ['orders']: expected a name"),
        (lambda k: k.produce("orders", "\ud800"), "value='\\ud800': expected text that UTF-8 can express"),
        (lambda k: k.produce("orders", "x", key="a\udfff"), "key='a\\udfff': expected text that UTF-8"),
        (
            lambda k: k.produce("orders", "x", headers={"\ud800": "h"}),
            "headers='\\ud800': expected text that",
        ),
        (lambda k: k.produce("orders", "x", headers={"h": "\ud800"}), "headers: h='\\ud800': expected text"),
        (lambda k: k.lose_next_response("Fetch", 5), "member 5: expected one of members(), or a member id"),
        (lambda k: k.fail_next("Fetch", 6, ["a"]), "member ['a']: expected one of members(), or a member id"),
        (lambda k: k.delay("Fetch", 1, " "), "member ' ': expected one of members(), or a member id"),
        (lambda k: k.disconnect(""), "member '': expected one of members(), or a member id"),
        (lambda k: k.disconnect(None), "member None: expected one of members()"),
        (lambda k: k.start(), "this Kafka is running already"),
    ],
)
def test_what_cannot_be_done(kafka: EmbeddedKafka, do: Callable[[EmbeddedKafka], object], told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        do(kafka)
    assert str(wrong.value).startswith(told)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    "do",
    [
        lambda k: k.bootstrap_servers,
        lambda k: k.events(),
        lambda k: k.check(),
        lambda k: k.group("g"),
        lambda k: k.produce("orders", "x"),
        lambda k: k.clock.advance(1),
        lambda k: k.create_topic("new"),
    ],
)
def test_a_kafka_that_does_not_run(do: Callable[[EmbeddedKafka], object]) -> None:
    kafka = EmbeddedKafka()
    with pytest.raises(FencepostError, match="this Kafka is not running: enter it"):
        do(kafka)
    with kafka:
        pass
    with pytest.raises(FencepostError, match="this Kafka has stopped: use it before"):
        do(kafka)


def test_a_port_that_is_taken(kafka: EmbeddedKafka) -> None:
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(EnvironmentLacks, match=f"port {port} on 127.0.0.1 is taken"):
        EmbeddedKafka(ports=[port]).start()


def test_settings_by_name_go_over_the_quick_profile() -> None:
    config = config_of({"group.consumer.heartbeat.interval.ms": "200"}).groups
    assert config.group_consumer_heartbeat_interval_ms == 200
    assert config.group_initial_rebalance_delay_ms == PROFILE.group_initial_rebalance_delay_ms == 0
    whole = GroupCoordinatorConfig()
    assert config_of(whole).groups is whole
    assert config_of(None).groups is PROFILE


@pytest.mark.parametrize(
    "name", ["ConsumerGroupHeartbeat", "consumer-group-heartbeat", "CONSUMER_GROUP_HEARTBEAT", 68]
)
def test_apis_have_names_and_numbers(name: str | int) -> None:
    assert api_of(name) is ApiKey.CONSUMER_GROUP_HEARTBEAT


def test_apis_are_told_as_kafka_writes_them_and_taken_so() -> None:
    with pytest.raises(FencepostError, match="API '###' is unknown; known are Produce, Fetch, ") as wrong:
        api_of("###")
    told = str(wrong.value).partition("known are ")[2].split(", ")
    assert {"SyncGroup", "ConsumerGroupHeartbeat", "InitProducerId", "AddOffsetsToTxn"} <= set(told)
    assert [api_of(name) for name in told] == list(ApiKey)


@pytest.mark.parametrize("name", ["not_coordinator", "NOT_COORDINATOR", 16, ErrorCode.NOT_COORDINATOR])
def test_errors_have_names_and_numbers(name: str | int) -> None:
    assert error_of(name) is ErrorCode.NOT_COORDINATOR


def test_all_errors_are_those_of_kafka() -> None:
    """kio has the names of Kafka 4.3 from Kafka itself."""
    assert {code.name: int(code) for code in ErrorCode} == {code.name.upper(): int(code) for code in Known}
    assert [error_of(code.name) for code in Known if code.value] == [code for code in ErrorCode if code]


def test_threads_take_short_turns_while_a_kafka_runs() -> None:
    before = sys.getswitchinterval()
    with EmbeddedKafka():
        with EmbeddedKafka():
            assert sys.getswitchinterval() == pytest.approx(0.0005)
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    # The fixture's Kafka may run too, if another test of this module has asked for it.
    assert sys.getswitchinterval() == pytest.approx(before)


def test_the_awaited_kafka_says_where_its_arguments_belong() -> None:
    with pytest.raises(FencepostError, match=r"write `async with EmbeddedKafka\(topics=\.\.\.\) as kafka`"):
        AsyncEmbeddedKafka(topics={"orders": 3})
    with pytest.raises(FencepostError, match="expected a running EmbeddedKafka"):
        AsyncEmbeddedKafka()
    assert repr(object.__new__(AsyncEmbeddedKafka)) == "<AsyncEmbeddedKafka, not running>"


def test_the_limit_of_queued_bytes_is_a_setting() -> None:
    with EmbeddedKafka(config={"queued.max.request.bytes": 200_000_000}) as kafka:
        assert kafka.endpoint.brokers._buffers.limit == 200_000_000
