"""The same requests to three brokers of ours and of Kafka's, in racks: what leaders and followers say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import pytest

from fencepost import EmbeddedKafka
from fencepost.simulation.lab.clusters import layout, settings
from fencepost.simulation.lab.clusters.artifacts import Installation
from fencepost.simulation.lab.clusters.cluster import RealCluster
from tests.conformance.both import SECOND, Peer, answers_of_both, batch_now, struct_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
RACKS = {1: "a", 2: "b", 3: "b"}
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
OF_A_BROKER = (
    "node.id",
    "broker.id",
    "max.incremental.fetch.session.cache.slots",
    "max.request.partition.size.limit",
)
COUNT = 5
LAST_WITH_REPLICA, FIRST_WITH_RACK, FIRST_WITH_EPOCHS = 14, 11, 12


class Nodes(Peer):
    """Speaks to each broker on a connection of its own; `self` is that of the first one."""

    replicas: tuple[tuple[int, ...], ...] = ((1, 2), (2, 3), (3, 1))
    """Of each partition; the first one leads."""

    async def connect(self, servers: str) -> None:
        await super().connect(servers)
        self.nodes: dict[int, Peer] = {}
        for node_id, server in enumerate(servers.split(","), 1):
            self.nodes[node_id] = Peer()
            await self.nodes[node_id].connect(server)

    async def close(self) -> None:
        for peer in (*self.nodes.values(), super()):
            await peer.close()  # type: ignore[attr-defined]

    async def begin(self) -> None:
        """A topic whose records all replicas have, as their leaders know."""
        assignments = tuple(
            struct_of(19, 7, "CreatableReplicaAssignment", partition_index=number, broker_ids=replicas)
            for number, replicas in enumerate(self.replicas)
        )
        topic = struct_of(
            *(19, 7, "CreatableTopic"),
            name=self.topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=(),
        )
        reply = await self.ask(19, 7, topics=(topic,), timeout=10 * SECOND, validate_only=False)
        assert [one.error_code.name for one in reply.topics] == ["none"], reply
        for number, replicas in enumerate(self.replicas):
            await self._until(lambda: self._produced(number, replicas[0]))  # noqa: B023
            for node_id in replicas:
                await self._until(lambda: self._has_all(number, node_id))  # noqa: B023

    async def _until(self, holds: Any) -> None:
        deadline = time.monotonic() + 60
        while not await holds():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    async def _produced(self, number: int, node_id: int) -> bool:
        data = struct_of(0, 11, "PartitionProduceData", index=number, records=batch_now(n=COUNT))
        topic = struct_of(0, 11, "TopicProduceData", name=self.topic, partition_data=(data,))
        reply = await self.nodes[node_id].ask(
            *(0, 11), transactional_id=None, acks=-1, timeout=5 * SECOND, topic_data=(topic,)
        )
        return reply.responses[0].partition_responses[0].error_code.name == "none"

    async def _has_all(self, number: int, node_id: int) -> bool:
        told = (await self.fetch(node_id, 12, number))[1]
        return told[0][1:4] == ("none", COUNT, True)

    async def fetch(
        self,
        node_id: int,
        version: int,
        *numbers: int,
        offset: int = 0,
        rack: str = "",
        epoch: int = -1,
        session: tuple[int, int] = (0, -1),
    ) -> Any:
        """Of each partition: the error, offsets, if there are records, and the replica to prefer."""
        parts = []
        for number in numbers:
            part = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            parts.append({**part, "current_leader_epoch": epoch})
        fields: dict[str, Any] = {"topics": [{"topic": self.topic, "partitions": parts}] if parts else []}
        fields |= {"max_bytes": 1 << 20, "session_id": session[0], "session_epoch": session[1]}
        if version <= LAST_WITH_REPLICA:
            fields["replica_id"] = -1
        if version >= FIRST_WITH_RACK:
            fields["rack_id"] = rack
        reply = await self.nodes[node_id].ask_plain(1, version, **fields)
        return reply.session_id, [
            (
                *(one.partition_index, one.error_code.name, one.high_watermark, bool(one.records)),
                *(one.log_start_offset, one.last_stable_offset),
                *(self.preferred(getattr(one, "preferred_read_replica", None)), one.aborted_transactions),
            )
            for topic in reply.responses
            for one in topic.partitions
        ]

    def preferred(self, replica_id: int | None) -> Any:
        """What is compared of the replica that a client shall prefer."""
        return replica_id


class Everywhere(Nodes):
    """Each broker has all partitions, so two followers can be in one rack."""

    replicas = ((1, 2, 3), (2, 3, 1), (3, 1, 2))

    def preferred(self, replica_id: int | None) -> Any:
        """Its rack: of two in a rack Kafka takes the one that caught up last."""
        return RACKS.get(replica_id or -1)


async def fetches(peer: Nodes) -> AsyncIterator[Any]:
    """From leaders, followers and brokers that are neither, by clients in all racks and in none."""
    for node_id in peer.nodes:
        for version in (10, 11, 12):
            for rack in ("", "a", "b", "z"):
                for offset in (0, COUNT, COUNT + 1, 99):
                    for number in range(len(peer.replicas)):
                        answer = await peer.fetch(node_id, version, number, rack=rack, offset=offset)
                        yield node_id, version, rack, offset, answer[1]
                        if version < FIRST_WITH_RACK:
                            break


async def fetches_with_epochs(peer: Nodes) -> AsyncIterator[Any]:
    """Followers check the leader's epoch too; one that is preferred is told after that."""
    for node_id in peer.nodes:
        for epoch in (0, 7):
            for rack in ("", "b"):
                yield node_id, epoch, rack, (await peer.fetch(node_id, 12, 0, 2, epoch=epoch, rack=rack))[1]


async def fetches_in_sessions(peer: Nodes) -> AsyncIterator[Any]:
    """A replica to prefer is told each time."""
    for node_id in peer.nodes:
        for rack in ("", "b"):
            session, answer = await peer.fetch(node_id, 12, 0, 1, 2, rack=rack, offset=COUNT, session=(0, 0))
            yield node_id, rack, session > 0, answer
            for epoch in (1, 2):
                yield (await peer.fetch(node_id, 12, rack=rack, session=(session, epoch)))[1]


async def positions(peer: Nodes) -> AsyncIterator[Any]:
    """Leaders alone tell offsets and epochs, but to debugging clients."""
    for node_id, node in peer.nodes.items():
        for replica in (-1, -2):
            for time_ms in (-1, -2, 0):
                wanted = [{"partition_index": number, "timestamp": time_ms} for number in range(3)]
                fields = {"replica_id": replica, "topics": [{"name": peer.topic, "partitions": wanted}]}
                reply = await node.ask_plain(2, 7, **fields)
                yield (
                    *(node_id, replica, time_ms),
                    sorted(
                        (one.partition_index, one.error_code.name, one.offset)
                        for one in reply.topics[0].partitions
                    ),
                )
            wanted = [
                {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in range(3)
            ]
            fields = {"replica_id": replica, "topics": [{"topic": peer.topic, "partitions": wanted}]}
            reply = await node.ask_plain(23, 4, **fields)
            yield (
                *(node_id, replica),
                sorted(
                    (one.partition, one.error_code.name, one.end_offset) for one in reply.topics[0].partitions
                ),
            )


async def racks(peer: Nodes) -> AsyncIterator[Any]:
    """As Metadata, DescribeCluster and DescribeConfigs tell them."""
    for node in peer.nodes.values():
        reply = await node.ask_plain(3, 12, topics=[])
        yield sorted((each.node_id, each.rack) for each in reply.brokers)
        reply = await node.ask_plain(60, 1, endpoint_type=1)
        yield sorted((each.broker_id, each.rack) for each in reply.brokers)
    for node_id, node in peer.nodes.items():
        keys = ("broker.rack", *SELECTOR, *OF_A_BROKER)
        resource = {"resource_type": 4, "resource_name": str(node_id), "configuration_keys": keys}
        reply = await node.ask_plain(32, 4, resources=[resource], include_synonyms=True)
        yield [
            sorted(
                (one.name, one.value, one.read_only, one.config_source, one.config_type, one.synonyms)
                for one in result.configs
            )
            for result in reply.results
        ]


@pytest.fixture(scope="module")
def kafka_in_racks(kafka_installation: Installation) -> Iterator[RealCluster]:
    """Three nodes of real Kafka, each in its rack."""
    original = settings.broker_properties

    def in_rack(node: Any, *arguments: Any, **more: Any) -> dict[str, str]:
        return {**original(node, *arguments, **more), "broker.rack": RACKS[node.node_id]}

    with mock.patch.object(layout, "broker_properties", in_rack):
        cluster = RealCluster(nodes=3, properties=SELECTOR)
        asyncio.run(cluster.start())
        try:
            yield cluster
        finally:
            cluster.stop()


@pytest.mark.parametrize(
    "script",
    [fetches, fetches_with_epochs, fetches_in_sessions, positions, racks],
    ids=lambda script: script.__name__,
)
@pytest.mark.parametrize("peers", [Nodes, Everywhere])
async def test_kafka_answers_the_same(script, peers, kafka_in_racks):
    with EmbeddedKafka(brokers=3, racks=RACKS.values(), config=SELECTOR) as ours:
        servers = ours.bootstrap_servers, kafka_in_racks.bootstrap_servers
        for mine, kafkas in await answers_of_both(script, peers, *servers):
            assert mine == kafkas
