"""The real brokers as a nemesis sees them: an immediate request is carried out as soon as that is possible.

Killing, pausing and starting a node take time. Such actions follow one another for each node, in the order of
the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.faults.plan import FaultKind
from fencepost.simulation.lab.chaos.admin import Admin
from fencepost.simulation.lab.chaos.clock import RealTime, RunQueue
from fencepost.simulation.lab.chaos.topics import RealTopics
from fencepost.simulation.lab.clusters.cluster import RealCluster

_WATCH_S = 0.1

Tell = Callable[..., None]


class RealBroker:
    """One node. Of a cluster that is not ours, only the name is known."""

    generation = 0
    """Always the same: a node that was paused when it died is paused again when it is back."""

    def __init__(self, node_id: int, cluster: RealCluster | None, time: RealTime, tell: Tell) -> None:
        self.name = f"broker-{node_id}"
        self.node_id = node_id
        self.alive = True
        self._pauses = 0
        self._cluster = cluster
        self._time = time
        self._tell = tell
        self.changes = RunQueue(time)

    @property
    def running(self) -> bool:
        """True if it lives and is not paused."""
        return self.alive and not self._pauses

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.alive = False
            self._tell("on_coordinator_state", self.name, "crash")
            self.changes.add(self._own.kill, self.node_id)

    def revive(self) -> None:
        """Start it on its data."""
        if not self.alive:
            self.changes.add(self._revived)

    async def _revived(self) -> None:
        if self.alive:
            return  # it was asked for twice
        await self._own.restart(self.node_id)
        self.alive = True
        self._tell("on_coordinator_state", self.name, "restart")
        if self._pauses:
            await self._own.pause(self.node_id)

    def pause(self) -> None:
        """SIGSTOP; each needs its `resume`."""
        self._pauses += 1
        if self._pauses == 1:
            self.changes.add(self._own.pause, self.node_id)

    def resume(self) -> None:
        """SIGCONT."""
        self._pauses -= 1
        if self._pauses == 0:
            self.changes.add(self._own.resume, self.node_id)

    @property
    def _own(self) -> RealCluster:
        assert self._cluster is not None, "a broker of others is left alone"
        return self._cluster


class RealBrokers:
    """The cluster of a run. `own` is its cluster if it may be disturbed."""

    def __init__(
        self,
        admin: Admin,
        own: RealCluster | None,
        group_id: str,
        *,
        time: RealTime,
        topics: RealTopics,
        tell: Tell,
    ) -> None:
        self._admin = admin
        self._group_id = group_id
        self._own = own
        self._time = time
        self._tell = tell
        self.has_topic = topics.has
        self.create_topic = topics.create
        self.grow_topic = topics.grow
        self.delete_topic = topics.delete
        self._leader: RealBroker | None = None
        self._partition = 0
        self._stopped_followers: list[list[RealBroker]] = []
        self.brokers: Mapping[str, RealBroker] = {}

    async def begin(self) -> None:
        """Connect to the brokers, and find the coordinator of the group."""
        config = await self._admin.configuration()
        self._partition = offsets_partition(self._group_id, config.offsets_topic_num_partitions)
        found = sorted(await self._admin.nodes())
        brokers = [RealBroker(node_id, self._own, self._time, self._tell) for node_id in found]
        self.brokers = {broker.name: broker for broker in brokers}
        await self._admin.coordinator(self._group_id)
        await self._look()
        self._time.spawn(self._watch())

    def cannot(self, kind: FaultKind) -> str | None:
        """Return why that can't happen here; None if it can."""
        if kind not in _OF_BROKERS:
            return None
        if self._own is None:
            return "the cluster is not ours to disturb: --cluster jvm or docker starts one"
        if kind in _OF_SEVERAL and len(self.brokers) == 1:
            return "the cluster has one node"
        return None

    # -- the coordinator ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            await self._look()

    async def _look(self) -> None:
        try:
            node_id = await self._admin.leader(self._partition)
        except EnvironmentLacks:
            return  # no broker responds for a minute: code that needs one complains
        leader = self.brokers.get(f"broker-{node_id}")
        if leader is self._leader:
            return
        if self._leader is not None and self._leader.alive:
            self._tell("on_coordinator_state", self._leader.name, "resign")
        self._leader = leader
        if leader is not None:
            self._tell("on_coordinator_state", leader.name, "load")
            self._tell("on_coordinator_state", leader.name, "active")

    @property
    def leader(self) -> RealBroker | None:
        """The broker that coordinates the group, as of a moment ago; None if it does not run."""
        leader = self._leader
        return leader if leader is not None and leader.running else None

    def move(self) -> None:
        """Let another broker lead the group's part of the coordinators' log."""
        running = [broker for broker in self.brokers.values() if broker.running]
        leader = self.leader
        others = [broker.node_id for broker in running if broker is not leader]
        if leader is not None and others:
            first = next((node for node in others if node > leader.node_id), others[0])
            rest = [broker.node_id for broker in self.brokers.values() if broker.node_id != first]
            self._time.spawn(self._moved((first, *rest)))

    async def _moved(self, replicas: tuple[int, ...]) -> None:
        await self._admin.move_leader(self._partition, replicas)

    def unavailable(self, lasts_us: int) -> None:
        """Pause the coordinator's node: no other broker takes over before the cluster misses it."""
        if (leader := self.leader) is not None:
            leader.pause()
            self._time.schedule(self._time.now_us + lasts_us, lambda _: leader.resume(), None)

    def fail_appends(self) -> None:
        """Pause the nodes that the coordinator's log is replicated to."""
        followers = [broker for broker in self.brokers.values() if broker is not self._leader]
        self._stopped_followers.append(followers)
        for broker in followers:
            broker.pause()

    def mend_appends(self) -> None:
        """Resume these nodes."""
        for broker in self._stopped_followers.pop(0):
            broker.resume()

    def take_producer_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Do nothing: scenarios with producers are refused before anything starts."""

    async def calm(self) -> None:
        """Bring all brokers back, and wait until they serve and the group has a coordinator that responds."""
        for broker in self.brokers.values():
            broker.revive()
        for broker in self.brokers.values():
            await broker.changes.settled()
        await self._admin.group(self._group_id, "consumer")


_OF_SEVERAL = frozenset({FaultKind.COORDINATOR_MOVE, FaultKind.APPEND_FAILURE})
_OF_BROKERS = frozenset(
    {
        FaultKind.COORDINATOR_CRASH,
        FaultKind.COORDINATOR_MOVE,
        FaultKind.COORDINATOR_UNAVAILABLE,
        FaultKind.APPEND_FAILURE,
        FaultKind.BROKER_CRASH,
        FaultKind.BROKER_PAUSE,
    }
)
