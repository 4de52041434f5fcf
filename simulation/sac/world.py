"""A world of single active consumers: nodes and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fencepost.coordinator.protocol.sac import SIMPLE
from fencepost.coordinator.protocol.sac_records import SacGroupKey
from fencepost.member.sac.states import SacMemberState
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.rng import Samples
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.kernel.world import PreparedRun, RunCounts, World, host_names
from fencepost.simulation.sac.clients import ClientConnection, SacClientHost, subscription_of
from fencepost.simulation.sac.connection import ServerConnection
from fencepost.simulation.sac.consumers import SacConsumers
from fencepost.simulation.sac.coordination import SacCoordination
from fencepost.simulation.sac.exclusive import Exclusive
from fencepost.simulation.sac.figures import Figures
from fencepost.simulation.sac.nemesis import SacNemesis
from fencepost.simulation.sac.nodes import SacNode, SacNodes
from fencepost.simulation.sac.observers import SacObserver
from fencepost.simulation.sac.trace_writer import SacTraceWriter
from fencepost.simulation.scenarios.sac import SacScenario
from fencepost.simulation.trace.rows import TraceRows


class SacWorld(World):
    """Everything of one run."""

    def __init__(
        self,
        scenario: SacScenario,
        seed: int,
        loop: VirtualLoop,
        *,
        members: int,
        observers: Iterable[SacObserver],
        sequence: Callable[[], int],
    ) -> None:
        super().__init__(scenario.application, loop, seed, sequence)
        self.scenario = scenario
        draws = self.draws
        self.attach(observers, SacObserver)
        self.cluster = SacNodes(loop, draws, scenario, self.tell)
        self.detection = draws.samples("detection", scenario.network.detection.quantiles)
        self.supervisor = Supervisor(
            loop,
            draws,
            start=scenario.group.start.quantiles,
            restart=scenario.application.restart.quantiles,
        )
        self._choices = draws.random("nodes")
        self._latencies: dict[str, Samples] = {}
        self._connections = 0
        self.subscriptions = [
            subscription_of(
                scenario.group.id,
                name,
                index if stream.partitions else SIMPLE,
                stream.name if stream.partitions else None,
            )
            for stream in scenario.streams
            for index, name in enumerate(stream.partition_names)
        ]
        self.clients = {name: SacClientHost(name, self) for name in host_names("client", members)}

    # -- what happens ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let a node lead, and start the clients."""
        self.cluster.elect()
        self.supervisor.start_soon(list(self.clients.values())[: self.scenario.group.members])

    def calm(self) -> None:
        """End all disturbance: clients that should run, run."""
        for node in self.cluster.nodes.values():
            self.cluster.restart(node)
        for client in self.clients.values():
            client.thaw_process()
            if client.wanted:
                client.start()
        self.faults_over = True
        self.tell("on_faults_end")

    def vanish(self) -> None:
        """End all processes without notifying any peer."""
        for client in self.clients.values():
            client.vanish()

    # -- links ----------------------------------------------------------------------------------------------

    def latency(self, client: str) -> int:
        """Return the one-way latency of a message of that client, in microseconds."""
        samples = self._latencies.get(client)
        if samples is None:
            samples = self._latencies[client] = self.draws.samples(
                f"link/{client}", self.scenario.network.latency.quantiles
            )
        return samples.draw()

    def choose_node(self) -> SacNode | None:
        """Return a node for a client to connect to: one that runs, if there is one."""
        up = [node for node in self.cluster.nodes.values() if node.up]
        return self._choices.choice(up) if up else None

    def open_connection(self, node: SacNode, client: ClientConnection) -> ServerConnection:
        """Connect a client to a node, and return the server's end."""
        self._connections += 1
        made = ServerConnection(f"k{self._connections}", node, client)
        node.connections[made.id] = made
        self.tell("on_connection", made.id, client.owner, True)
        return made

    # -- the view of observers ------------------------------------------------------------------------------

    @property
    def group_keys(self) -> list[SacGroupKey]:
        """Return the groups of all streams, in their order."""
        return [SacGroupKey("/", each.stream, each.name) for each in self.subscriptions]

    @property
    def settled(self) -> bool:
        """True if each group that has consumers has an active one, which also considers itself active."""
        host = self.cluster.host
        if host is None:
            return False
        active = {
            subscriber.subscription.stream
            for client in self.clients.values()
            for subscriber in client.subscribers
            if subscriber.consumer.state is SacMemberState.ACTIVE
        }
        groups = host.coordinator.state.groups
        return all(key.stream in active for key in self.group_keys if key in groups)


def prepare(
    scenario: SacScenario,
    seed: int,
    plan: FaultPlan,
    loop: VirtualLoop,
    recorder: TraceRows,
    *,
    judges: Iterable[SacObserver] | None = None,
) -> PreparedRun:
    """Return the run of a scenario and a seed. `judges` observe in addition to the built-in judges."""
    figures = Figures()
    exclusive = Exclusive(figures)
    world = SacWorld(
        scenario,
        seed,
        loop,
        members=plan.members,
        observers=[
            SacTraceWriter(recorder),
            exclusive,
            SacCoordination(figures, exclusive),
            SacConsumers(),
            *(judges or ()),
        ],
        sequence=lambda: recorder.seq,
    )

    def counts() -> RunCounts:
        return RunCounts(figures.counts["commands"], figures.counts["activations"], figures.document())

    return PreparedRun(world, SacNemesis(world, plan), counts)
