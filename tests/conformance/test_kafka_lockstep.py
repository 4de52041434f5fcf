"""The same requests to our broker and to Kafka's, drawn by a seed: what `fencepost conform` does not send.

That is all but joins, commits and records, in all versions. After a request that may have changed
something both are asked what there is, until they say the same. What differs on purpose is not drawn; texts
of errors and the order of lists are free.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, Final

import pytest

from fencepost.coordinator.codec.registry import SPOKEN, ApiKey
from fencepost.coordinator.protocol.administration import ConfigSource, ResourceType
from fencepost.simulation.lab.conform.equality import differing
from tests.conformance.both import TRY_AGAIN, Peer, batch_now, shown
from tests.conformance.drawn_requests import (
    GROUPS,
    INHABITED,
    KEPT,
    MEMBER,
    TOPICS,
    TRANSACTIONS,
    UNKNOWN,
    Draw,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

STEPS: Final = 400
LATE_S: Final = 60.0
"""How long Kafka may take until all of it knows of a change."""
OWN: Final = "own-"

READS: Final = (
    *(ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_TOPIC_PARTITIONS),
    *(ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_LOG_DIRS),
    *(ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE),
    *(ApiKey.STREAMS_GROUP_DESCRIBE, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS),
    *(ApiKey.LIST_TRANSACTIONS, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_CONFIGS),
    *(ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
    *(ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP),
)
"""Change nothing: there are no rights to give or take, and no members of the classic protocol."""
CHANGES: Final = (
    *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
    *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
    *(ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.LEAVE_GROUP),
    *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
)
OF_GROUPS: Final = {ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.LEAVE_GROUP}
VERSIONS: Final = {api.api_key: (api.min_version, api.max_version) for api in SPOKEN} | {
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3)  # later ones are for brokers
}
ALL_OF_THEM: Final = (ApiKey.METADATA, ApiKey.DESCRIBE_LOG_DIRS)
"""Tell of all topics if none is named, those of other tests included."""
ALWAYS_ALL: Final = (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.LIST_CONFIG_RESOURCES)

HIDDEN: Final = (
    *("topic_id", "producer_id", "timestamp", "last_timestamp", "coordinator_epoch", "documentation"),
    *("host", "port", "log_dir", "total_bytes", "usable_bytes", "partition_size"),
)
"""What brokers make up, or differs between any two."""
SET_ON_ITSELF: Final = {ConfigSource.DYNAMIC_TOPIC, ConfigSource.DYNAMIC_GROUP}


class Side(Peer):
    """One broker, asked with the names and numbers that are drawn."""

    def __init__(self, unique: str) -> None:
        super().__init__()
        self.unique = unique
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.producers: list[int] = []

    def named(self, label: str) -> str:
        return label.replace("~", f"{self.unique}{OWN}")

    def resolved(self, value: Any, name: str = "") -> Any:
        """The value as this broker knows it."""
        match value:
            case dict():
                return {key: self.resolved(each, key) for key, each in value.items()}
            case list():
                return [self.resolved(each, name) for each in value]
            case str():
                return self.named(value)
            case uuid.UUID(int=number) if number < len(TOPICS):
                return self.topic_ids.get(TOPICS[number], uuid.UUID(int=99))
            case int() if "producer_id" in name and 0 <= value < UNKNOWN:
                return self.producers[value]
        return value

    async def prepared(self) -> None:
        """Topics with records, a group with an offset and one with a member, and producers."""
        for kind, labels in ((1, TRANSACTIONS), (0, GROUPS)):
            for name in map(self.named, labels):
                asked = {"key_type": kind, "coordinator_keys": (name,)}
                await self.until_settled(lambda r: r.coordinators[0].error_code.name, 10, 4, **asked)
        for partitions, label in enumerate(("~members", *TOPICS[:3])):
            await self.create(self.named(label), max(1, partitions))
            await self.until_led(self.named(label), max(1, partitions))
        self.producers = [
            (await self.init(name and self.named(name))).producer_id for name in (*TRANSACTIONS, None)
        ]
        for label in TOPICS[:3]:
            self.topic = self.named(label)
            for sequence in range(3):
                await self.produce(batch_now(self.producers[2], 0, sequence))
        await self.grouped()

    async def grouped(self) -> None:
        """The groups are as they were at the beginning."""
        offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        topics = [{"name": self.named(KEPT), "partitions": [offset]}]
        who = {"group_id": self.named("~g"), "generation_id_or_member_epoch": -1, "member_id": ""}
        await self.ask_plain(8, 8, **who, topics=topics)
        member = {"member_id": MEMBER, "rebalance_timeout": 5_000, "topic_partitions": []}
        names = [self.named("~members")]
        await self.ask_plain(68, 1, group_id=self.named(INHABITED), **member, subscribed_topic_names=names)

    async def answer(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """What is told, but for what no two brokers say alike, or "closed"."""
        plain = self.resolved(fields)
        try:
            if key == ApiKey.DESCRIBE_TRANSACTIONS:
                return described((await self.described_transactions(*plain["transactional_ids"])), self)
            reply = await self.ask_plain(key, version, **plain)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.connect_again()
            return "closed"
        told = shown(reply, self.unique, HIDDEN)
        tells_all = key in ALWAYS_ALL or (key in ALL_OF_THEM and not fields["topics"])
        return pruned(told, is_own if tells_all else lambda struct: True)

    async def settled(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """The answer that does not change in a moment, because a transaction is being ended."""
        deadline = time.monotonic() + LATE_S
        while True:
            told = await self.answer(key, version, fields)
            if not any(code in str(told) for code in TRY_AGAIN) or time.monotonic() > deadline:
                return told
            await asyncio.sleep(0.02)

    async def known_topics(self) -> Any:
        """Which topics there are, with their ids."""
        names = [{"name": self.named(label)} for label in TOPICS]
        found = (await self.ask_plain(3, 12, topics=names)).topics
        labels = {self.named(label): label for label in TOPICS}
        self.topic_ids = {labels[one.name]: one.topic_id for one in found if one.error_code.name == "none"}
        return sorted((labels[one.name], len(one.partitions)) for one in found)


def described(reply: Any, side: Side) -> list[Any]:
    """Of times whether there is one; groups are no topics here."""
    return sorted(
        (
            *(one.error_code, one.transactional_id.replace(side.unique, ""), one.transaction_state),
            *(one.transaction_timeout_ms, one.transaction_start_time_ms > 0),
            *(one.error_code or one.producer_id in side.producers, one.producer_epoch),
            sorted(
                (topic.topic.replace(side.unique, ""), sorted(topic.partitions))
                for topic in one.topics
                if not topic.topic.startswith("__")
            ),
        )
        for one in reply.transaction_states
    )


def is_own(struct: dict[str, Any]) -> bool:
    """Whether a struct is about something of this test's, or of a broker's."""
    names = ("name", "group_id", "transactional_id", "resource_name")
    name = next((struct[each] for each in names if each in struct), OWN)
    is_brokers = struct.get("resource_type") in {ResourceType.BROKER, ResourceType.BROKER_LOGGER}
    return is_brokers or name.startswith(OWN)


def pruned(told: Any, is_wanted: Any) -> Any:
    """Without structs that are not wanted, texts of errors, and settings that are not the resource's own."""
    match told:
        case list():
            kept = [each for each in told if not isinstance(each, dict) or is_wanted(each)]
            return sorted((pruned(each, is_wanted) for each in kept if not is_foreign_setting(each)), key=str)
        case dict():
            return {
                name: value is None if name == "error_message" else pruned(value, is_wanted)
                for name, value in told.items()
                if "config_source" not in told or name == "name" or told["config_source"] in SET_ON_ITSELF
            }
    return told


def is_foreign_setting(entry: Any) -> bool:
    """One that is not there on purpose, or a synonym that depends on how a broker was started."""
    if not isinstance(entry, dict):
        return False
    if "source" in entry:
        return entry["source"] not in SET_ON_ITSELF
    return "is_sensitive" in entry and (entry["name"].startswith("share.") or "offload" in entry["name"])


def positions(timestamp_ms: int) -> dict[str, Any]:
    """Asks for a position in each log that there may be."""
    partitions = [{"partition_index": number, "timestamp": timestamp_ms} for number in range(10)]
    return {"replica_id": -1, "topics": [{"name": label, "partitions": partitions} for label in TOPICS]}


RESOURCES: Final = [
    {"resource_type": kind, "resource_name": label, "configuration_keys": None}
    for kind, labels in ((ResourceType.TOPIC, TOPICS), (ResourceType.GROUP, GROUPS))
    for label in labels
]
EVERYTHING: Final = (
    (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": RESOURCES}),
    (ApiKey.LIST_OFFSETS, 7, positions(-1)),
    (ApiKey.LIST_OFFSETS, 7, positions(-2)),
    (ApiKey.LIST_GROUPS, 5, {}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [*TRANSACTIONS]}),
)
"""Questions about all that may have changed."""


async def until_same(ours: Side, theirs: Side) -> None:
    """Ask both what there is. Not all of Kafka knows of a change as soon as it is answered."""
    deadline = time.monotonic() + LATE_S
    for what in (None, *EVERYTHING):
        while True:
            mine, kafkas = [
                await (side.known_topics() if what is None else side.answer(*what)) for side in (ours, theirs)
            ]
            found = differing(kafkas, mine)
            if not found:
                break
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_the_same_requests_have_the_same_answers(seed, ours, cluster):
    draw = Draw(seed)
    unique = f"{uuid.uuid4().hex[:8]}."
    mine, theirs = Side(unique), Side(unique)
    await mine.connect(ours.servers)
    await theirs.connect(cluster.bootstrap_servers)
    try:
        for side in (mine, theirs):
            await side.prepared()
        await until_same(mine, theirs)
        for step in range(STEPS):
            key = draw.rng.choice(draw.rng.choice((READS, CHANGES)))
            version = draw.rng.randint(*VERSIONS[key])
            fields = draw.request(key, version)
            told, kafkas = [await side.settled(key, version, fields) for side in (mine, theirs)]
            assert differing(kafkas, told) == [], (step, key.name, version, fields)
            if key in CHANGES:
                draw.hear(fields, told)
                for side in (mine, theirs) if key in OF_GROUPS else ():
                    await side.grouped()
                await until_same(mine, theirs)
    finally:
        for side in (mine, theirs):
            await side.close()
