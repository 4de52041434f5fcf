"""The same administrative requests to our broker and to Kafka's: what is refused, how, and what is told."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.server.topic_configs import TOPIC_SETTINGS
from tests.conformance.both import Peer, answers_of_both

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


class Administrator(Peer):
    """Asks what administrators ask."""

    async def closes(self, key: int, version: int, body: bytes) -> bool:
        """Whether a request is answered by the end of its connection."""
        frame = struct.pack(">hhih", key, version, 1, -1) + body
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        try:
            ended = await self.reader.read(1) == b""
        except ConnectionError:
            ended = True
        await self.connect_again()
        return ended


async def versions(peer: Administrator) -> AsyncIterator[Any]:
    reply = await peer.asked(18, 0)
    told = {one["api_key"]: (one["min_version"], one["max_version"]) for one in reply["api_keys"]}
    yield {key: told[key] for key in REGISTRY}
    for key, version in ((0, 0), (0, 1), (0, 2), (0, 14), (22, 6)):
        yield key, version, await peer.closes(key, version, struct.pack(">hii", -1, 1000, 0))


def placed(*replicas: tuple[int, tuple[int, ...]]) -> dict[str, Any]:
    places = [{"partition_index": number, "broker_ids": ids} for number, ids in replicas]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": places}


def by_hand(*replicas: tuple[int, ...]) -> dict[str, Any]:
    return placed(*enumerate(replicas))


def of_factor(replicas: int, partitions: int = 1) -> dict[str, Any]:
    return {"num_partitions": partitions, "replication_factor": replicas}


async def replicas(peer: Administrator) -> AsyncIterator[Any]:
    for place in (
        *(of_factor(2), of_factor(32_767), of_factor(0), of_factor(-2), of_factor(3, 0), of_factor(0, 0)),
        *(by_hand((1, 99)), by_hand((1, 1)), by_hand(()), by_hand((-1,)), by_hand((1,), (1, 99))),
        *(by_hand((1,)) | {"num_partitions": 1}, by_hand((1,)) | {"replication_factor": 1}),
        by_hand((1,)) | of_factor(1),
        *(placed((1, (1,))), placed((-1, (1,)), (0, (1,))), placed((0, (1,)), (0, (1,)))),
        *(placed((0, (1,)), (1, (1,)), (0, (1,))), placed((5, (1,)), (5, (1,))), placed((0, (1,)), (0, ()))),
        *(placed((0, (1,)), (0, (99,))), placed((0, (99,)), (0, (1,))), placed((0, (1, 1)), (0, (1,)))),
    ):
        yield (
            place,
            await peer.asked(19, 7, "name", topics=[{"name": f"new-{peer.topic}", **place}], timeout=10_000),
        )
    for count, hands in (
        *((2, [(99,)]), (4, [(1,)]), (2, [(1, 99)]), (2, [(1, 1)]), (2, [()]), (2, []), (2, [(-1,)])),
        *((2, [(1,), (1,)]), (3, [(1,), ()]), (2, [(1,)])),
    ):
        places = [{"broker_ids": ids} for ids in hands]
        topic = {"name": peer.topic, "count": count, "assignments": places}
        reply = await peer.asked(37, 3, "name", topics=[topic], timeout=10_000, validate_only=True)
        yield count, hands, reply


async def creations(peer: Administrator) -> AsyncIterator[Any]:
    own = peer.topic
    null, unknown = {"name": "retention.ms", "value": None}, {"name": "nope", "value": None}
    yield await peer.asked(
        *(19, 7, "topic_id", "configs"),
        topics=[{"name": f"{own}.a.b", **of_factor(1)}, {"name": f"{own}.q.q", **of_factor(1)}],
        timeout=10_000,
    )
    for topics in (
        *([f"{own}.a_b"], [f"{own}_a_b", f"{own}-ok"], [f"{own}.a.b"], [f"{own}.n.n", f"{own}.n_n"]),
        *(["twice", "twice"], ["twice", f"{own}-new", "twice", "a b"], ["a b", "a b"]),
        *(["__cluster_metadata"], ["__cluster_metadata"] * 2, ["__cluster_metadata", f"{own}-newer"]),
    ):
        wanted = [{"name": name, **of_factor(1)} for name in topics]
        hide = ("topic_id", "configs", *(("error_message",) if "a b" in topics else ()))
        yield len(topics), await peer.asked(19, 7, *hide, topics=wanted, timeout=10_000)
    for index, configs in enumerate(([null], [null, unknown], [null, {"name": "nope", "value": "1"}])):
        topic = {"name": f"{own}-{index}", **of_factor(1), "configs": configs}
        yield configs, await peer.asked(19, 7, topics=[topic], timeout=10_000)
    # Told as it was written, and with an id that nobody will have.
    written = [{"name": "preallocate", "value": "TRUE"}, {"name": "segment.ms", "value": " 5 "}]
    written.append({"name": "cleanup.policy", "value": "compact , delete"})
    topic = {"name": f"{own}-written", **of_factor(1), "configs": written}
    (told,) = (await peer.ask_plain(19, 7, topics=[topic], timeout=10_000, validate_only=True)).topics
    names = {each["name"] for each in written}
    yield (
        told.topic_id is None,
        sorted((each.name, each.value) for each in told.configs if each.name in names),
    )
    exists = {"name": own, **of_factor(9, 0), "configs": [null]}
    yield await peer.asked(19, 7, topics=[exists], timeout=10_000)
    for counts in ((10_001,), (10_000,), (9_999,), (6_000, 6_000), (10_000, -1), (10_001, 0), (4_999, 5_000)):
        wanted = [{"name": f"{own}-{nth}", **of_factor(1, count)} for nth, count in enumerate(counts)]
        reply = await peer.asked(
            19, 7, "configs", "topic_id", topics=wanted, timeout=10_000, validate_only=True
        )
        yield counts, reply
    for grown in (
        ((own, 3), (own, 2)),
        ((own, 2), ("no", 3), ("no", 4)),
        ((own, 1),),
        ((own, 0),),
        ((own, -1),),
    ):
        wanted = [{"name": name, "count": count, "assignments": None} for name, count in grown]
        reply = await peer.asked(37, 3, topics=wanted, timeout=10_000, validate_only=True)
        yield len(grown), reply


async def removals(peer: Administrator) -> AsyncIterator[Any]:
    own = peer.topic
    topic_id = (await peer.ask_plain(3, 12, topics=[{"name": own}])).topics[0].topic_id
    by_name, by_id = {"name": own}, {"topic_id": topic_id}
    nobody = {"topic_id": uuid.UUID(int=77)}
    for topics in (
        *([by_name, by_name], [by_name, by_id], [by_id, by_id], [nobody, nobody], [{}], [{}, {}]),
        *(
            [by_name | by_id],
            [by_name | by_id] * 2,
            [{"name": "zz"}, nobody],
            [{"name": "zz"}] * 2,
            [{"name": ""}],
        ),
        [],
    ):
        reply = await peer.asked(20, 6, "topic_id", "error_message", topics=topics, timeout=10_000)
        yield len(topics), reply
    yield await peer.asked(20, 5, "error_message", topic_names=[own, "zz", own], timeout=10_000)
    yield await peer.asked(20, 6, "topic_id", topics=[by_name | by_id, by_name], timeout=10_000)
    yield await peer.asked(
        20, 6, "topic_id", "error_message", topics=[by_id, by_name | by_id], timeout=10_000
    )


async def records_of_compacted_topics(peer: Administrator) -> AsyncIterator[Any]:
    own = peer.topic
    for policy in ("compact", "compact,delete", "delete"):
        peer.topic = f"{own}-{policy.replace(',', '-')}"
        yield (await peer.create(peer.topic, 1, cleanup_policy=policy)).topics[0].error_code.name
        deadline = time.monotonic() + 60
        while (await peer.list_offset(-1, committed=False))[0] != "none":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        yield policy, [await peer.delete_records(offset, part) for offset, part in ((0, 0), (5, 0), (0, 9))]


async def operations(peer: Administrator) -> AsyncIterator[Any]:
    topics = [{"name": peer.topic}, {"name": "no-such-topic"}, {"name": "a b"}]
    offset = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    commit = {"name": peer.topic, "partitions": [offset]}
    yield await peer.asked(
        *(8, 8), group_id=peer.group, generation_id_or_member_epoch=-1, member_id="", topics=[commit]
    )
    member = {"rebalance_timeout": 5_000, "subscribed_topic_names": [peer.topic], "topic_partitions": []}
    joined = await peer.asked(68, 1, group_id=f"new-{peer.group}", member_id="m" * 22, **member)
    yield joined["error_code"]
    groups = [peer.group, f"new-{peer.group}", "no-such-group"]
    for asked in (True, False):
        for version in (8, 10, 11, 13):
            more = {"include_cluster_authorized_operations": asked} if version < 11 else {}
            reply = await peer.asked(
                *(3, version, "topic_id", "partitions", "error_message"),
                topics=topics,
                include_topic_authorized_operations=asked,
                **more,
            )
            yield asked, version, reply
        for kind in (1, 2, 3):
            fields = {"include_cluster_authorized_operations": asked, "endpoint_type": kind}
            yield asked, kind, await peer.asked(60, 2, **fields)
        for key, version in ((15, 4), (15, 6), (69, 1), (89, 0)):
            fields = {"groups" if key == 15 else "group_ids": groups, "include_authorized_operations": asked}  # type: ignore[dict-item]
            reply = await peer.asked(key, version, **fields)
            yield key, asked, [(one["error_code"], one["authorized_operations"]) for one in reply["groups"]]
    unknown_id = {"topic_id": uuid.UUID(int=7), "name": None}
    yield await peer.asked(3, 12, topics=[unknown_id], include_topic_authorized_operations=True)
    yield await peer.asked(75, 0, "topic_id", "partitions", topics=topics, response_partition_limit=9)


async def places(peer: Administrator) -> AsyncIterator[Any]:
    """In which order topics are told, and what of ids before they can be asked for."""
    own = (await peer.ask_plain(3, 12, topics=[{"name": peer.topic}])).topics[0].topic_id
    nobody = uuid.UUID(int=77)
    for version in (1, 10, 11, 12, 13):
        asked: list[list[dict[str, Any]]] = [[{"name": "zz"}, {"name": peer.topic}, {"name": "a b"}]]
        if version >= 10:
            for topic_id in (own, nobody):
                asked += [[{"name": peer.topic, "topic_id": topic_id}], [{"name": "zz"}]]
                asked[-1] += [{"name": "", "topic_id": topic_id}]
        if version >= 12:
            asked += [[{"topic_id": own}, {"topic_id": nobody}], [{"topic_id": nobody}, {"topic_id": own}]]
        for topics in asked:
            more = {"include_topic_authorized_operations": True} if version >= 8 else {}
            more |= {"include_cluster_authorized_operations": True} if version in (10,) else {}
            reply = await peer.ask_plain(3, version, topics=topics, **more)
            yield (
                *(version, len(topics), len(reply.brokers), reply.controller_id >= 0),
                getattr(reply, "cluster_id", None) is None,
                getattr(reply, "cluster_authorized_operations", None),
                [
                    (
                        *(one.name and one.name.replace(peer.topic, ""), one.error_code.name),
                        *(getattr(one, "topic_id", None) in (own, nobody), len(one.partitions)),
                        getattr(one, "topic_authorized_operations", None),
                    )
                    for one in reply.topics
                ],
            )


async def kinds(peer: Administrator) -> AsyncIterator[Any]:
    """Settings of what has none, alone and beside a topic."""
    topic = {"resource_type": 2, "resource_name": peer.topic}
    for kind in (0, 1, 99):
        for resources in ([{"resource_type": kind, "resource_name": "x"}], [topic, {"resource_type": kind}]):
            wanted = [{"configuration_keys": ["segment.ms"], **each} for each in resources]  # type: ignore[dict-item]
            yield kind, await peer.asked(32, 4, "error_message", "synonyms", resources=wanted)
            for operation in range(4):
                change = {"name": "segment.ms", "config_operation": operation, "value": "5000"}
                wanted = [{"configs": [change], **each} for each in resources]  # type: ignore[dict-item,list-item]
                yield operation, await peer.asked(44, 1, "error_message", resources=wanted)


async def positions(peer: Administrator) -> AsyncIterator[Any]:
    async def listed(version: int, *topics: tuple[str, list[tuple[int, int]]]) -> Any:
        wanted = [
            {"name": name, "partitions": [{"partition_index": part, "timestamp": ms} for part, ms in places]}
            for name, places in topics
        ]
        reply = await peer.asked(2, version, "timestamp", replica_id=-1, topics=wanted)
        return version, topics, reply

    for version in (4, 6, 7, 8, 9, 10, 11):
        for ms in (-2, -3, -4, -5, -6, -7, -99):
            yield (await listed(version, (peer.topic, [(0, ms)])))[2]
    own = peer.topic
    for topics in (
        *([(own, [(0, -1), (0, -2), (7, -1)])], [(own, [(0, -1)]), (own, [(0, -2), (7, -1)])]),
        *([(own, [(7, -99)])], [("no", [(0, -99), (1, -1)])], [("no", [(0, -1), (0, -1)])]),
    ):
        yield (await listed(7, *topics))[2]


async def cursors(peer: Administrator) -> AsyncIterator[Any]:
    own, later = {"name": peer.topic}, {"name": f"{peer.topic}-z"}
    await peer.create(later["name"], 2)
    await peer.until_found(later["name"])
    for topics in ([own], [own, later], [own, later, {"name": "zz"}]):
        for name, part in (
            *((peer.topic, -1), (peer.topic, 0), (peer.topic, 1), (peer.topic, 9), (later["name"], 1)),
            *((later["name"], -5), ("A", 0), ("zz", 0), ("zz", 4), ("", 0), ("a b", 0)),
        ):
            reply = await peer.asked(
                *(75, 0, "topic_id"),
                topics=topics,
                response_partition_limit=1,
                cursor={"topic_name": name, "partition_index": part},
            )
            yield name == peer.topic, part, reply


CLUSTER, STATIC, DYNAMIC = 3, 4, 8
"""Sources: what is set for all brokers, or in the file of one, and on a group."""


async def settings_of_topics(peer: Administrator) -> AsyncIterator[Any]:
    """Whatever is told of them but their texts."""
    every = f"{peer.topic}-every"
    defaults = {name.replace(".", "_"): setting.default for name, setting in TOPIC_SETTINGS.items()}
    reply = await peer.create(every, 1, **defaults | {"retention_ms": "5"})
    yield reply.topics[0].error_code.name
    await peer.until_found(every)
    # Retention has another default here; how many replicas there must be Kafka's controller sets (KIP-966).
    for topic, left_out in ((peer.topic, {"retention.ms", "min.insync.replicas"}), (every, set())):
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        for version, asked in ((4, True), (4, False), (2, True)):
            reply = await peer.ask_plain(32, version, resources=[resource], include_synonyms=asked)
            (found,) = reply.results
            yield [
                (
                    *(each.name, each.value, each.config_source, each.read_only, each.is_sensitive),
                    getattr(each, "config_type", None),
                    [
                        (it.name, it.value, it.source)
                        for it in each.synonyms
                        if it.source not in (CLUSTER, STATIC)
                    ],
                )
                for each in sorted(found.configs, key=lambda config: config.name)
                if each.name not in left_out
            ]


async def settings_of_groups(peer: Administrator) -> AsyncIterator[Any]:
    """What is told of them, and of the brokers' ones that stand in for them; these have other values here."""
    names = [name.replace("_", ".") for name in GroupConfig.__struct_fields__ if "offload" not in name]
    change = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}
    resource = {"resource_type": 32, "resource_name": peer.group, "configs": [change]}
    yield await peer.asked(44, 1, "resource_name", resources=[resource])

    async def told(kind: int, name: str, keys: list[str]) -> Any:
        wanted = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        (found,) = (await peer.ask_plain(32, 4, resources=[wanted], include_synonyms=True)).results
        return [
            (
                *(each.name, each.config_source, each.config_type, each.value == each.synonyms[0].value),
                [(it.name, it.source, it.source == STATIC or it.value) for it in each.synonyms],
            )
            for each in sorted(found.configs, key=lambda config: config.name)
        ]

    deadline = time.monotonic() + 60
    while (await told(32, peer.group, [change["name"]]))[0][1] != DYNAMIC:  # type: ignore[list-item]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    yield await told(32, peer.group, names)
    yield await told(32, f"other-{peer.group}", names)
    yield await told(4, "1", [f"group.{name}" for name in names])


async def empty_names(peer: Administrator) -> AsyncIterator[Any]:
    for kind, name, keys in (
        *((2, peer.topic, []), (2, peer.topic, ["segment.ms", "nope"]), (32, "", ["x"]), (32, "", [])),
        (32, "g", ["nope"]),
    ):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        reply = await peer.asked(32, 4, resources=[resource])
        (one,) = reply["results"]
        yield kind, keys, one["error_code"], sorted(each["name"] for each in one["configs"])
    for version in (3, 4):
        for name, number in (
            *(("", ""), ("x", ""), ("", "1"), ("a b", "1"), ("x", "1 2"), ("-x", "1"), ("x-", "1")),
            *(("x.y-z", "1.2-3"), ("x_y", "1"), ("x", "\u00e9"), ("x", "1."), ("x--y", "1"), ("x", "1\n")),
        ):
            reply = await peer.asked(18, version, client_software_name=name, client_software_version=number)
            features = (reply["finalized_features"] != [], reply["finalized_features_epoch"] >= 0)
            yield name, number, reply["error_code"], len(reply["api_keys"]) > 0, features
    partition = {"name": peer.topic, "partitions": [{"partition_index": 0}]}
    for group, topics in (("", []), ("", [partition]), ("no-such-group", [])):
        yield group, await peer.asked(47, 0, group_id=group, topics=topics)
    for group in ("", "no-such-group"):
        yield group, await peer.asked(13, 2, group_id=group, member_id="m")
        for version in (3, 4, 5):
            for members in ([], [{"member_id": "m"}], [{"member_id": "m"}] * 2):
                yield group, version, await peer.asked(13, version, group_id=group, members=members)
    peer.producer = (await peer.init()).producer_id
    peer.group = ""
    yield "in a transaction", await peer.add_offsets(0), await peer.add_offsets(4)
    yield await peer.end(0, commit=False)


async def rights(peer: Administrator) -> AsyncIterator[Any]:
    """Of a topic, of nothing, and of kinds that there are not."""
    for version in (1, 2, 3):
        for kind, name in ((2, peer.topic), (1, None), (99, "x")):
            wanted = {"resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": 3}
            wanted |= {"principal_filter": None, "host_filter": None, "operation": 3, "permission_type": 3}
            yield version, kind, await peer.asked(29, version, **wanted)
            yield (
                await peer.asked(31, version, filters=[wanted] * 2),
                await peer.asked(31, version, filters=[]),
            )
        given = {"resource_type": 2, "resource_name": peer.topic, "resource_pattern_type": 3}
        given |= {"principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
        yield (
            await peer.asked(30, version, creations=[given] * 3),
            await peer.asked(30, version, creations=[]),
        )


@pytest.mark.parametrize(
    "script",
    [
        versions,
        replicas,
        creations,
        removals,
        records_of_compacted_topics,
        operations,
        places,
        kinds,
        positions,
        cursors,
        settings_of_topics,
        settings_of_groups,
        empty_names,
        rights,
    ],
    ids=lambda script: script.__name__,
)
async def test_kafka_answers_the_same(script, ours, cluster):
    for mine, kafkas in await answers_of_both(script, Administrator, ours.servers, cluster.bootstrap_servers):
        assert mine == kafkas
