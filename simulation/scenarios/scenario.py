"""What a scenario says: the group, its topics, the cluster, the network, the application, and what happens.

A scenario is a value: the same scenario and the same seed give the same run. Steps are what people do
(deploys, scaling, topics); faults are what befalls them, at a moment of their own or as often as the seed
draws. Everything has ended when the quiet phase at the end of a run begins.
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
    """A table of the file: a key that is not declared is refused."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Keys of the table that this one extends, and that say nothing here: another value is refused."""


class ScenarioGroup(_Table, frozen=True):
    """The group and its members at the start."""

    id: Name = "orders-service"
    members: Count = 6
    static: bool = False
    """Whether members have instance ids and keep them over restarts."""
    topics: tuple[Name, ...] | None = None
    """What members subscribe to; all topics of the file if neither this nor `pattern` is given."""
    pattern: Annotated[str, Meta(min_length=1)] | None = None
    """A regular expression (RE2) to subscribe to, beside `topics` if they are given."""
    protocol: GroupProtocol = "consumer"
    """The clients' group.protocol: that of KIP-848, or the classic one, in which members assign."""
    assignor: Name | None = None
    partition_assignment_strategy: AssignmentStrategy = "range"
    """The assignor of members that speak the classic protocol; all but `cooperative-sticky` are eager."""
    session_timeout: Duration = Duration(45 * SECOND)
    """Their session.timeout.ms; for others the coordinator's configuration has it."""
    heartbeat_interval: Duration = Duration(3 * SECOND)
    """Their heartbeat.interval.ms; for others the coordinator's configuration has it."""
    metadata_max_age: Duration = Duration(300 * SECOND)
    """How long it may take until they see that topics have changed."""
    rebalance_timeout: Duration = Duration(60 * SECOND)
    """The clients' max.poll.interval.ms, which is also their rebalance timeout."""
    start: Span = Span("uniform", 0, 5 * SECOND)
    """When members start, after the beginning of the run."""


class ScenarioTopic(_Table, frozen=True):
    """One topic that exists from the start."""

    name: Name
    partitions: Annotated[int, Meta(ge=1, le=200_000)] = 12
    records_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Over all its partitions; 0 leaves the data plane out."""


class ScenarioCluster(_Table, frozen=True):
    """The brokers. One of them coordinates the group."""

    brokers: Annotated[int, Meta(ge=1, le=100)] = 3
    replication: Span = Span("constant", 2_000)
    """From an append to the high watermark: how long a reply with records waits."""
    failover: Span = Span("uniform", 1 * SECOND, 4 * SECOND)
    """From the loss of a coordinator until another broker begins to load the group."""
    load: Span = Span("uniform", 50_000, 800_000)
    """How long a new coordinator loads."""
    metadata: Span = Span("uniform", 5_000, 60_000)
    """From a change of topics until a coordinator hears of it."""
    regex: Span = Span("uniform", 2_000, 40_000)
    """How long matching regular expressions takes."""


class ScenarioNetwork(_Table, frozen=True):
    """Links between members and brokers."""

    latency: Span = Span("lognormal", 1_000, 15_000)
    """One way, drawn for each message."""
    detection: Span = Span("uniform", 1_000, 200_000)
    """From the loss of a connection until the member's side knows."""
    request_timeout: Duration = Duration(30 * SECOND)


class ScenarioApplication(_Table, frozen=True):
    """What members do with records."""

    poll: Duration = Duration(1 * SECOND)
    """How long records gather before a poll returns with them."""
    max_poll_records: Count = 500
    processing: Span = Span("constant", 1_000)
    """For one record."""
    commit: Literal["auto", "sync", "async", "transaction"] = "auto"
    """Who commits: the consumer (`auto`), or the application after each batch and when partitions go;
    it waits for the answer (`sync`) or, after a batch, does not (`async`), or a producer of its commits
    in transactions (`transaction`)."""
    auto_commit_interval: Duration = Duration(5 * SECOND)
    callback: Span = Span("uniform", 0, 50_000)
    """How long a rebalance callback takes."""
    restart: Span = Span("uniform", 2 * SECOND, 10 * SECOND)
    """How long a process is down when it is restarted."""
    clock_drift_ppm: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Clocks of hosts run faster or slower by up to so many parts in a million."""
    timer_delay: Span = Span("constant", 0)
    """How much later than asked a process's timers go off: what the system and other processes take."""


class ScenarioTransactions(_Table, frozen=True):
    """How positions are committed where `application.commit` is `transaction`: exactly once."""

    version: Literal[1, 2] = 2
    """The clients' transaction.version: with 2 each transaction has an epoch of its own (KIP-890)."""
    timeout: Duration = Duration(10 * SECOND)
    """The producers' transaction.timeout.ms: what is open for longer is aborted."""
    interval: Span = Span("uniform", 1 * SECOND, 5 * SECOND)
    """How long a transaction stays open, from its first batch on; before partitions go it ends sooner."""
    aborts: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The chance that the application aborts a transaction, and processes its records again."""
    plain: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The chance that a batch is committed outside of the transaction that is open, as it should not be."""


# -- what people do ---------------------------------------------------------------------------------------


class _Step(_Table, frozen=True, tag_field="kind"):
    """Something that people do at a moment of the run."""

    at: Moment


class RollingRestart(_Step, frozen=True, tag="rolling-restart"):
    """Restart all members, batch by batch, evenly over a time."""

    over: Moment = Moment(share=0.3)
    batch: Share | None = None
    """Which part of the members restarts at the same time, at least one; one by one if not given."""
    graceful: bool = True
    """Whether members close their consumer before they go."""
    protocol: GroupProtocol | None = None
    """The group.protocol that members have afterwards; as before if not given."""
    partition_assignment_strategy: tuple[AssignmentStrategy, ...] = ()
    """The assignors that classic members offer afterwards, the one they like best first: all of them eager or
    all cooperative; as before if not given."""


class Scale(_Step, frozen=True, tag="scale"):
    """Start or stop members until there are so many, evenly over a time."""

    members: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    factor: Annotated[float, Meta(gt=0, le=100)] | None = None
    """Instead of `members`: so many times those at the start."""
    over: Moment = Moment(10 * SECOND)


class ChangeSubscription(_Step, frozen=True, tag="subscribe"):
    """Members change what they subscribe to, evenly over a time."""

    topics: tuple[Name, ...] = ()
    pattern: Annotated[str, Meta(min_length=1)] | None = None
    share: Share = 1.0
    """Which part of the members."""
    over: Moment = Moment(10 * SECOND)


class CreateTopic(_Step, frozen=True, tag="create-topic"):
    """A topic appears."""

    name: Name
    partitions: Annotated[int, Meta(ge=1, le=200_000)] = 12
    records_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


MOST_GROWN = 200_000
"""Most partitions that a topic may grow to."""


class GrowTopic(_Step, frozen=True, tag="grow-topic"):
    """A topic gets more partitions."""

    name: Name
    partitions: Annotated[int, Meta(ge=2, le=MOST_GROWN)]


class DeleteTopic(_Step, frozen=True, tag="delete-topic"):
    """A topic disappears, and its records with it."""

    name: Name


Operation: TypeAlias = Literal[
    "list", "describe", "offsets", "delete-offsets", "reset-offsets", "remove-members", "delete-group"
]


class Operate(_Step, frozen=True, tag="operate"):
    """People ask the coordinator about the group, or change it, as with Kafka's command line tools."""

    request: Operation
    """What they ask for; offsets are reset to 0, which only a group without members lets them do."""
    topics: tuple[Name, ...] = ()
    """Whose offsets are deleted or reset; those of all topics if not given."""
    share: Share = 0.5
    """Which part of the members is removed, at least one."""
    times: Count = 1
    """How often they ask."""
    over: Moment = Moment(10 * SECOND)


Step: TypeAlias = (
    RollingRestart | Scale | ChangeSubscription | CreateTopic | GrowTopic | DeleteTopic | Operate
)


# -- what befalls them ------------------------------------------------------------------------------------


class _Fault(_Table, frozen=True, tag_field="kind"):
    """Something that goes wrong: once at a moment, or again and again at random."""

    at: Moment | None = None
    every: Duration | None = None
    """Mean time between two; the seed draws when."""
    start: Moment = msgspec.field(default=Moment(share=0.0), name="from")
    until: Moment = Moment(share=1.0)
    likely: Share = 1.0
    """The chance that a run has this fault at all."""


class MemberCrash(_Fault, frozen=True, tag="member-crash"):
    """A member's process dies without a word, and comes back or does not."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)
    returns: Annotated[float, Meta(ge=0, le=1)] = 1.0


class MemberFreeze(_Fault, frozen=True, tag="member-freeze"):
    """A member's process stands still, as in a long garbage collection."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)


class SlowCallback(_Fault, frozen=True, tag="slow-callback"):
    """A member's next rebalance callback takes long."""

    lasts: Span = Span("uniform", 1 * SECOND, 30 * SECOND)


class CallbackError(_Fault, frozen=True, tag="callback-error"):
    """A member's next rebalance callback raises."""


class PollTimeout(_Fault, frozen=True, tag="poll-timeout"):
    """A member's application processes one batch for so long beyond its poll interval."""

    lasts: Span = Span("uniform", 1 * SECOND, 30 * SECOND)


class ProducerTakeover(_Fault, frozen=True, tag="producer-takeover"):
    """Another process begins under a member's transactional id: the member's producer is fenced."""


class CoordinatorCrash(_Fault, frozen=True, tag="coordinator-crash"):
    """The coordinator's host dies; another takes over, unless it is back first."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class CoordinatorMove(_Fault, frozen=True, tag="coordinator-move"):
    """The group moves to another host in good order."""


class CoordinatorUnavailable(_Fault, frozen=True, tag="coordinator-unavailable"):
    """The group's partition has no leader, and nobody can say who coordinates."""

    lasts: Span = Span("uniform", 500_000, 20 * SECOND)


class AppendFailure(_Fault, frozen=True, tag="append-failure"):
    """The coordinator can't write its log."""

    lasts: Span = Span("uniform", 100_000, 10 * SECOND)


class BrokerCrash(_Fault, frozen=True, tag="broker-crash"):
    """Any broker's host dies, the coordinator's or another."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class BrokerPause(_Fault, frozen=True, tag="broker-pause"):
    """Any broker's process stands still: its connections stay open, and nothing is answered."""

    lasts: Span = Span("uniform", 500_000, 30 * SECOND)


class Partition(_Fault, frozen=True, tag="partition"):
    """Some members can't reach some brokers: every message between them is lost."""

    lasts: Span = Span("uniform", 1 * SECOND, 60 * SECOND)
    share: Share = 0.3
    """Which part of the members."""
    brokers: Share = 1.0
    """Which part of the brokers."""


class SlowLink(_Fault, frozen=True, tag="slow-link"):
    """Messages of some members take longer."""

    lasts: Span = Span("uniform", 5 * SECOND, 60 * SECOND)
    share: Share = 0.3
    latency: Span = Span("uniform", 50_000, 2 * SECOND)
    """What is added, drawn for each message."""


class Loss(_Fault, frozen=True, tag="loss"):
    """Messages get lost at random, for a while."""

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
    """Wait for a response that carries another epoch than its request, or a generation or its assignment."""


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
    """What scenarios of all kinds have."""

    subject: ClassVar[str]
    """What scenarios of this kind are about."""
    runs_with: ClassVar[str] = "`simulate`, `campaign` and `chaos`"
    """The commands that run them."""
    members_are: ClassVar[str] = "clients"
    """What each of the group's hosts runs, for people."""
    partitioned: ClassVar[str] = "topics"
    """The key of the tables that have partitions."""
    settles_unless_slow: ClassVar[bool] = True
    """Whether only times of the scenario can keep a correct run from settling."""
    positive: ClassVar[tuple[tuple[str, ...], ...]]
    """Durations that can't be zero."""

    name: Name = "scenario"
    summary: str = ""
    duration: Duration
    """How long a run takes in virtual time; longer if the quiet phase needs it."""
    quiet: Duration | None = None
    """The phase at the end without faults; by default what a group needs to settle. After a shorter one
    nobody judges whether it has."""
    swarm: bool = False
    """Whether each run leaves out about half of the faults and of the steps, if any, as the seed draws."""

    @property
    def settling_us(self) -> int:
        """How long a group may need to settle once nothing disturbs it any more, in microseconds.

        Each kind of scenario computes it; by itself nothing takes time.
        """
        return 0

    @property
    def quiet_us(self) -> int:
        """How long the quiet phase is, in microseconds."""
        return self.settling_us if self.quiet is None else self.quiet.us

    @property
    def record_rates(self) -> dict[str, float]:
        """The keys of rates that a run can do without, and what they are."""
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
        """Of all topics at the start."""
        return sum(topic.partitions for topic in self.topics)

    @property
    def protocols(self) -> frozenset[GroupProtocol]:
        """All that members speak at some time."""
        later = (step.protocol for step in self.steps if isinstance(step, RollingRestart))
        return frozenset((self.group.protocol, *(protocol for protocol in later if protocol is not None)))

    @property
    def cluster_size(self) -> int:
        """The number of brokers."""
        return self.cluster.brokers

    @property
    def max_poll_interval_us(self) -> int:
        """How long members may take between two polls, in microseconds."""
        return self.group.rebalance_timeout.us

    @property
    def all_topics(self) -> tuple[ScenarioTopic, ...]:
        """The topics that there are from the beginning."""
        return self.topics

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that there are at some time: those of the file, and those that its steps create."""
        created = [step.name for step in self.steps if isinstance(step, CreateTopic)]
        return tuple(dict.fromkeys([*(topic.name for topic in self.topics), *created]))

    @property
    def patterns(self) -> list[str]:
        """The expressions that members subscribe to, sooner or later."""
        later = (step.pattern for step in self.steps if isinstance(step, ChangeSubscription))
        return [each for each in (self.group.pattern, *later) if each is not None]

    @property
    def record_rates(self) -> dict[str, float]:
        """The keys of rates that a run can do without, and what they are."""
        return {
            f"topics.{number}.records_per_second": topic.records_per_second
            for number, topic in enumerate(self.topics)
        }

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def settling_us(self) -> int:
        """How long a group may need to settle once nothing disturbs it any more, in microseconds.

        A dead member's session runs out, then a member that does not revoke is fenced, and each learns of it
        by a heartbeat; before all that a request may still time out, and a process be on its way up.
        """
        before_us = self.network.request_timeout.us + self.application.restart.longest_us
        config = GroupCoordinatorConfig.from_properties(self.config)
        return self.settling_ms(config) * 1_000 + before_us + SLACK_US

    def settling_ms(self, config: GroupCoordinatorConfig) -> int:
        """The session timeout, the rebalance timeout and three heartbeat intervals of the slower protocol.

        What messages and brokers take beyond the slack is added. In a classic group the first of those who
        join wait for others; where topics change its members have to see that first.
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
        """The session timeout and the heartbeat interval that the coordinator gives to members."""
        return config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms

    def is_kept(self, config: GroupCoordinatorConfig) -> bool:
        """Whether members are heard before their session or rebalance timeout ends; if not, they come and go.

        In a rebalance they are told, commit, run a callback, and answer when no heartbeat is under way any
        more. What a callback takes beyond a heartbeat interval disturbs the group, and is known to.
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
