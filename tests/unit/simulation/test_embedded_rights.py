"""Rights of clients, set by a test or over the wire, as real clients meet them."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server import turns
from tests.unit.simulation.test_embedded_refusals import Client

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ACLResourcePatternType as PatternType
    from kafka.admin import ResourceType as Kind

pytestmark = pytest.mark.real
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
ANY = AclBindingFilter(
    *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
    *(AclOperation.ANY, AclPermissionType.ANY),
)


def plain(kafka: EmbeddedKafka, user: str | None = None) -> dict[str, Any]:
    """The configuration of a client of librdkafka."""
    config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    if user is not None:
        config |= {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-256"}
        config |= {"sasl.username": user, "sasl.password": "secret"}
    return config


def delivered(producer: Producer, topic: str) -> str:
    errors: list[Any] = []
    try:
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    except KafkaException as known:  # from Metadata
        return known.args[0].name()
    assert producer.flush(20) == 0
    return "" if errors[0] is None else errors[0].name()


def test_confluent_kafka_manages_acls():
    with EmbeddedKafka(topics=["orders", "open"], config=AUTHORIZER) as kafka:
        admin = AdminClient(plain(kafka))
        allowed = AclBinding(
            *(ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*"),
            *(AclOperation.READ, AclPermissionType.ALLOW),
        )
        (created,) = admin.create_acls([allowed]).values()
        created.result(60)
        assert admin.describe_acls(ANY).result(60) == [allowed]
        assert admin.list_topics("orders", 60).topics["orders"].error.name() == "TOPIC_AUTHORIZATION_FAILED"
        assert set(admin.list_topics(timeout=60).topics) == {"open"}
        producer = Producer(plain(kafka))
        assert delivered(producer, "orders") == "TOPIC_AUTHORIZATION_FAILED"
        assert delivered(producer, "open") == ""
        (deleted,) = admin.delete_acls([ANY]).values()
        assert deleted.result(60) == [allowed]
        assert delivered(Producer(plain(kafka)), "orders") == ""


def test_kafka_python_manages_acls():
    everything = ACLFilter(
        *(None, None, ACLOperation.ANY, ACLPermissionType.ANY),
        ResourcePatternFilter(Kind.ANY, None, PatternType.ANY),
    )
    with EmbeddedKafka(topics=["orders"], config=AUTHORIZER) as kafka:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        pattern = ResourcePattern(Kind.GROUP, "g", PatternType.PREFIXED)
        acl = ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
        assert admin.create_acls([acl])["succeeded"] == [acl]
        found, _ = admin.describe_acls(everything)
        assert found == [acl]
        ((_, (deleted,), _),) = admin.delete_acls([everything])
        assert deleted == acl
        assert kafka.acls() == []
        admin.close()


def test_a_group_is_closed_to_a_consumer_until_it_is_opened(kafka):
    kafka.add_acl("GROUP", "billing", "User:alice", "READ")
    with contextlib.closing(
        Consumer({**plain(kafka), "group.id": "billing", "group.protocol": "consumer"})
    ) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(20)
        assert message is not None
        assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"
    kafka.add_acl("GROUP", "billing", "User:ANONYMOUS", "READ")
    with contextlib.closing(
        Consumer({**plain(kafka), "group.id": "billing", "group.protocol": "consumer"})
    ) as consumer:
        consumer.subscribe(["orders"])
        kafka.group("billing").wait_stable(members=1, polling=[consumer])


def test_users_have_rights_of_their_own():
    with EmbeddedKafka(topics=["orders"], users={"alice": "secret", "bob": "secret"}) as kafka:
        kafka.add_acl("TOPIC", "orders", "User:alice", "WRITE")
        assert delivered(Producer(plain(kafka, "alice")), "orders") == ""
        assert delivered(Producer(plain(kafka, "bob")), "orders") == "TOPIC_AUTHORIZATION_FAILED"


def test_answers_that_were_kept_do_not_pass_by_the_authorizer(kafka):
    before = set(kafka.topics())
    admin = AdminClient(plain(kafka))
    assert set(admin.list_topics(timeout=60).topics) == before
    kafka.add_acl("TOPIC", "orders", "User:alice", "READ")
    assert set(admin.list_topics(timeout=60).topics) == before - {"orders"}
    kafka.remove_acls()
    assert set(admin.list_topics(timeout=60).topics) == before


def test_an_acl_that_can_not_be_says_why(kafka):
    for arguments, words in (
        (("TOPIK", "a", "User:a", "READ"), "resource_type 'TOPIK' is unknown; did you mean TOPIC"),
        (("TOPIC", "a", "User:a", "REED"), "operation 'REED' is unknown; did you mean READ"),
        (("TOPIC", " ", "User:a", "READ"), "resource_name ' ': expected a name"),
        (("TOPIC", "a", "alice", "READ"), "principal 'alice': expected User:NAME"),
        (("CLUSTER", "a", "User:a", "READ"), "only valid name for the CLUSTER resource is kafka-cluster"),
    ):
        with pytest.raises(FencepostError, match=words):
            kafka.add_acl(*arguments)
    assert kafka.acls() == []
    with pytest.raises(FencepostError, match=r"no ACL has TOPIC, a: nothing is removed"):
        kafka.remove_acls("TOPIC", "a")


def test_a_scope_has_acls_of_its_own(kafka):
    kafka.add_acl("TOPIC", "others", "User:alice", "READ")
    with kafka.scope(topics=["orders"]) as scope:
        with pytest.raises(FencepostError, match="not of this scope"):
            scope.add_acl("TOPIC", "others", "User:alice", "READ")
        with pytest.raises(FencepostError, match="would affect other scopes"):
            scope.add_acl("CLUSTER", "kafka-cluster", "User:alice", "ALTER")
        added = scope.add_acl("TOPIC", scope.name("orders"), "User:alice", "READ")
        assert scope.acls() == [added]
        assert len(kafka.acls()) == 2
    assert [each.resource_name for each in kafka.acls()] == ["others"]


@pytest.fixture
def client(kafka) -> Iterator[Client]:
    made = Client(kafka.bootstrap_servers)
    yield made
    made.close()


def test_a_denied_request_without_parts_has_an_answer(kafka, client):
    kafka.add_acl("GROUP", "billing", "User:alice", "READ")
    kafka.add_acl("CLUSTER", "kafka-cluster", "User:alice", "ALTER")
    assert client.ask(ApiKey.OFFSET_COMMIT, 8, group_id="billing", topics=()).topics == ()
    assert client.ask(ApiKey.CREATE_ACLS, 3, creations=()).results == ()


def test_many_topics_are_decided_in_turns(kafka, client, monkeypatch):
    for number in range(40):
        kafka.create_topic(f"topic-{number}")
    pieces: list[object] = []
    do_one_piece = turns._do_one_piece
    monkeypatch.setattr(turns, "WORK_PER_TURN", 20)
    monkeypatch.setattr(turns, "_do_one_piece", lambda work: (pieces.append(work), do_one_piece(work)))
    known = {each.name for each in client.ask(ApiKey.METADATA, 12, topics=None).topics}
    before = len(pieces)
    kafka.add_acl("TOPIC", "topic-7", "User:alice", "READ")
    seen = client.ask(ApiKey.METADATA, 12, topics=None, include_topic_authorized_operations=True).topics
    assert known - {each.name for each in seen} == {"topic-7"}
    assert len(pieces) - before > 3 * before


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_are_added_for_others_by_brokers_only(kafka, client, version):
    of_broker = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version)
    assert of_broker.error_code.name == "none"
    kafka.add_acl("CLUSTER", "kafka-cluster", "User:ANONYMOUS", "CLUSTER_ACTION", permission_type="DENY")
    denied = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version)
    assert (denied.error_code.name, denied.results_by_transaction) == ("cluster_authorization_failed", ())


def test_cursors_tell_no_names_that_are_hidden(kafka, client):
    for topic in kafka.topics():
        kafka.add_acl("TOPIC", topic, "User:alice", "READ")
    page = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=(), response_partition_limit=1, cursor=None)
    assert (page.topics, page.next_cursor) == ((), None)


@pytest.mark.processes
def test_rights_that_come_during_a_handshake_of_tls_hold_for_its_connection(pem):
    context = ssl.create_default_context(cafile=pem[0])
    context.check_hostname = False
    beat = {"group_id": "billing", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ("orders",)}
    beat |= {"instance_id": None, "rack_id": None, "server_assignor": None, "topic_partitions": ()}
    beat |= {"rebalance_timeout": datetime.timedelta(seconds=60), "subscribed_topic_regex": None}
    with EmbeddedKafka(topics=["orders"], tls=pem) as kafka:
        slow, other = Client(kafka.bootstrap_servers), Client(kafka.bootstrap_servers)
        other.socket = context.wrap_socket(other.socket)
        other.ask(ApiKey.API_VERSIONS, 0)  # by now the server has accepted the first connection
        kafka.add_acl("GROUP", "billing", "User:alice", "READ")
        slow.socket = context.wrap_socket(slow.socket)
        said = [slow.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **beat).error_code.name for _ in range(3)]
        slow.close()
        other.close()
    assert said == ["group_authorization_failed"] * 3
