"""The reader of a simulated client's global thread: one topic, in no group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.application.port import PartitionRecords
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.scenarios.scenario import ScenarioTopic

if TYPE_CHECKING:
    from fencepost.simulation.streams.client import StreamsClientHost


class SimulatedReader:
    """Reads all partitions of a topic from their beginning. A broker has to say where they end now."""

    def __init__(self, host: StreamsClientHost, topic: ScenarioTopic) -> None:
        self._host = host
        self._logs = host.world.cluster.logs
        self._positions = {TopicPartition(topic.name, number): 0 for number in range(topic.partitions)}
        self._ends: dict[TopicPartition, int] = {}
        world = host.world
        self._transport = SimulatedTransport(
            host,
            world.network,
            world.cluster.brokers,
            first=int(host.rng.uniform(0, 1_000)),
            timeout_us=world.scenario.network.request_timeout.us,
        )

    async def start(self) -> None:
        """Look up where the topic ends.

        :raises TransportError: if no broker answers in time.
        """
        self._ends = dict(await self._transport.log_offsets(self._positions, earliest=False))

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return the records that arrive within the time of a poll."""
        self._host.raise_injected("global", "")
        if self.caught_up:
            await self._host.pause_us(self._host.world.scenario.application.poll.us)
            self._host.raise_injected("global", "")
        batches = []
        for partition, position in self._positions.items():
            log = self._logs.log(partition)
            end = position if log is None else log.end(self._host.loop.now_us)
            if end > position:
                batches.append(PartitionRecords(partition, range(position, end), end))
                self._positions[partition] = end
        return batches

    @property
    def caught_up(self) -> bool:
        """True if it has read everything that existed when it started."""
        return all(self._positions[partition] >= end for partition, end in self._ends.items())

    async def close(self) -> None:
        """Disconnect."""
        self._transport.close()
