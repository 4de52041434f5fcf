"""Scenarios of single active consumers: nodes, streams, clients, and the faults that affect them.

Such a scenario is an ordinary file with `protocol = "sac"`. Each client has one consumer for a plain stream
and one for each partition of a super stream, all with the group's id as their consumer name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from fencepost.simulation.scenarios.scenario import (
    SECOND,
    ConnectionLoss,
    CoordinatorMove,
    Count,
    MemberCrash,
    MemberFreeze,
    Name,
    Operations,
    RollingRestart,
    Scale,
    ScenarioBase,
    Share,
    SlowCallback,
    _Fault,
    _Table,
)
from fencepost.simulation.scenarios.timing import MESSAGES
from fencepost.simulation.scenarios.values import Duration, Span


class SacGroup(_Table, frozen=True):
    """The clients at the start."""

    id: Name = "billing"
    """The consumer name that all clients share."""
    members: Count = 4
    start: Span = Span("uniform", 0, 5 * SECOND)
    """Delay of each client's start, from the beginning of the run."""


class SacStream(_Table, frozen=True):
    """One stream, or one super stream."""

    name: Name
    partitions: Annotated[int, Meta(ge=0, le=1_000)] = 0
    """Number of partitions of a super stream. 0 makes a plain stream."""
    records_per_second: Annotated[float, Meta(ge=0, le=1_000)] = 0.0
    """Messages per second in each partition. With 0 there is no data plane."""

    @property
    def partition_names(self) -> list[str]:
        """Streams of a super stream; for a plain stream, the stream itself."""
        return [f"{self.name}-{number}" for number in range(self.partitions)] or [self.name]


class SacCluster(_Table, frozen=True):
    """The nodes. One node leads the coordinator while it reaches a majority."""

    nodes: Annotated[int, Meta(ge=1, le=99)] = 3
    replication: Span = Span("uniform", 1_000, 5_000)
    """Time from a command's arrival until its response."""
    failover: Span = Span("uniform", 1 * SECOND, 4 * SECOND)
    """Time from the loss of a leader until another node begins to lead."""
    load: Span = Span("uniform", 10_000, 200_000)
    """Time that a new leader needs to load."""
    detection: Span = Span("uniform", 1 * SECOND, 8 * SECOND)
    """Time from a split until each side counts the other as lost. Messages sent in between are lost."""
    tick: Duration = Duration(30 * SECOND)
    """Interval at which the leader looks for nodes that left."""
    disconnected_timeout: Duration = Duration(60 * SECOND)
    request_timeout: Duration = Duration(60 * SECOND)
    """A client that owes a response for this time is disconnected at the next check. If messages and
    callbacks may take longer, nothing judges whether groups settle."""
    chunk: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Messages of a chunk. Nodes send whole chunks, from the one that has the requested offset."""
    command_timeout: Duration = Duration(30 * SECOND)
    """A connection that finds no coordinator for this time ends."""


class SacNetwork(_Table, frozen=True):
    """Links between clients and nodes, and between nodes."""

    latency: Span = Span("lognormal", 1_000, 15_000)
    """One-way latency, drawn for each message."""
    detection: Span = Span("uniform", 1_000, 200_000)
    """Time from the loss of a connection until the other side detects it."""


class SacApplication(_Table, frozen=True):
    """The behaviour of clients."""

    processing: Span = Span("constant", 5_000)
    """Processing time of one message."""
    callback: Span = Span("uniform", 0, 50_000)
    """Time that a client needs to choose an offset or to release a partition."""
    restart: Span = Span("uniform", 2 * SECOND, 10 * SECOND)
    """Downtime of a process that is restarted."""


class NodeCrash(_Fault, frozen=True, tag="node-crash"):
    """A node dies with all its connections and returns. A majority must stay, so the cluster needs three
    nodes."""

    least_nodes: ClassVar[int] = 3
    lasts: Span = Span("uniform", 2 * SECOND, 90 * SECOND)


class NodeLeave(_Fault, frozen=True, tag="node-leave"):
    """A node dies and is removed from the cluster. A majority must stay, so the cluster needs three nodes."""

    least_nodes: ClassVar[int] = 3


class NodeSplit(_Fault, frozen=True, tag="node-split"):
    """Some nodes cannot reach the others. Clients reach all nodes."""

    least_nodes: ClassVar[int] = 2
    lasts: Span = Span("uniform", 2 * SECOND, 90 * SECOND)
    share: Share = 0.3
    """Share of the nodes: at least one, and not all."""


class ClientsRestart(RollingRestart, frozen=True, tag="rolling-restart"):
    """Restart all clients, batch by batch, evenly over a time."""

    unused = ("overlap", "protocol", "partition_assignment_strategy")


SacOperation: TypeAlias = Literal["list", "evaluate"]


class OperateGroups(Operations, frozen=True, kw_only=True, tag="operate"):
    """Operators list the groups, or let the coordinator choose again in one, as with rabbitmq-streams."""

    request: SacOperation
    """The request. `evaluate` removes consumers whose connection has ended. Operators leave groups alone that
    have lost consumers whose connection may be alive."""


SacFault: TypeAlias = (
    MemberCrash
    | MemberFreeze
    | SlowCallback
    | ConnectionLoss
    | CoordinatorMove
    | NodeCrash
    | NodeLeave
    | NodeSplit
)
SacStep: TypeAlias = ClientsRestart | Scale | OperateGroups


class SacScenario(ScenarioBase, frozen=True, kw_only=True):
    """A whole scenario of single active consumers."""

    subject: ClassVar[str] = "single active consumers"
    runs_with: ClassVar[str] = "`simulate` and `campaign`"
    partitioned: ClassVar[str] = "streams"
    settles_unless_slow: ClassVar[bool] = False
    positive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("duration",),
        ("cluster", "tick"),
        ("cluster", "disconnected_timeout"),
        ("cluster", "request_timeout"),
        ("cluster", "command_timeout"),
    )
    protocols: ClassVar[frozenset[str]] = frozenset()
    """No settings belong to one protocol only."""
    global_topic: ClassVar[None] = None
    max_poll_interval_us: ClassVar[int] = 0
    """Clients do not poll."""

    protocol: Literal["sac"]
    group: SacGroup = SacGroup()
    streams: Annotated[tuple[SacStream, ...], Meta(min_length=1)]
    cluster: SacCluster = SacCluster()
    network: SacNetwork = SacNetwork()
    application: SacApplication = SacApplication()
    steps: tuple[SacStep, ...] = ()
    faults: tuple[SacFault, ...] = ()

    @property
    def partitions(self) -> int:
        """Number of groups: plain streams, and partitions of super streams."""
        return sum(max(stream.partitions, 1) for stream in self.streams)

    @property
    def cluster_size(self) -> int:
        """Number of nodes."""
        return self.cluster.nodes

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Names of the streams and super streams."""
        return tuple(stream.name for stream in self.streams)

    @property
    def settling_us(self) -> int:
        """Time that groups may need to settle once nothing disturbs them, in microseconds.

        A frozen client is cut off within two request timeouts, a lost connection is forgotten, a leader is
        found and ticks. Then all consumers report, step down and are activated.
        """
        cluster = self.cluster
        waits = 2 * cluster.request_timeout.us + cluster.disconnected_timeout.us + cluster.tick.us
        waits += cluster.failover.longest_us + self.application.restart.longest_us
        network = self.network
        slow = self._messages_us + cluster.load.longest_us + network.detection.longest_us
        return waits + max(slow, 30 * SECOND)

    @property
    def keeps_up(self) -> bool:
        """True if clients step down before they are cut off. Otherwise groups may never settle."""
        slowest = self.application.processing.longest_us + self.application.callback.longest_us
        return slowest + self._messages_us < self.cluster.request_timeout.us

    @property
    def _messages_us(self) -> int:
        """Time for the messages of a client that connects, subscribes, and is told to step down."""
        return MESSAGES * self.network.latency.longest_us
