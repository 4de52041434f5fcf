"""The controls of single partitions: their records, leaders and replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.leaders import NO_LEADER, running
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
        """Let another in-sync replica lead a partition, at a higher leader epoch. Return the new leader.

        It is broker `to`, by default the next in-sync replica that runs; with a single one, only the epoch
        rises. `truncate` lets a replica lead that is not in sync.

        :raises FencepostError: for an unknown topic or partition, or a broker that has no running in-sync
            replica.
        """
        found, number = self._partition(topic, partition)
        leader_id = self._replica(found, number, to, in_sync=True)
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
        able = [each.node_id for each in cluster.running]
        replicas = _node_ids(brokers)
        if not replicas or len({*replicas}) < len(replicas) or not {*replicas} <= {*able}:
            raise FencepostError(f"brokers={list(brokers)!r}: expected different ones of {able}, which run")
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
        if not set(_node_ids(brokers)) <= set(state.replicas) or state.leader_id not in brokers:
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

    def _replica(self, topic: Topic, partition: int, node_id: int | None, *, in_sync: bool = False) -> int:
        """Return a broker with a replica that runs: that one, or the next one after the leader."""
        cluster = self.endpoint.brokers.cluster
        state = cluster.leadership(topic, partition)
        able = running(state.in_sync if in_sync else state.replicas, cluster.stopped)
        if node_id is None and able:
            place = able.index(state.leader_id) + 1 if state.leader_id in able else 0
            return able[place % len(able)]
        if node_id is None or isinstance(node_id, bool) or node_id not in able:
            kind, hint = (
                ("running in-sync replica", "truncate lets one lead that is not in sync")
                if in_sync
                else ("running replica", "reassign_partition places replicas")
            )
            held = f"no broker has a {kind}" if node_id is None else f"broker {node_id!r} has no {kind}"
            expected = f"; expected one of {list(able)}" if able else ""
            raise FencepostError(f"{topic.name}-{partition}: {held}{expected} ({hint})")
        return node_id


def _node_ids(brokers: object) -> tuple[int, ...]:
    """Return the ids of brokers.

    :raises FencepostError: if they are no list of whole numbers.
    """
    if isinstance(brokers, str) or not isinstance(brokers, Iterable):
        raise FencepostError(f"brokers={brokers!r}: expected a list of broker ids, such as [1, 2]")
    return tuple(whole("brokers", each, 0, None) for each in brokers)
