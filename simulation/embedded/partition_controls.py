"""The controls of single partitions: their records, leaders and replicas."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.leaders import NO_LEADER
from fencepost.simulation.embedded.rights import RightsControls
from fencepost.simulation.embedded.settings import refused_by_kafka, whole
from fencepost.simulation.embedded.thread import on_loop


class PartitionControls(RightsControls):
    """The controls of partitions, for a scope those of its topics."""

    @on_loop
    def delete_records(self, topic: str, partition: int, before: int = -1) -> int:
        """Delete the records of a partition before an offset; -1 deletes all. Return the log's new start.

        :raises FencepostError: for an unknown topic or partition, or an offset beyond the log's end.
        """
        found, number = self._partition(topic, partition)
        with refused_by_kafka():
            return self.endpoint.brokers.cluster.delete_records(
                found, number, whole("before", before, -1, None)
            )

    @on_loop
    def truncate(self, topic: str, partition: int, offset: int, *, to: int | None = None) -> int:
        """Drop the batches from the one with `offset` on, as an unclean election does. Return the log's end.

        Broker `to`, by default the next replica, becomes the leader and the only in-sync replica, at a higher
        leader epoch (KIP-320).

        :raises FencepostError: for an unknown topic, partition or broker, an offset beyond the log, or if the
            records are in a journal.
        """
        found, number = self._partition(topic, partition)
        leader_id = self._replica(found, number, to)
        with refused_by_kafka():
            end = self.endpoint.brokers.cluster.truncate(
                found, number, whole("offset", offset, 0, None), leader_id
            )
        self._called("truncate", f"{topic}-{number} at {offset}")
        return end

    @on_loop
    def move_leader(self, topic: str, partition: int, *, to: int | None = None) -> int:
        """Let another replica lead a partition, at a higher leader epoch. Return the new leader.

        It is broker `to`, by default the next replica that runs; with a single one, only the epoch rises.

        :raises FencepostError: for an unknown topic or partition, or a broker that has no running replica.
        """
        found, number = self._partition(topic, partition)
        leader_id = self._replica(found, number, to)
        self._called("move_leader", f"{topic}-{number} to {leader_id}")
        cluster = self.endpoint.brokers.cluster
        return cluster.change_leader(found, number, lambda each: each.moved_to(leader_id)).leader_id

    @on_loop
    def reassign_partition(self, topic: str, partition: int, *, brokers: Sequence[int]) -> None:
        """Move the replicas of a partition to these brokers, the preferred leader first.

        Each of them is in sync at once. The leader stays if it is among them, else the first one leads. The
        leader epoch rises with a change of leader, and if a replica is removed.

        :raises FencepostError: for an unknown topic or partition, no broker, one twice, one that does not
            run, or a partition that has no leader.
        """
        found, number = self._partition(topic, partition)
        cluster = self.endpoint.brokers.cluster
        running = [each.node_id for each in cluster.running]
        replicas = tuple(brokers)
        if (
            not replicas
            or len({*replicas}) < len(replicas)
            or any(isinstance(each, bool) or each not in running for each in replicas)
        ):
            raise FencepostError(
                f"brokers={list(brokers)!r}: expected different ones of {running}, which run"
            )
        if cluster.leadership(found, number).leader_id == NO_LEADER:
            raise FencepostError(
                f"{topic}-{number} has no leader, so no broker can copy it: start a broker of its replicas"
            )
        self._called("reassign_partition", f"{topic}-{number} to {list(brokers)}")
        cluster.change_leader(found, number, lambda each: each.placed_on(replicas, cluster.stopped))

    @on_loop
    def set_in_sync(self, topic: str, partition: int, *, brokers: Sequence[int]) -> None:
        """Set the in-sync replicas of a partition: they are what Metadata tells, and what may lead next.

        :raises FencepostError: for an unknown topic or partition, a broker without a replica, or brokers
            without the leader.
        """
        found, number = self._partition(topic, partition)
        cluster = self.endpoint.brokers.cluster
        state = cluster.leadership(found, number)
        if not set(brokers) <= set(state.replicas) or state.leader_id not in brokers:
            raise FencepostError(
                f"brokers={list(brokers)!r}: expected some of the replicas {list(state.replicas)}, and among "
                f"them the leader {state.leader_id}"
            )
        self._called("set_in_sync", f"{topic}-{number}: {list(brokers)}")
        in_sync = tuple(each for each in state.replicas if each in brokers)
        cluster.change_leader(found, number, lambda each: each._replace(in_sync=in_sync))

    def _partition(self, topic: str, partition: int) -> tuple[Topic, int]:
        found = self.endpoint.logs.topic(self._own("topic", topic), self.prefix)
        with refused_by_kafka():
            self.endpoint.brokers.cluster.check_own(found, "Cannot change")
        return found, self.endpoint.logs.partition(found, partition)

    def _replica(self, topic: Topic, partition: int, node_id: int | None) -> int:
        """Return a broker with a replica that runs: that one, or the next one after the leader."""
        cluster = self.endpoint.brokers.cluster
        state = cluster.leadership(topic, partition)
        able = [each for each in state.replicas if each not in cluster.stopped]
        if node_id is None and able:
            place = able.index(state.leader_id) + 1 if state.leader_id in able else 0
            return able[place % len(able)]
        if node_id is None or isinstance(node_id, bool) or node_id not in able:
            raise FencepostError(
                f"{topic.name}-{partition}: broker {node_id!r} has no running replica; expected one of "
                f"{able} (reassign_partition places replicas)"
            )
        return node_id
