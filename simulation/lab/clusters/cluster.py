"""A real Kafka cluster for the length of an `async with` block, with faults at its nodes' processes."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeAlias, get_args

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.brokers.identity import BrokerIdentity, NotKafka, identity_of
from fencepost.simulation.lab.clusters.docker import DockerRunner, docker_node_states
from fencepost.simulation.lab.clusters.jvm import JvmRunner, jvm_nodes
from fencepost.simulation.lab.clusters.layout import new_id
from fencepost.simulation.lab.clusters.ports import PortTaken, port_taken
from fencepost.simulation.lab.clusters.processes import Condition, myself
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    KafkaVersion,
    NodeState,
    Profile,
    property_texts,
)
from fencepost.simulation.lab.clusters.state import (
    ClusterState,
    RunnerName,
    StateFolder,
    create,
    left_behind,
)

Runner: TypeAlias = JvmRunner | DockerRunner
"""Starts and stops the nodes of one cluster; node ids count from 1."""

NODE_COUNTS = (1, 3)
START_SECONDS = 90.0

_ATTEMPTS = 3
_PROBE_PAUSE_SECONDS = 0.05
_COMPLAINT_PAUSE_SECONDS = 1.0


def _one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise FencepostError(f"{name}={value!r}: expected one of {', '.join(choices)}")


class RealCluster:
    """One or three Kafka nodes, each broker and controller.

        async with Cluster(nodes=3) as cluster:
            consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, ...})
            await cluster.kill(2)

    `runner` is "jvm" or "docker". The `profile` "fast" notices a dead member after two seconds; "stock" is as
    Kafka ships. `port` is the first node's for clients, and the others' follow it; without it, free ports are
    drawn. `properties` are further properties of each node, and win over the profile's. `say` is called with
    what happens while it starts. Nothing is left on exit, whatever ended the block. What a killed process
    left behind is removed when the next cluster starts.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        runner: RunnerName = "jvm",
        profile: Profile = "fast",
        kafka: KafkaVersion = KAFKA_VERSION,
        port: int | None = None,
        start_seconds: float = START_SECONDS,
        name: str | None = None,
        properties: Mapping[str, bool | float | str] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if nodes not in NODE_COUNTS:
            raise FencepostError(f"a cluster of {nodes} nodes: expected 1 or 3")
        _one_of("runner", runner, get_args(RunnerName))
        _one_of("profile", profile, get_args(Profile))
        _one_of("kafka", kafka, get_args(KafkaVersion))
        self._count = nodes
        self._runner_name: RunnerName = runner
        self._profile: Profile = profile
        self._kafka: KafkaVersion = kafka
        self._port = port
        self._start_seconds = start_seconds
        self._name = name
        self._say = say
        self._properties = property_texts(properties or {})
        self._folder: StateFolder | None = None
        self._runner: Runner | None = None
        self._answers: dict[int, BrokerIdentity] = {}

    @classmethod
    def attached(cls, folder: StateFolder) -> RealCluster:
        """Return the cluster of a state file, whichever process started it."""
        state = folder.state
        cluster = cls(nodes=len(state.nodes), runner=state.runner, profile=state.profile, kafka=state.kafka)
        cluster._folder = folder
        cluster._runner = _runner(folder)
        return cluster

    @property
    def state(self) -> ClusterState:
        """The known state of the cluster.

        :raises RuntimeError: if it is not up.
        """
        return self._up()[0].state

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every node, as clients take it."""
        return self.state.bootstrap_servers

    @property
    def cluster_id(self) -> str:
        """Kafka's id of the cluster; no two have the same."""
        return self.state.cluster_id

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The ids of the nodes, from 1 on."""
        return tuple(node.node_id for node in self.state.nodes)

    @property
    def features(self) -> dict[str, int]:
        """Finalized features and their levels, as the first node reported when it came up."""
        return dict(next(iter(self._answers.values())).features) if self._answers else {}

    async def __aenter__(self) -> RealCluster:
        """Start, and wait until every node knows all others."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill and delete everything."""
        self.stop()

    async def start(self) -> None:
        """Start the nodes and wait for them. If that fails or is interrupted, nothing is left.

        :raises EnvironmentLacks: if the machine lacks something, or the nodes do not come up.
        """
        tidy_up()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._start()
                return
            except PortTaken:
                if self._port is not None or attempt == _ATTEMPTS:
                    raise

    async def _start(self) -> None:
        make = jvm_nodes if self._runner_name == "jvm" else docker_node_states
        state = ClusterState(
            runner=self._runner_name,
            profile=self._profile,
            kafka=self._kafka,
            cluster_id=new_id(),
            nodes=make(self._count, self._port),
            owner=myself(),
            properties=self._properties,
            project=f"fencepost-{secrets.token_hex(4)}" if self._runner_name == "docker" else "",
        )
        self._folder = create(self._name, state)
        self._runner = _runner(self._folder)
        atexit.register(self.stop)
        try:
            self._say(f"preparing Kafka {self._kafka}…")
            await self._runner.prepare()
            count = len(state.nodes)
            self._say(f"starting {count} node{'s' if count > 1 else ''}…")
            for node in state.nodes:
                await self._runner.start(node.node_id)
            await self._wait(self._folder.state.nodes, set(self.node_ids))
        except BaseException:
            with contextlib.suppress(EnvironmentLacks):  # the first error is the one that matters
                self.stop()
            raise

    def stop(self) -> None:
        """Kill every node and delete its data. Does nothing if the cluster is not up."""
        atexit.unregister(self.stop)
        runner, self._runner = self._runner, None
        self._answers.clear()
        if runner is not None:
            runner.remove()
        self._folder = None

    def leave_up(self) -> StateFolder:
        """Let the cluster outlive this process; the state file has everything that it takes to stop it."""
        folder, runner = self._up()
        folder.update(msgspec.structs.replace(folder.state, owner=None))
        atexit.unregister(self.stop)
        runner.leave_up()
        self._folder = self._runner = None
        return folder

    async def kill(self, node_id: int) -> None:
        """SIGKILL; returns once the process is gone. Its data stays."""
        await self._known(node_id).kill(node_id)

    async def pause(self, node_id: int) -> None:
        """Stop the process without ending it (SIGSTOP): connections stay open, and nothing responds."""
        await self._known(node_id).pause(node_id)

    async def resume(self, node_id: int) -> None:
        """Resume a paused process."""
        await self._known(node_id).resume(node_id)

    async def restart(self, node_id: int) -> None:
        """Kill the node if it runs, start it on its data and its ports, and wait until it serves again.

        :raises EnvironmentLacks: if it does not come up in time.
        """
        runner = self._known(node_id)
        await runner.kill(node_id)
        await runner.start(node_id)
        await self._wait([self._up()[0].node(node_id)], {node_id})

    async def conditions(self) -> dict[int, Condition]:
        """Return the condition of each node's process."""
        return await self._up()[1].conditions()

    def _up(self) -> tuple[StateFolder, Runner]:
        if self._folder is None or self._runner is None:
            raise RuntimeError("the cluster is not up: use `async with RealCluster()`")
        return self._folder, self._runner

    def _known(self, node_id: int) -> Runner:
        runner = self._up()[1]
        if node_id not in self.node_ids:
            raise FencepostError(f"node {node_id}: the cluster has {', '.join(map(str, self.node_ids))}")
        return runner

    async def _wait(self, nodes: Iterable[NodeState], needed: set[int]) -> None:
        """Wait until each of `nodes` serves and reports that all of `needed` are alive."""
        deadline = time.monotonic() + self._start_seconds
        for node in nodes:
            await self._wait_for(node, needed, deadline)

    async def _wait_for(self, node: NodeState, needed: set[int], deadline: float) -> None:
        folder, runner = self._up()
        trouble = "it does not listen"
        next_look = 0.0
        while True:
            try:
                answer = await identity_of(node.clients.host, node.clients.port)
                if answer.cluster_id != folder.state.cluster_id:
                    raise port_taken(node.clients.port)
                if needed <= answer.nodes.keys():
                    self._answers[node.node_id] = answer
                    self._say(f"node {node.node_id} serves at {node.clients.address}")
                    return
                trouble = f"it knows of nodes {sorted(answer.nodes)}"
            except OSError:
                pass
            except NotKafka as error:
                trouble = str(error)
            now = time.monotonic()
            if now >= next_look:
                await self._require_running(node)
                next_look = now + _COMPLAINT_PAUSE_SECONDS
            if now > deadline:
                raise EnvironmentLacks(
                    f"node {node.node_id} did not come up within {self._start_seconds:.0f} s: {trouble}; "
                    f"its log says: {runner.complaint(node.node_id)}"
                )
            await asyncio.sleep(_PROBE_PAUSE_SECONDS)

    async def _require_running(self, node: NodeState) -> None:
        _, runner = self._up()
        if (await runner.conditions())[node.node_id] is not Condition.STOPPED:
            return
        line = runner.complaint(node.node_id)
        if "BindException" in line or "Address already in use" in line:
            raise port_taken(node.clients.port)
        raise EnvironmentLacks(f"node {node.node_id} ended as soon as it was started: {line}")


def _runner(folder: StateFolder) -> Runner:
    return JvmRunner(folder) if folder.state.runner == "jvm" else DockerRunner(folder)


def tidy_up() -> int:
    """Remove the clusters of processes that died without doing so, and return their number."""
    count = 0
    for folder in left_behind():
        try:
            _runner(folder).remove()
        except EnvironmentLacks:
            continue  # docker is away; the next process may have it
        count += 1
    return count
