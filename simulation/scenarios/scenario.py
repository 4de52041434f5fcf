"""Scenarios: the group, its topics, the cluster, the network, the application, and the events of a run.

A scenario is a value: the same scenario and the same seed give the same run. Steps are actions of people
(deploys, scaling, topics). Faults happen at a given moment, or as often as the seed draws. All have ended
when the quiet phase at the end of a run begins.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.scenarios.timing import SLACK_US, slowness_us
from fencepost.simulation.scenarios.values import Duration, Moment, Span

Count = Annotated[int, Meta(ge=1, le=100_000)]
Share = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=249)]

GroupProtocol: TypeAlias = Literal["consumer", "classic"]
AssignmentStrategy: TypeAlias = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]

SECOND = 1_000_000


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file; an undeclared key is refused."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Inherited keys that have no effect in this table; values other than the default are refused."""


class ScenarioGroup(_Table, frozen=True):
    """The group and its members at the start."""

    id: Name = "orders-service"
    members: Count = 6
    static: bool = False
    """True if members have instance ids, which they keep over restarts."""
    topics: tuple[Name, ...] | None = None
    """The topics that members subscribe to. Default without `pattern`: all topics of the file."""
    pattern: Annotated[str, Meta(min_length=1)] | None = None
    """A regular expression (RE2) to subscribe to, in addition to `topics`."""
    protocol: GroupProtocol = "consumer"
    """The clients' group.protocol: `consumer` is KIP-848; with `classic` a member assigns."""
    assignor: Name | None = None
    partition_assignment_strategy: AssignmentStrategy = "range"
    """The assignor of classic members. All are eager except `cooperative-sticky`."""
    session_timeout: Duration = Duration(45 * SECOND)
    """The session.timeout.ms of classic members. For KIP-848 members, `[config]` has it."""
    heartbeat_interval: Duration = Duration(3 * SECOND)
    """The heartbeat.interval.ms of classic members. For KIP-848 members, `[config]` has it."""
    metadata_max_age: Duration = Duration(300 * SECOND)
    """Maximum time until classic members see changed topics."""
    rebalance_timeout: Duration = Duration(60 * SECOND)
    """The clients' max.poll.interval.ms, which is also the rebalance timeout."""
    start: Span = Span("uniform", 0, 5 * SECOND)
    """Delay of each member's start, from the beginning of the run."""


class ScenarioTopic(_Table, frozen=True):
    """One topic that exists from the start."""

    name: Name
    partitions: Annotated[int, Meta(ge=1, le=200_000)] = 12
    records_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Records per second over all partitions. With 0 there is no data plane."""


class ScenarioCluster(_Table, frozen=True):
    """The brokers. One of them coordinates the group."""

    brokers: Annotated[int, Meta(ge=1, le=100)] = 3
    replication: Span = Span("constant", 2_000)
    """Time from an append to the high watermark. A response whose request wrote records waits for it."""
    failover: Span = Span("uniform", 1 * SECOND, 4 * SECOND)
    """Time from the loss of a coordinator until another broker begins to load the group."""
    load: Span = Span("uniform", 50_000, 800_000)
    """Time that a new coordinator needs to load."""
    metadata: Span = Span("uniform", 5_000, 60_000)
    """Time from a change of topics until the coordinator sees it."""
    regex: Span = Span("uniform", 2_000, 40_000)
    """Time that matching regular expressions takes."""


class ScenarioNetwork(_Table, frozen=True):
    """Links between members and brokers."""

    latency: Span = Span("lognormal", 1_000, 15_000)
    """One-way latency, drawn for each message."""
    detection: Span = Span("uniform", 1_000, 200_000)
    """Time from the loss of a connection until the member's side detects it."""
    request_timeout: Duration = Duration(30 * SECOND)


class ScenarioApplication(_Table, frozen=True):
    """The behaviour of the members' application."""

    poll: Duration = Duration(1 * SECOND)
    """Time that records gather before a poll returns them."""
    max_poll_records: Count = 500
    processing: Span = Span("constant", 1_000)
    """Processing time of one record."""
    batch: Span | None = None
    """Processing time of all records of one poll together, instead of `processing`."""
    commit: Literal["auto", "sync", "async", "transaction"] = "auto"
    """The way in which offsets are committed. `auto`: by the consumer. The others commit after each batch and
    before a revocation: `sync` waits for the response, `async` does not after a batch, `transaction` uses a
    producer."""
    auto_commit_interval: Duration = Duration(5 * SECOND)
    callback: Span = Span("uniform", 0, 50_000)
    """Duration of a rebalance callback."""
    restart: Span = Span("uniform", 2 * SECOND, 10 * SECOND)
    """Downtime of a process that is restarted."""
    clock_drift_ppm: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Maximum drift of the hosts' clocks, in parts per million."""
    timer_delay: Span = Span("constant", 0)
    """Delay of a process's timers, caused by the system and other processes."""


class ScenarioTransactions(_Table, frozen=True):
    """Exactly-once commits of offsets, if `application.commit` is `transaction`."""

    version: Literal[1, 2] = 2
    """The clients' transaction.version. With 2 each transaction has its own epoch (KIP-890)."""
    timeout: Duration = Duration(10 * SECOND)
    """The producers' transaction.timeout.ms. The coordinator aborts transactions that are open longer."""
    interval: Span = Span("uniform", 1 * SECOND, 5 * SECOND)
    """Time that a transaction stays open after its first batch. A revocation ends it earlier."""
    aborts: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Probability that the application aborts a transaction and processes its records again."""
    plain: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Probability that a batch is committed outside the open transaction, which is a client bug."""


# -- what people do ---------------------------------------------------------------------------------------


class _Step(_Table, frozen=True, tag_field="kind"):
    """Something that people do at a moment of the run."""

    at: Moment


class RollingRestart(_Step, frozen=True, tag="rolling-restart"):
    """Restart all members, batch by batch, evenly over a time."""

    over: Moment = Moment(share=0.3)
    batch: Share | None = None
    """Share of the members that restart at the same time, at least one. Default: one by one."""
    graceful: bool = True
    """True if members close their consumer before they stop."""
    overlap: Duration | None = None
    """Start a new member in the place of each one, and stop the old one after this time; it does not come
    back. Default: each member stops first, and starts again after the restart time."""
    protocol: GroupProtocol | None = None
    """The members' group.protocol after the step. Default: unchanged."""
    partition_assignment_strategy: tuple[AssignmentStrategy, ...] = ()
    """The assignors of classic members after the step, in order of preference: all eager or all cooperative.
    Default: unchanged."""


class Scale(_Step, frozen=True, tag="scale"):
    """Start or stop members, evenly over a time, until the group has the given number."""

    members: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    factor: Annotated[float, Meta(gt=0, le=100)] | None = None
    """Instead of `members`: a multiple of the members at the start."""
    over: Moment = Moment(10 * SECOND)


class ChangeSubscription(_Step, frozen=True, tag="subscribe"):
    """Members change their subscription, evenly over a time."""

    topics: tuple[Name, ...] = ()
    pattern: Annotated[str, Meta(min_length=1)] | None = None
    share: Share = 1.0
    """Share of the members."""
    over: Moment = Moment(10 * SECOND)


class CreateTopic(_Step, frozen=True, tag="create-topic"):
    """A topic is created."""

    name: Name
    partitions: Annotated[int, Meta(ge=1, le=200_000)] = 12
    records_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


MOST_GROWN = 200_000
"""Maximum number of partitions that a topic may grow to."""


class GrowTopic(_Step, frozen=True, tag="grow-topic"):
    """A topic gets more partitions."""

    name: Name
    partitions: Annotated[int, Meta(ge=2, le=MOST_GROWN)]


class DeleteTopic(_Step, frozen=True, tag="delete-topic"):
    """A topic is deleted with its records."""

    name: Name


Operation: TypeAlias = Literal[
    "list",
    "describe",
    "offsets",
    "delete-offsets",
    "reset-offsets",
    "remove-members",
    "delete-group",
    "foreign-member",
]


class Operations(_Step, frozen=True):
    """Requests of operators, evenly over a time."""

    times: Count = 1
    """Number of requests."""
    over: Moment = Moment(10 * SECOND)


class Operate(Operations, frozen=True, kw_only=True, tag="operate"):
    """Operators inspect or change the group, as with Kafka's command line tools."""

    request: Operation
    """The request. `reset-offsets` sets offsets to 0, which only a group without members accepts. With
    `foreign-member` a client joins that makes every mistake a member can make."""
    topics: tuple[Name, ...] = ()
    """Topics whose offsets are deleted or reset. Default: all topics."""
    share: Share = 0.5
    """Share of the members to remove, at least one."""


Step: TypeAlias = (
    RollingRestart | Scale | ChangeSubscription | CreateTopic | GrowTopic | DeleteTopic | Operate
)


# -- faults -----------------------------------------------------------------------------------------------


class _Fault(_Table, frozen=True, tag_field="kind"):
    """Something that goes wrong: once at a moment, or again and again at random."""

    at: Moment | None = None
    every: Duration | None = None
    """Mean time between two faults. The seed draws the times."""
    start: Moment = msgspec.field(default=Moment(share=0.0), name="from")
    until: Moment = Moment(share=1.0)
    likely: Share = 1.0
    """Probability that a run has this fault at all."""


class MemberCrash(_Fault, frozen=True, tag="member-crash"):
    """A member's process dies without a leave. It may start again."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)
    returns: Annotated[float, Meta(ge=0, le=1)] = 1.0


class MemberFreeze(_Fault, frozen=True, tag="member-freeze"):
    """A member's process is frozen, as in a long garbage collection."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)


class SlowCallback(_Fault, frozen=True, tag="slow-callback"):
    """A member's next rebalance callback is slow."""

    lasts: Span = Span("uniform", 1 * SECOND, 30 * SECOND)


class CallbackError(_Fault, frozen=True, tag="callback-error"):
    """A member's next rebalance callback raises."""


class PollTimeout(_Fault, frozen=True, tag="poll-timeout"):
    """A member's application processes one batch longer than its poll interval allows."""

    lasts: Span = Span("uniform", 1 * SECOND, 30 * SECOND)


class ProducerTakeover(_Fault, frozen=True, tag="producer-takeover"):
    """Another process starts with a member's transactional id, which fences the member's producer."""


class CoordinatorCrash(_Fault, frozen=True, tag="coordinator-crash"):
    """The coordinator's host dies. Another broker takes over, unless the host is back first."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class CoordinatorMove(_Fault, frozen=True, tag="coordinator-move"):
    """The group moves to another host in an orderly way."""


class CoordinatorUnavailable(_Fault, frozen=True, tag="coordinator-unavailable"):
    """The group's partition has no leader, so no broker knows the coordinator."""

    lasts: Span = Span("uniform", 500_000, 20 * SECOND)


class AppendFailure(_Fault, frozen=True, tag="append-failure"):
    """The coordinator cannot write its log."""

    lasts: Span = Span("uniform", 100_000, 10 * SECOND)


class BrokerCrash(_Fault, frozen=True, tag="broker-crash"):
    """Any broker's host dies, the coordinator's or another one."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class BrokerPause(_Fault, frozen=True, tag="broker-pause"):
    """Any broker's process is frozen. Its connections stay open, and it sends no response."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class Partition(_Fault, frozen=True, tag="partition"):
    """Some members cannot reach some brokers. Every message between them is lost."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)
    share: Share = 0.3
    """Share of the members."""
    brokers: Share = 1.0
    """Share of the brokers."""


class SlowLink(_Fault, frozen=True, tag="slow-link"):
    """Messages of some members are slow."""

    lasts: Span = Span("uniform", 5 * SECOND, 60 * SECOND)
    share: Share = 0.3
    latency: Span = Span("uniform", 50_000, 2 * SECOND)
    """Added latency, drawn for each message."""


class Loss(_Fault, frozen=True, tag="loss"):
    """Messages are lost at random for a time."""

    lasts: Span = Span("uniform", 5 * SECOND, 60 * SECOND)
    share: Share = 0.5
    probability: Share = 0.1


class ConnectionLoss(_Fault, frozen=True, tag="connection-loss"):
    """A member's connections break."""


class LostRequest(_Fault, frozen=True, tag="lost-request"):
    """A member's next request is lost, and its connection with it."""


class LostResponse(_Fault, frozen=True, tag="lost-response"):
    """The next response to a member is lost, and its connection with it."""

    epoch_moved: bool = True
    """True to wait for a response with a new epoch, generation or assignment."""


class RequestError(_Fault, frozen=True, tag="request-error"):
    """A broker responds to one request with an error that a client is to retry."""

    errors: tuple[str, ...] = (
        "OffsetCommit COORDINATOR_LOAD_IN_PROGRESS",
        "OffsetCommit NOT_COORDINATOR",
        "FindCoordinator COORDINATOR_NOT_AVAILABLE",
        "Heartbeat NOT_COORDINATOR",
        "ConsumerGroupHeartbeat NOT_COORDINATOR",
        "JoinGroup COORDINATOR_LOAD_IN_PROGRESS",
        "Fetch NOT_LEADER_OR_FOLLOWER",
        "Produce NOT_LEADER_OR_FOLLOWER",
        "Metadata LEADER_NOT_AVAILABLE",
    )
    """The APIs and errors of which one is drawn, by Kafka's names."""


class HttpFault(_Fault, frozen=True, tag="http-fault"):
    """The next request to an HTTP stub of a world is lost or comes twice, or its response is lost or late."""

    lasts: Span = Span("uniform", 1 * SECOND, 30 * SECOND)
    """The delay of a late response."""
    kinds: tuple[Literal["lose-request", "lose-response", "delay", "repeat"], ...] = (
        "lose-request",
        "lose-response",
        "delay",
        "repeat",
    )
    """Kinds of faults, of which one is drawn."""


Fault: TypeAlias = (
    MemberCrash
    | MemberFreeze
    | SlowCallback
    | CallbackError
    | PollTimeout
    | ProducerTakeover
    | CoordinatorCrash
    | CoordinatorMove
    | CoordinatorUnavailable
    | AppendFailure
    | BrokerCrash
    | BrokerPause
    | Partition
    | SlowLink
    | Loss
    | ConnectionLoss
    | LostRequest
    | LostResponse
)


class ScenarioBase(_Table, frozen=True, kw_only=True):
    """The base of scenarios of all kinds."""

    subject: ClassVar[str]
    """The subject of scenarios of this kind."""
    runs_with: ClassVar[str] = "`simulate`, `campaign` and `chaos`"
    """The commands that run them."""
    members_are: ClassVar[str] = "clients"
    """The programs that the group's hosts run, for people."""
    partitioned: ClassVar[str] = "topics"
    """The key of the tables that have partitions."""
    settles_unless_slow: ClassVar[bool] = True
    """True if only times of the scenario can keep a correct run from settling."""
    positive: ClassVar[tuple[tuple[str, ...], ...]]
    """Durations that can't be zero."""

    name: Name = "scenario"
    summary: str = ""
    duration: Duration
    """The virtual time of a run. The run is longer if the quiet phase needs it."""
    quiet: Duration | None = None
    """The phase without faults at the end. Default: the time that a group needs to settle. If it is shorter,
    nothing judges whether the group has settled."""
    swarm: bool = False
    """True if each run leaves out about half of the faults and steps, drawn by the seed."""

    @property
    def settling_us(self) -> int:
        """Time that a group may need to settle once nothing disturbs it, in microseconds.

        Each kind of scenario computes it; the base needs no time.
        """
        return 0

    @property
    def quiet_us(self) -> int:
        """Length of the quiet phase, in microseconds."""
        return self.settling_us if self.quiet is None else self.quiet.us

    @property
    def record_rates(self) -> dict[str, float]:
        """Rates that a run can do without, by their keys."""
        return {}


class Scenario(ScenarioBase, frozen=True, kw_only=True):
    """A whole scenario. `load` reads one from a file and checks what types can't say."""

    protocol: ClassVar[Literal["consumer"]] = "consumer"
    subject: ClassVar[str] = "consumer groups"
    members_are: ClassVar[str] = "members"
    positive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("duration",),
        ("group", "session_timeout"),
        ("group", "heartbeat_interval"),
        ("group", "metadata_max_age"),
        ("group", "rebalance_timeout"),
        ("network", "request_timeout"),
        ("application", "poll"),
        ("application", "auto_commit_interval"),
        ("transactions", "timeout"),
    )
    global_topic: ClassVar[None] = None

    group: ScenarioGroup = ScenarioGroup()
    topics: Annotated[tuple[ScenarioTopic, ...], Meta(min_length=1)]
    cluster: ScenarioCluster = ScenarioCluster()
    network: ScenarioNetwork = ScenarioNetwork()
    application: ScenarioApplication = ScenarioApplication()
    transactions: ScenarioTransactions = ScenarioTransactions()
    config: dict[str, bool | int | str] = {}
    """The coordinator's configuration under Kafka's names."""
    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def partitions(self) -> int:
        """Number of partitions of all topics at the start."""
        return sum(topic.partitions for topic in self.topics)

    @property
    def protocols(self) -> frozenset[GroupProtocol]:
        """Protocols that members speak at some time."""
        later = (step.protocol for step in self.steps if isinstance(step, RollingRestart))
        return frozenset((self.group.protocol, *(protocol for protocol in later if protocol is not None)))

    @property
    def cluster_size(self) -> int:
        """The number of brokers."""
        return self.cluster.brokers

    @property
    def max_poll_interval_us(self) -> int:
        """Maximum time of a member between two polls, in microseconds."""
        return self.group.rebalance_timeout.us

    @property
    def all_topics(self) -> tuple[ScenarioTopic, ...]:
        """Topics that exist from the beginning."""
        return self.topics

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Names of topics that exist at some time: those of the file, and those that its steps create."""
        created = [step.name for step in self.steps if isinstance(step, CreateTopic)]
        return tuple(dict.fromkeys([*(topic.name for topic in self.topics), *created]))

    @property
    def patterns(self) -> list[str]:
        """Regular expressions that members subscribe to at some time."""
        later = (step.pattern for step in self.steps if isinstance(step, ChangeSubscription))
        return [each for each in (self.group.pattern, *later) if each is not None]

    @property
    def record_rates(self) -> dict[str, float]:
        """Rates that a run can do without, by their keys."""
        return {
            f"topics.{number}.records_per_second": topic.records_per_second
            for number, topic in enumerate(self.topics)
        }

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def settling_us(self) -> int:
        """Time that a group may need to settle once nothing disturbs it, in microseconds.

        A dead member's session expires, then a member that does not revoke is fenced, and each learns of it
        by a heartbeat. Before that, a request may still time out, and a process may still be starting.
        """
        before_us = self.network.request_timeout.us + self.application.restart.longest_us
        config = GroupCoordinatorConfig.from_properties(self.config)
        return self.settling_ms(config) * 1_000 + before_us + SLACK_US

    def settling_ms(self, config: GroupCoordinatorConfig) -> int:
        """Return session and rebalance timeout plus three heartbeat intervals of the slower protocol, in ms.

        The time of messages and brokers beyond the slack is added. In a classic group, the first members that
        join wait for others. If topics change, its members have to see that first.
        """
        group, found = self.group, []
        if "consumer" in self.protocols:
            session_ms, interval_ms = self.broker_timeouts_ms(config)
            found.append(session_ms + 3 * interval_ms)
        if "classic" in self.protocols:
            changes = any(isinstance(step, CreateTopic | GrowTopic | DeleteTopic) for step in self.steps)
            seen = group.metadata_max_age.ms if changes else 0
            heartbeats = 3 * group.heartbeat_interval.ms
            delay = config.group_initial_rebalance_delay_ms
            found.append(group.session_timeout.ms + heartbeats + delay + seen)
        return max(found) + group.rebalance_timeout.ms + slowness_us(self) // 1_000

    def broker_timeouts_ms(self, config: GroupCoordinatorConfig) -> tuple[int, int]:
        """Return the session timeout and heartbeat interval that the coordinator gives to members, in ms."""
        return config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms

    def is_kept(self, config: GroupCoordinatorConfig) -> bool:
        """Return true if members meet their session and rebalance timeouts; otherwise they are fenced and
        rejoin.

        In a rebalance, members receive the assignment, commit, run a callback, and respond once no heartbeat
        is under way. A callback that takes longer than a heartbeat interval disturbs the group, and is known
        to.
        """
        group, callback_us = self.group, self.application.callback.longest_us
        answer_us = 2 * self.network.latency.longest_us + self.cluster.replication.longest_us
        timings = []
        if "consumer" in self.protocols:
            session_ms, interval_ms = self.broker_timeouts_ms(config)
            timings.append((interval_ms * 1_000, session_ms * 1_000))
        if "classic" in self.protocols:
            timings.append((group.heartbeat_interval.us, group.session_timeout.us))
        return all(
            interval_us + answer_us < session_us
            and interval_us + 3 * answer_us + min(callback_us, interval_us) < group.rebalance_timeout.us
            for interval_us, session_us in timings
        )
