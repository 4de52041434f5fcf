"""The cluster around the group: its brokers, who is in charge, its topics, and the replicated journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    CreateInternalTopics,
)
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.regular_expressions import matching
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.protocol.streams import TopicInfo
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.kafka.broker import ACTIVE, BrokerHost
from fencepost.simulation.kafka.logs import PartitionLogs
from fencepost.simulation.kafka.requests import (
    ArrivalTokens,
    CoordinatorFound,
    FindCoordinator,
    LogOffsets,
    MatchingTopics,
    OffsetsSince,
    PartitionCounts,
    TopicNames,
)
from fencepost.simulation.kafka.transactions import SimulatedTransactions
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.network import Network
from fencepost.simulation.kernel.rng import Draws

if TYPE_CHECKING:
    from fencepost.simulation.scenarios.scenario import Scenario, ScenarioTopic
    from fencepost.simulation.scenarios.streams import StreamsScenario

_COMPACT_BEYOND = 2_000
"""Number of records from which on the journal is compacted: a loading coordinator reads all records, and
judges read them twice."""


class ReplicatedJournal(MemoryJournal):
    """A journal that is compacted from time to time, as by Kafka's cleaner; it refuses appends while
    `failing`."""

    __slots__ = ("failing",)

    def __init__(self) -> None:
        super().__init__(compact_beyond=_COMPACT_BEYOND)
        self.failing = 0
        """Number of faults that make appends fail now."""

    def append(self, records: tuple[Record, ...]) -> None:
        """Append one batch.

        :raises AppendFailed: while it fails, as a partition without enough replicas does.
        """
        if self.failing:
            raise AppendFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not enough replicas are in sync")
        super().append(records)


class SimulatedCluster:
    """Brokers, their controller and the network before them. At most one broker is in charge of the group."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: Draws,
        scenario: Scenario | StreamsScenario,
        config: GroupCoordinatorConfig,
        *,
        hooks: Mapping[str, tuple[Callable[..., Any], ...]],
    ) -> None:
        self.loop = loop
        self.draws = draws
        self.spec = spec = scenario.cluster
        self.config = config
        self.hooks = hooks
        self.network = Network(
            loop,
            draws,
            latency=scenario.network.latency.quantiles,
            detection=scenario.network.detection.quantiles,
            on_loss=self._lost,
        )
        self.journal = ReplicatedJournal()
        self.tokens = ArrivalTokens(draws)
        self.topics = TopicsImage()
        self.logs = PartitionLogs(loop)
        self.load = draws.samples("cluster/load", spec.load.quantiles)
        self.regex = draws.samples("cluster/regex", spec.regex.quantiles)
        self._failover = draws.samples("cluster/failover", spec.failover.quantiles)
        self._metadata = draws.samples("cluster/metadata", spec.metadata.quantiles)
        self._election = 0
        self._elect_us = 0
        """Time of the next election, in microseconds, if no node coordinates the group."""
        self._internal: set[str] = set()
        """Internal topics of Streams applications that are about to be created."""
        self.leader: BrokerHost | None = None
        self.transactions: SimulatedTransactions | None = None
        """The coordinator of transactions, in worlds that have some."""
        self.brokers: dict[str, BrokerHost] = {}
        for number in range(1, spec.brokers + 1):
            self.brokers[f"broker-{number}"] = BrokerHost(f"broker-{number}", self)

    def _lost(self, member: str, broker: str, direction: str, request: Any, now_us: int) -> None:
        for method in self.hooks["on_loss"]:
            method(member, broker, direction, request, now_us)

    def begin(self, topics: Iterable[ScenarioTopic]) -> None:
        """Create the topics, and put a coordinator in charge."""
        for topic in topics:
            self.create_topic(topic.name, topic.partitions, topic.records_per_second)
        self.elect()
        if self.transactions is not None:
            self.transactions.elect()

    def calm(self) -> None:
        """End all disturbances of the network and of brokers."""
        self.network.rules.clear()
        for broker in self.brokers.values():
            if not broker.up:
                broker.revive()

    # -- the controller -------------------------------------------------------------------------------------

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator that answers requests now, if there is one."""
        leader = self.leader
        return leader.coordinator if leader is not None and leader.status is ACTIVE else None

    def elect(self, avoid: BrokerHost | None = None) -> None:
        """Put a running broker in charge, a different one from `avoid` if possible."""
        self._election += 1
        up = [broker for broker in self.brokers.values() if broker.running]
        chosen = [broker for broker in up if broker is not avoid] or up
        if chosen:
            self.leader = chosen[self._election % len(chosen)]
            self.leader.load()

    def elect_after(self, delay_us: int, avoid: BrokerHost | None = None) -> None:
        """Leave the group without a coordinator for that time, unless a broker is elected earlier.

        If it has no coordinator already, wait at least until the time that was set before.
        """
        self._election += 1
        at_us = self.loop.now_us + delay_us
        self._elect_us = at_us if self.leader is not None else max(at_us, self._elect_us)
        self.leader = None
        self.loop.schedule(self._elect_us, self._elect_due, (self._election, avoid))

    def _elect_due(self, due: tuple[int, BrokerHost | None]) -> None:
        if due[0] == self._election:
            self.elect(due[1])

    def crash(self, broker: BrokerHost) -> None:
        """Kill a broker; if it was in charge, another takes over after the failover time."""
        broker.crash()
        self.network.cut_all(broker.name)
        if self.transactions is not None:
            self.transactions.lost(broker)
        if broker is self.leader:
            self.elect_after(self._failover.draw(), broker)

    def restart(self, broker: BrokerHost) -> None:
        """Start a broker again. It takes over the group if no other broker could."""
        broker.restart()
        self._elect_only(broker)

    def _elect_only(self, broker: BrokerHost) -> None:
        """Put a restarted broker in charge if no other broker could be."""
        if self.leader is None and not any(b.running for b in self.brokers.values() if b is not broker):
            self.elect()

    def pause(self, broker: BrokerHost) -> None:
        """Freeze a broker. Another takes over from it if that lasts for the failover time."""
        broker.freeze()
        if self.transactions is not None:
            self.transactions.stands_still(broker)
        if broker is self.leader:
            self.loop.schedule(self.loop.now_us + self._failover.draw(), self._given_up, broker)

    def _given_up(self, broker: BrokerHost) -> None:
        if broker is self.leader and broker.frozen:
            broker.resign()
            self.elect_after(0, broker)

    def resume(self, broker: BrokerHost) -> None:
        """Let a frozen broker continue, with all requests that have arrived since."""
        broker.thaw()
        self._elect_only(broker)

    def move(self) -> None:
        """Move the group to another broker cleanly."""
        if (old := self.leader) is not None:
            old.resign()
            self.elect(old)

    def unavailable(self, lasts_us: int) -> None:
        """Leave the group without a leader for that time."""
        if self.leader is not None:
            self.leader.resign()
        self.elect_after(lasts_us)

    def fail_appends(self) -> None:
        """Make the journal refuse records until `mend_appends` was called as often."""
        self.journal.failing += 1

    def mend_appends(self) -> None:
        """Undo one call of `fail_appends`."""
        self.journal.failing -= 1

    def take_producer_over(self, transactional_id: str, timeout_ms: int) -> None:
        """Start another producer with that transactional id."""
        if self.transactions is not None:
            self.transactions.take_over(transactional_id, timeout_ms)

    # -- topics ---------------------------------------------------------------------------------------------

    def has_topic(self, name: str) -> bool:
        """Return true if there is such a topic."""
        return name in self.topics.by_name

    def create_topic(self, name: str, partitions: int, records_per_second: float) -> None:
        """Create a topic."""
        topic_id = self.draws.uuid(f"topic/{name}/{self.topics.version}")
        self.logs.create(name, partitions, records_per_second)
        topic = Topic(topic_id=topic_id, name=name, partitions=partitions)
        self._publish(self.topics.with_topic(topic), name, "created", partitions)

    def create_internal_topics(self, effect: CreateInternalTopics) -> None:
        """Create the topics that a Streams group waits for, unless that is under way: the controller takes a
        moment."""
        for topic in effect.topics:
            if topic.name not in self._internal:
                self._internal.add(topic.name)
                self.loop.schedule(self.loop.now_us + self._metadata.draw(), self._create_internal, topic)

    def _create_internal(self, topic: TopicInfo) -> None:
        self._internal.discard(topic.name)
        if not self.has_topic(topic.name):
            self.create_topic(topic.name, topic.partitions, 0)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions to this; do nothing if it has as many."""
        topic = self.topics.by_name[name]
        if partitions > topic.partitions:
            self.logs.grow(name, topic.partitions, partitions)
            grown = Topic(topic_id=topic.topic_id, name=name, partitions=partitions)
            self._publish(self.topics.with_topic(grown), name, "grown", partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.logs.delete(name)
        self._publish(self.topics.without(name), name, "deleted", 0)

    def _publish(self, image: TopicsImage, name: str, what: str, partitions: int) -> None:
        self.topics = image
        self.tell("on_topic", name, what, partitions)
        self.loop.schedule(self.loop.now_us + self._metadata.draw(), self._heard, image.version)

    def _heard(self, _: int) -> None:
        if self.leader is not None:
            self.leader.topics_changed()

    # -- requests of brokers -------------------------------------------------------------------------------

    def answer(self, request: object) -> object:
        """Return the response that any broker sends."""
        if isinstance(request, FindCoordinator):
            service = self.transactions if request.of_transactions else self
            leader = None if service is None else service.leader
            if leader is None:
                return CoordinatorFound(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return CoordinatorFound(leader.name)
        if isinstance(request, TopicNames):
            by_id = self.topics.by_id
            return {i: by_id[i].name for i in request.topic_ids if i in by_id}
        if isinstance(request, PartitionCounts):
            by_name = self.topics.by_name
            return {name: by_name[name].partitions for name in request.topics if name in by_name}
        if isinstance(request, MatchingTopics):
            return at_once(matching(request.pattern, sorted(self.topics.by_name)))
        if isinstance(request, OffsetsSince):
            logs = {partition: self.logs.log(partition) for partition in request.partitions}
            return {partition: log.first(request.since_us) for partition, log in logs.items() if log}
        assert isinstance(request, LogOffsets)
        known = [partition for partition in request.partitions if partition in self.logs]
        return {partition: 0 if request.earliest else self.logs[partition] for partition in known}

    def tell(self, hook: str, *arguments: object) -> None:
        """Notify observers by this hook."""
        for method in self.hooks[hook]:
            method(*arguments, self.loop.now_us)
