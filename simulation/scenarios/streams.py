"""Scenarios of Streams applications: clients with threads, topics, and the faults that affect them.

Such a scenario is an ordinary file with `protocol = "streams"`. The clients form one streams group
(KIP-1071).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.scenarios.scenario import (
    SECOND,
    AppendFailure,
    ConnectionLoss,
    CoordinatorCrash,
    CoordinatorMove,
    Count,
    LostRequest,
    LostResponse,
    MemberCrash,
    MemberFreeze,
    Name,
    Partition,
    ScenarioBase,
    ScenarioCluster,
    ScenarioNetwork,
    ScenarioTopic,
    _Fault,
    _Table,
)
from fencepost.simulation.scenarios.timing import SLACK_US, slowness_us
from fencepost.simulation.scenarios.values import Duration, Span


class ScenarioStreamsGroup(_Table, frozen=True):
    """The clients at the start."""

    id: Name = "billing"
    members: Count = 3
    """Number of clients."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 3
    """Number of threads of each client."""
    protocol: Literal["streams", "classic"] = "streams"
    """The members' protocol: KIP-1071, or the classic protocol with the metadata of Kafka Streams."""
    session_timeout: Duration = Duration(45 * SECOND)
    """The session.timeout.ms of classic members."""
    heartbeat_interval: Duration = Duration(3 * SECOND)
    """The heartbeat.interval.ms of classic members."""
    rebalance_timeout: Duration = Duration(60 * SECOND)
    """Time that threads have to poll again and to release tasks."""
    start: Span = Span("uniform", 0, 5 * SECOND)
    """Delay of each client's start, from the beginning of the run."""


class StreamsApplication(_Table, frozen=True):
    """The behaviour of threads."""

    poll: Duration = Duration(1 * SECOND)
    """Time that records gather before a poll returns them."""
    poll_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    """Milliseconds after which a poll without records ends (Kafka's `poll.ms`). Only then a thread takes up
    new tasks."""
    max_poll_records: Count = 500
    processing: Span = Span("constant", 1_000)
    """Processing time of one record."""
    commit_interval: Duration = Duration(5 * SECOND)
    callback: Span = Span("uniform", 0, 50_000)
    """Duration of a rebalance callback without its commit."""
    restart: Span = Span("uniform", 2 * SECOND, 10 * SECOND)
    """Downtime of a client that died or was shut down alone."""
    timer_delay: Span = Span("constant", 0)
    """Delay of a process's timers, caused by the system and other processes."""
    changelogs: bool = False
    """True if stores have changelogs, which the brokers create for a streams group (KIP-1071)."""
    endpoints: bool = False
    """True if clients serve interactive queries. A streams group then sends every client the map of endpoints
    (KIP-1071)."""


class StreamsCluster(ScenarioCluster, frozen=True):
    """The brokers. One of them coordinates the group."""

    unused = ("regex",)


Response: TypeAlias = Literal[
    "any", "REPLACE_THREAD", "SHUTDOWN_CLIENT", "SHUTDOWN_APPLICATION", "raises", "nonsense"
]
Place: TypeAlias = Literal["any", "processing", "poll", "callback", "global"]


class ThreadException(_Fault, frozen=True, tag="thread-exception"):
    """An exception leaves a thread, and the handler decides."""

    response: Response = "any"
    """The response of the handler. `raises` raises instead, `nonsense` returns no response of Kafka's. `any`
    draws all of them except SHUTDOWN_APPLICATION, and REPLACE_THREAD half of the time."""
    where: Place = "any"
    """The place where the exception is raised, the next time that a thread of the client gets there. `global`
    is the global thread, `any` is everywhere else."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of the client's threads in which it is raised at the same time."""


class ThreadChange(_Fault, frozen=True, tag="thread-change"):
    """A client adds a thread, or removes one (KIP-663)."""


class ClientClose(_Fault, frozen=True, tag="client-close"):
    """A client is closed in an orderly way and started again."""


class ClientCrash(MemberCrash, frozen=True, tag="member-crash"):
    """A client's process dies without a leave and is started again after `application.restart`."""

    unused = ("lasts", "returns")


class ClientCutOff(Partition, frozen=True, tag="partition"):
    """Some clients cannot reach the brokers. Every message between them is lost."""

    unused = ("brokers",)


class LostAnswer(LostResponse, frozen=True, tag="lost-response"):
    """The next response to a client is lost, and its connection with it."""

    unused = ("epoch_moved",)


class OtherApplication(_Fault, frozen=True, tag="other-application"):
    """Another application joins a group of its own for a moment, and makes mistakes.

    The seed draws its topology, which may be impossible, or wait for topics. The coordinator must refuse all
    mistakes. Two topics of the scenario must have different numbers of partitions.
    """


StreamsFault: TypeAlias = (
    ThreadException
    | ThreadChange
    | ClientClose
    | ClientCrash
    | MemberFreeze
    | ConnectionLoss
    | LostRequest
    | LostAnswer
    | ClientCutOff
    | CoordinatorMove
    | CoordinatorCrash
    | AppendFailure
    | OtherApplication
)


class StreamsScenario(ScenarioBase, frozen=True, kw_only=True):
    """A whole scenario of a Streams application."""

    subject: ClassVar[str] = "Streams applications"
    positive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("duration",),
        ("group", "rebalance_timeout"),
        ("group", "session_timeout"),
        ("group", "heartbeat_interval"),
        ("network", "request_timeout"),
        ("application", "poll"),
        ("application", "commit_interval"),
    )
    patterns: ClassVar[tuple[str, ...]] = ()

    protocol: Literal["streams"]
    group: ScenarioStreamsGroup = ScenarioStreamsGroup()
    topics: Annotated[tuple[ScenarioTopic, ...], Meta(min_length=1)]
    global_topic: ScenarioTopic | None = None
    """A topic that each client's global thread reads. Without it clients have no global thread."""
    cluster: StreamsCluster = StreamsCluster()
    network: ScenarioNetwork = ScenarioNetwork()
    application: StreamsApplication = StreamsApplication()
    config: dict[str, bool | int | str] = msgspec.field(default_factory=dict)
    """The coordinator's configuration under Kafka's names."""
    faults: tuple[StreamsFault, ...] = ()
    steps: ClassVar[tuple[()]] = ()
    """No steps: the application is deployed once."""

    @property
    def unequal_topics(self) -> tuple[ScenarioTopic, ScenarioTopic] | None:
        """Two topics with different numbers of partitions; None if all have the same."""
        first = self.topics[0]
        other = next((each for each in self.topics if each.partitions != first.partitions), None)
        return None if other is None else (first, other)

    @property
    def lacks_for_others(self) -> str:
        """The reason why no other application can run next to this one; empty if one can."""
        if self.group.protocol == "classic":
            return 'other applications speak KIP-1071: expected group.protocol = "streams"'
        if self.unequal_topics is None:
            return "expected two topics with different numbers of partitions, which other applications read"
        return ""

    @property
    def partitions(self) -> int:
        """Number of partitions of all topics."""
        return sum(topic.partitions for topic in self.topics)

    @property
    def protocols(self) -> frozenset[str]:
        """Protocols that members speak."""
        return frozenset((self.group.protocol,))

    @property
    def cluster_size(self) -> int:
        """Number of brokers."""
        return self.cluster.brokers

    @property
    def max_poll_interval_us(self) -> int:
        """Maximum time of a thread between two polls, in microseconds."""
        return self.group.rebalance_timeout.us

    @property
    def all_topics(self) -> tuple[ScenarioTopic, ...]:
        """Topics that exist from the beginning, with the global one."""
        return self.topics if self.global_topic is None else (*self.topics, self.global_topic)

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Names of all topics."""
        return tuple(topic.name for topic in self.all_topics)

    def broker_timeouts_ms(self, config: GroupCoordinatorConfig) -> tuple[int, int]:
        """Return the session timeout and heartbeat interval that the coordinator gives to members, in ms."""
        return config.group_streams_session_timeout_ms, config.group_streams_heartbeat_interval_ms

    @property
    def bound_us(self) -> int:
        """Maximum time until a request to shut the application down reaches every client, in microseconds."""
        config = GroupCoordinatorConfig.from_properties(self.config)
        session_ms, interval_ms = self.broker_timeouts_ms(config)
        if self.group.protocol == "classic":
            session_ms, interval_ms = self.group.session_timeout.ms, self.group.heartbeat_interval.ms
        return (session_ms + self.group.rebalance_timeout.ms + 3 * interval_ms) * 1_000 + slowness_us(self)

    @property
    def settling_us(self) -> int:
        """Time that the group may need to settle once nothing disturbs it, in microseconds."""
        before = self.network.request_timeout.us + self.application.restart.longest_us
        return self.bound_us + before + SLACK_US
