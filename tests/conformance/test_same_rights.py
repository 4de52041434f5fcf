"""The same requests to our broker and to Kafka's, both with an authorizer: ACLs, and what they deny."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fencepost.coordinator.config import AuthorizerClass, SecurityConfig
from fencepost.coordinator.server import turns
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.cluster import RealCluster
from tests.conformance.both import Peer, answers_of_both, batch_now
from tests.conformance.brokers import ServedBroker

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

RECORDED = pathlib.Path(__file__).parents[1] / "vectors/rights.json"
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, DESCRIBE, ALTER_CONFIGS = 2, 3, 4, 8, 11
DENY, ALLOW = 2, 3
ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.fixture(scope="module")
def guarded_kafka(kafka_installation: Installation) -> Iterator[RealCluster]:
    """Kafka with an authorizer; all that has no ACL is open, so that its own requests pass."""
    security = {"authorizer.class.name": AuthorizerClass.STANDARD, "allow.everyone.if.no.acl.found": "true"}
    cluster = RealCluster(properties={**security, "super.users": "User:root"})
    asyncio.run(cluster.start())
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def guarded() -> Iterator[ServedBroker]:
    security = SecurityConfig(authorizer_class_name=AuthorizerClass.STANDARD, super_users="User:root")
    with ServedBroker({}, security=security) as broker:
        yield broker


def acl(kind: int, name: str, operation: int = ALL, **more: Any) -> dict[str, Any]:
    given = {"resource_type": kind, "resource_name": name, "resource_pattern_type": LITERAL}
    given |= {"principal": "User:alice", "host": "*", "operation": operation, "permission_type": ALLOW}
    return given | more


def acl_filter(**more: Any) -> dict[str, Any]:
    return ANY_ACL | more


class Client(Peer):
    """Asks as User:ANONYMOUS."""

    async def set_acls(self, *acls: dict[str, Any]) -> None:
        """Create these ACLs, and wait until the broker knows them."""
        own = [
            each
            for each in acls
            if self.topic in each["resource_name"] or self.group in each["resource_name"]
        ]
        reply = await self.ask_plain(30, 3, creations=list(acls))
        assert {each.error_code.name for each in reply.results} == {"none"}
        deadline = time.monotonic() + 60
        while await self.count(acls) < len(own):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def count(self, acls: tuple[dict[str, Any], ...]) -> int:
        names = {each["resource_name"] for each in acls}
        found = await self.ask_plain(29, 3, **ANY_ACL)
        return sum(len(each.acls) for each in found.resources if each.resource_name in names)

    async def told(self, key: int, version: int, /, *hidden: str, **fields: Any) -> Any:
        deadline = time.monotonic() + 60
        while "coordinator_load_in_progress" in (
            texts := str(await self.asked(key, version, *hidden, **fields))
        ):
            assert time.monotonic() < deadline, texts
            await asyncio.sleep(0.05)
        return texts.replace(self.group, "").replace(self.transactional_id, "")


async def lists(peer: Client) -> AsyncIterator[Any]:
    """Filters of each kind, and bindings that Kafka refuses."""
    name = peer.topic
    for given in (
        *(acl(0, name), acl(1, name), acl(99, name), acl(CLUSTER, name), acl(TOPIC, "")),
        *(acl(TOPIC, name, resource_pattern_type=each) for each in (1, 2, 99)),
        *(acl(TOPIC, name, 1), acl(TOPIC, name, 99), acl(TOPIC, name, permission_type=1)),
        acl(TOPIC, name, permission_type=77),
    ):
        yield str(given).replace(name, ""), await peer.told(30, 3, creations=[given])
    await peer.set_acls(
        *(acl(TOPIC, f"{name}-a"), acl(TOPIC, f"{name}-", READ, resource_pattern_type=PREFIXED)),
        *(
            acl(TOPIC, f"{name}-b", WRITE, principal="User:bob", host="10.0.0.1"),
            acl(GROUP, f"{name}-a", READ),
        ),
        acl(TOPIC, f"{name}-b", WRITE, principal="User:bob", host="10.0.0.2", permission_type=DENY),
    )
    for kind in (1, TOPIC, GROUP, 6):
        for pattern in (1, 2, 3, 4, 99):
            for wanted in (f"{name}-a", f"{name}-abc", f"{name}-"):
                found = acl_filter(
                    resource_type_filter=kind, pattern_type_filter=pattern, resource_name_filter=wanted
                )
                yield kind, pattern, wanted[len(name) :], await peer.told(29, 3, **found)
    of_bob = {"principal_filter": "User:bob", "resource_name_filter": f"{name}-b"}
    for more in (
        {},
        {"host_filter": "10.0.0.1"},
        {"permission_type": DENY},
        {"operation": READ},
        {"operation": 99},
    ):
        yield more, await peer.told(29, 3, **acl_filter(**of_bob, **more))
    for more in ({"operation": 99}, {"pattern_type_filter": 99}, {"host_filter": "10.0.0.1"}, {}, {}):
        yield more, await peer.told(31, 3, filters=[acl_filter(**of_bob, **more)])


def part(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"partition_index": number, **fields}


async def denials(peer: Client) -> AsyncIterator[Any]:
    """Each API about what the client may do, and about what it may not do."""
    topics: Any
    groups: Any
    asked: Any
    secret, group = f"{peer.topic}-secret", f"{peer.group}-secret"
    transactional_id = f"{peer.transactional_id}-secret"
    await peer.create(secret, 1)
    await peer.until_found(secret)
    await peer.until_led(secret, 1)
    member = {"member_epoch": 0, "topic_partitions": [], "subscribed_topic_names": [peer.topic]}
    member |= {"rebalance_timeout": 60_000, "instance_id": None, "rack_id": None, "server_assignor": None}
    yield await peer.told(68, 1, "member_id", "assignment", group_id=group, member_id="m" * 22, **member)
    await peer.set_acls(
        *(acl(TOPIC, secret), acl(GROUP, group)),
        acl(TRANSACTIONAL_ID, transactional_id, resource_pattern_type=PREFIXED),
    )
    both = (peer.topic, secret, f"{secret}-none")
    for version in (9, 12, 13):
        topics = [{"name": name, "topic_id": None} if version > 9 else {"name": name} for name in both]
        for asked in (True, False):
            yield (
                version,
                await peer.told(
                    *(3, version, "topic_id", "partitions", "cluster_authorized_operations"),
                    topics=topics,
                    include_topic_authorized_operations=asked,
                    allow_auto_topic_creation=False,
                ),
            )
    everything = await peer.ask_plain(3, 12, topics=None)
    yield {each.name for each in everything.topics} & set(both) == {peer.topic}
    own = [{"name": name} for name in both]
    yield await peer.told(75, 0, "topic_id", "partitions", topics=own, response_partition_limit=9)
    for key, version, field, fields in (
        (2, 7, part(timestamp=-1), {"replica_id": -1}),
        (21, 2, part(offset=0), {"timeout": 5_000}),
    ):
        topics = [{"name": name, "partitions": [field]} for name in both[:2]]
        yield key, await peer.told(key, version, "leader_epoch", topics=topics, **fields)
    topics = [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]} for name in both[:2]]
    yield await peer.told(23, 4, "leader_epoch", topics=topics, replica_id=-1)
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch_now()}]} for name in both[:2]]
    produce = {"transactional_id": None, "acks": 1, "timeout": 5_000, "topic_data": topics}
    hide: tuple[str, ...] = ("base_offset", "log_append_time", "log_start_offset", "error_message")
    yield await peer.told(0, 9, *hide, **produce)
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    topics = [{"topic": name, "partitions": [wanted]} for name in both[:2]]
    fetch = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1, "session_epoch": -1, "topics": topics}
    hide = ("records", "high_watermark", "last_stable_offset", "log_start_offset", "aborted_transactions")
    yield await peer.told(1, 12, *hide, replica_id=-1, **fetch)
    for nth, name in enumerate((peer.group, group)):
        topics = [{"name": one, "partitions": [part(committed_offset=3)]} for one in both[:2]]
        commit = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
        yield nth, "commit", await peer.told(8, 8, group_instance_id=None, topics=topics, **commit)
        topics = [{"name": one, "partition_indexes": [0]} for one in both[:2]]
        for asked in (topics, None):
            groups = [{"group_id": name, "topics": asked, "member_id": None, "member_epoch": -1}]
            yield nth, "offsets", await peer.told(9, 9, groups=groups)
        topics = [{"name": one, "partitions": [part()]} for one in both[:2]]
        yield nth, "delete offsets", await peer.told(47, 0, group_id=name, topics=topics)
        yield (
            nth,
            "coordinator",
            await peer.told(
                *(10, 4, "node_id", "host", "port", "error_message"), key_type=0, coordinator_keys=[name]
            ),
        )
        yield nth, "heartbeat", await peer.told(12, 4, group_id=name, generation_id=1, member_id="m")
        yield nth, "leave", await peer.told(13, 4, group_id=name, members=[{"member_id": "m"}])
        join = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "", "protocol_type": "c"}
        join |= {"protocols": [{"name": "range", "metadata": b""}], "group_id": name}
        yield nth, "join", await peer.told(11, 7, "member_id", **join)
        sync = {"generation_id": 1, "member_id": "m", "assignments": []}
        yield nth, "sync", await peer.told(14, 3, group_id=name, **sync)
    yield await peer.told(
        *(68, 1, "member_id", "error_message"),
        **(
            member
            | {"group_id": f"{peer.group}-x", "member_id": "n" * 22, "subscribed_topic_names": [secret]}
        ),
    )
    groups = [f"{peer.group}-none", group]
    yield await peer.told(69, 0, "error_message", group_ids=groups, include_authorized_operations=True)
    yield await peer.told(15, 5, groups=groups, include_authorized_operations=True)
    yield await peer.told(42, 2, groups_names=groups)
    listed = await peer.ask_plain(16, 4)
    yield group in {each.group_id for each in listed.groups}
    for nth, name in enumerate((peer.transactional_id, transactional_id)):
        begin = {
            "transactional_id": name,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        yield nth, await peer.told(22, 4, "producer_id", "producer_epoch", **begin)
        of_one = {"transactional_id": name, "producer_id": 10**9, "producer_epoch": 0}
        yield nth, await peer.told(26, 3, committed=True, **of_one)
        yield nth, await peer.told(25, 3, group_id=peer.group, **of_one)
        yield (
            nth,
            await peer.told(
                *(10, 4, "node_id", "host", "port", "error_message"), key_type=1, coordinator_keys=[name]
            ),
        )
        listed = await peer.ask_plain(66, 0, state_filters=[], producer_id_filters=[])
        yield name in {each.transactional_id for each in listed.transaction_states}
        topics = [{"name": one, "partitions": [0]} for one in both[:2]]
        add = {"v3_and_below_transactional_id": name, "v3_and_below_producer_id": 10**9}
        add |= {"v3_and_below_producer_epoch": 0, "v3_and_below_topics": topics}
        yield nth, await peer.told(24, 3, **add)
    yield await peer.told(
        61,
        0,
        "active_producers",
        "error_message",
        topics=[{"name": one, "partition_indexes": [0]} for one in both[:2]],
    )
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": ["x"]}
        for kind, name in ((2, secret), (32, group))
    ]
    yield await peer.told(32, 4, "error_message", resources=resources)
    change = {"name": "retention.ms", "config_operation": 0, "value": "5"}
    resources = [{"resource_type": 2, "resource_name": name, "configs": [change]} for name in both[:2]]
    yield await peer.told(44, 1, "error_message", resources=resources)
    grown = [{"name": secret, "count": 2, "assignments": None}]
    yield await peer.told(37, 3, "error_message", topics=grown, timeout=5_000)


def streams_member(peer: Client, group: str, **fields: Any) -> dict[str, Any]:
    """The first heartbeat of a member that keeps the counts of the peer's topic in a changelog topic."""
    member = {"group_id": group, "member_id": "s" * 22, "member_epoch": 0, "rebalance_timeout": 60_000}
    member |= {"process_id": "p", "active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    counts = {"subtopology_id": "0", "source_topics": [peer.topic], **fields}
    return member | {"topology": {"epoch": 0, "subtopologies": [counts]}}


async def topics_of_groups(peer: Client) -> AsyncIterator[Any]:
    """Groups with topics that the client may not describe."""
    seen, secret, group = f"{peer.topic}-seen", f"{peer.topic}-secret", f"{peer.group}-regex"
    for topic in (seen, secret):
        await peer.create(topic, 1)
        await peer.until_found(topic)
    await peer.set_acls(acl(TOPIC, secret))
    member: dict[str, Any] = {"group_id": group, "member_id": "r" * 22, "rebalance_timeout": 60_000}
    joins = {"member_epoch": 0, "subscribed_topic_regex": f"{peer.topic}-.*", "topic_partitions": []}
    joins |= {"subscribed_topic_names": None, "instance_id": None}
    reply = await peer.ask_plain(68, 1, **member, **joins)
    deadline = time.monotonic() + 60
    while (
        reply.error_code.name != "none" or reply.assignment is None or not reply.assignment.topic_partitions
    ):
        assert time.monotonic() < deadline, reply
        await asyncio.sleep(0.05)
        reply = await peer.ask_plain(68, 1, **member, **(joins | {"member_epoch": reply.member_epoch}))
    hide = ("topic_id", "member_id", "client_host", "client_id")
    epochs = ("member_epoch", "group_epoch", "assignment_epoch")
    for _ in range(2):
        groups = {"group_ids": [group, f"{group}-none"], "include_authorized_operations": True}
        yield (await peer.told(69, 1, *hide, *epochs, "error_message", **groups)).replace(peer.topic, "")
        described = await peer.ask_plain(69, 1, **groups)
        yield [each.error_message for each in described.groups if each.group_id == group]
        await peer.set_acls(acl(TOPIC, seen))
    yield await peer.told(
        88, 0, **streams_member(peer, f"{peer.group}-1", source_topics=[peer.topic, secret])
    )
    changelog = [{"name": f"{secret}-changelog", "replication_factor": 1}]
    await peer.set_acls(acl(TOPIC, f"{secret}-changelog"))
    member = streams_member(peer, f"{peer.group}-2", state_changelog_topics=changelog)
    yield await peer.told(88, 0, **member)
    member = streams_member(peer, f"{peer.group}-3")
    hidden = ("member_id", "member_epoch", "partitions_by_user_endpoint", "active_tasks", "status")
    yield await peer.told(88, 0, *hidden, **member)
    groups = {"group_ids": [f"{peer.group}-3"], "include_authorized_operations": True}
    yield "members': [{" in (await peer.told(89, 0, **groups)).replace('"', "'")
    await peer.set_acls(acl(TOPIC, peer.topic))
    yield await peer.told(89, 0, **groups)
    topics = [{"name": name, "partitions": [0]} for name in (secret, peer.topic)]
    of_broker: dict[str, Any] = {
        "transactional_id": peer.transactional_id,
        "producer_id": 10**9,
        "producer_epoch": 0,
        "topics": topics,
    }
    await peer.set_acls(acl(TRANSACTIONAL_ID, peer.transactional_id))
    for version in (4, 5):
        yield await peer.told(24, version, transactions=[of_broker])

    created = [{"name": f"{peer.topic}-{end}", "num_partitions": 2, "replication_factor": 1} for end in "ab"]
    await peer.set_acls(acl(TOPIC, f"{peer.topic}-a", ALTER_CONFIGS))
    for version in (4, 5, 7):
        request = {"topics": created, "timeout": 5_000, "validate_only": True}
        yield await peer.told(19, version, "topic_id", "configs", **request)


async def of_the_cluster(peer: Client) -> AsyncIterator[Any]:
    """Requests that need a right to the cluster, by a client without it."""
    denied = [
        acl(CLUSTER, "kafka-cluster", each, principal="User:ANONYMOUS", permission_type=DENY)
        for each in (5, 12)
    ]
    allowed = acl(CLUSTER, "kafka-cluster", principal="User:*")
    await peer.set_acls(*denied, allowed)
    secret = f"{peer.topic}-new"
    await peer.set_acls(acl(TOPIC, secret))
    topics = [{"name": secret, "num_partitions": 1, "replication_factor": 1}]
    yield await peer.told(19, 7, "topic_id", topics=topics, timeout=5_000)
    yield await peer.told(60, 0, include_cluster_authorized_operations=True)
    changelog = {"name": f"{peer.topic}-changelog", "replication_factor": 1}
    await peer.set_acls(
        acl(TOPIC, f"{peer.topic}-changelog", DESCRIBE, principal="User:*"),
        acl(TOPIC, f"{peer.topic}-changelog"),
    )
    member = streams_member(peer, peer.group, state_changelog_topics=[changelog])
    told = await peer.ask_plain(88, 0, **member)
    yield (
        told.error_code.name,
        [each.status_detail.replace(peer.topic, "") for each in told.status or () if each.status_code == 3],
    )
    yield await peer.told(31, 3, filters=[acl_filter(resource_type_filter=CLUSTER)])


async def users(peer: Client) -> AsyncIterator[Any]:
    """Changes and descriptions of SCRAM users, wrong ones included."""
    name = peer.topic
    good: dict[str, Any] = {
        "name": name,
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"x" * 32,
    }

    wanted: dict[int, int] = {}

    async def settled() -> Any:
        """The description of a user, once the broker has heard of it from the controller."""
        deadline = time.monotonic() + 60
        while True:
            (found,) = (await peer.ask_plain(50, 0, users=[{"name": name}])).results
            known = sorted((one.mechanism, one.iterations) for one in found.credential_infos)
            if known == sorted(wanted.items()):
                message = found.error_message
                return [(found.error_code.name, message.replace(name, "") if message else None, known)]
            assert time.monotonic() < deadline, known
            await asyncio.sleep(0.05)

    gone: dict[str, Any] = {"name": name, "mechanism": 1}
    yield await settled()
    for deletions, upsertions in (
        *(([gone], []), ([gone], [good]), ([], [good | {"mechanism": 3}]), ([gone | {"mechanism": 0}], [])),
        *(([], [good | {"iterations": each}]) for each in (0, 4095, 16_385)),
        *(([], [good | {"name": ""}]), ([], [good, good]), ([], [good, good, good])),
        *(([], [good | {"iterations": 1}, good]), ([], [good])),
        *(([], [good | {"mechanism": 2, "iterations": 8192}]), ([gone], [good]), ([gone], []), ([gone], [])),
    ):
        changed = await peer.told(51, 0, deletions=deletions, upsertions=upsertions)
        if "'error_code': 'none'" in changed:
            for each in deletions:
                del wanted[each["mechanism"]]
            wanted |= {each["mechanism"]: each["iterations"] for each in upsertions}
        yield changed
        yield await settled()
    for asked in ([name, name], [f"no-{name}"], [""]):
        yield await peer.told(50, 0, users=[{"name": one} for one in asked])
    everybody = await peer.ask_plain(50, 0, users=None)
    yield name in {each.user for each in everybody.results}


async def quotas(peer: Client) -> AsyncIterator[Any]:
    """Changes and descriptions of quotas, wrong ones included."""
    user, client = {"entity_type": "user", "entity_name": peer.topic}, {"entity_type": "client-id"}
    own = client | {"entity_name": peer.topic}
    rate = {"key": "producer_byte_rate", "value": 1_000.0, "remove": False}

    async def told(*components: dict[str, Any], strict: bool = False) -> Any:
        return await peer.told(48, 1, components=list(components), strict=strict)

    for entity, ops in (
        *(([], [rate]), ([{"entity_type": "nobody"}], [rate]), ([user, user], [rate])),
        *(([user], [rate, rate]), ([{"entity_type": "ip"}, user], [rate]), ([{"entity_type": "ip"}], [rate])),
        *(([user], [rate | {"key": "nothing"}]), ([user], [rate | {"value": -1.0}])),
        *(([user], [rate | {"value": 0.0}]), ([user], [rate | {"value": 1.5}])),
        *(([user], [rate | {"value": 1e20}]), ([user], [rate | {"remove": True}])),
        *(([user], [rate]), ([user, own], [rate | {"key": "request_percentage", "value": 0.5}])),
        ([own], [rate | {"key": "consumer_byte_rate"}, rate]),
    ):
        change = {"entity": entity, "ops": ops}
        yield await peer.told(49, 1, entries=[change], validate_only=True)
        yield await peer.told(49, 1, entries=[change], validate_only=False)
    deadline = time.monotonic() + 60
    exactly = {"match_type": 0, "match": peer.topic}
    while (
        len((await peer.ask_plain(48, 1, components=[{"entity_type": "client-id", **exactly}])).entries) < 2
    ):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    of_user, of_client = ({"entity_type": kind, **exactly} for kind in ("user", "client-id"))
    for strict in (False, True):
        yield await told(of_user, strict=strict)
        yield await told(of_client, strict=strict)
        yield await told(of_user, of_client, strict=strict)
        yield await told(of_user | {"match": "no-such-user"}, strict=strict)
    yield await told(of_user, {"entity_type": "client-id", "match_type": 1})
    yield await told(of_user, {"entity_type": "client-id", "match_type": 2})
    yield await told(of_user, of_user)
    yield await told({"entity_type": "nobody", "match_type": 2})
    yield await told({"entity_type": "ip", "match_type": 2}, of_user)


SCRIPTS = (lists, denials, topics_of_groups, of_the_cluster, users, quotas)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.__name__))
@pytest.mark.processes
async def test_both_decide_alike(script, guarded: ServedBroker, guarded_kafka: RealCluster) -> None:
    differences = [
        (ours, kafkas)
        for ours, kafkas in await answers_of_both(
            script, Client, guarded.bootstrap_servers, guarded_kafka.bootstrap_servers
        )
        if ours != kafkas
    ]
    assert differences == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.__name__))
@pytest.mark.parametrize("work_per_turn", [turns.WORK_PER_TURN, 1])
async def test_decisions_are_those_that_kafka_made(
    script, guarded: ServedBroker, work_per_turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka 4.3.1 gave these answers; the file has what `answers_of_both` compares, as text."""
    monkeypatch.setattr(turns, "WORK_PER_TURN", work_per_turn)
    peer = Client()
    await peer.connect(guarded.bootstrap_servers)
    await peer.begin()
    told = [str(answer) async for answer in script(peer)]
    await peer.close()
    assert told == json.loads(RECORDED.read_text())[script.__name__]
