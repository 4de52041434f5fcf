"""A whole world: the cluster, the network, the members' hosts, and those who watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.simulation.kafka.broker import BrokerHost
from fencepost.simulation.kafka.cluster import SimulatedCluster
from fencepost.simulation.kafka.member import ALIVE, MemberHost
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.network import Network
from fencepost.simulation.kernel.observers import Observer, Violation, hook_lists
from fencepost.simulation.kernel.rng import Streams
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.timing import is_answered, is_kept, settling_ms


class KafkaWorld:
    """Everything of one run. It is a `WorldView` for observers."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        loop: VirtualLoop,
        *,
        members: int,
        observers: Iterable[Observer] = (),
        sequence: Callable[[], int] = lambda: 0,
    ) -> None:
        self.scenario = scenario
        self.loop = loop
        self.streams = Streams(seed)
        self.config = GroupCoordinatorConfig.from_properties(scenario.config)
        self.violations: list[Violation] = []
        self.faults_over = False
        self.group_id = scenario.group.id
        """The one group of this world."""
        self.hosts_by_member: dict[MemberId, str] = {}
        self.all_topics = tuple(topic.name for topic in scenario.topics)
        self._sequence = sequence
        watching = tuple(observers)
        for observer in watching:
            observer.attach(self, self.report)
        self.hooks = hook_lists(watching)
        self.network = Network(
            loop,
            self.streams,
            latency=scenario.network.latency.quantiles,
            detection=scenario.network.detection.quantiles,
            on_loss=self._lost,
        )
        self.cluster = SimulatedCluster(
            loop, self.streams, scenario.cluster, self.config, network=self.network, hooks=self.hooks
        )
        self.journal: MemoryJournal = self.cluster.journal
        """The replicated log of the group."""
        self.coordinators: Mapping[str, BrokerHost] = self.cluster.brokers
        """All broker hosts by name."""
        self.log_ends: Mapping[TopicPartition, int] = self.cluster.logs
        """The next offset of each partition's log, as of now."""
        self.callback_times = self.streams.samples("callbacks", scenario.application.callback.quantiles)
        self.processing_times = self.streams.samples("processing", scenario.application.processing.quantiles)
        self.supervisor = Supervisor(
            loop,
            self.streams,
            start=scenario.group.start.quantiles,
            restart=scenario.application.restart.quantiles,
        )
        width = len(str(members))
        self.members: dict[str, MemberHost] = {}
        for number in range(1, members + 1):
            name = f"member-{number:0{width}}"
            self.members[name] = MemberHost(name, self, name if scenario.group.static else None)

    # -- what happens ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the topics, put a coordinator in charge, and let the members start."""
        for topic in self.scenario.topics:
            self.cluster.create_topic(topic.name, topic.partitions, topic.records_per_second)
        self.cluster.elect()
        self.supervisor.start_soon(list(self.members.values())[: self.scenario.group.members])

    def calm(self) -> None:
        """Nothing disturbs the group from here on: who is to run runs."""
        for broker in self.cluster.brokers.values():
            if not broker.up:
                broker.revive()
        for host in self.members.values():
            host.thaw_process()
            if host.wanted and host.status not in ALIVE:
                host.start()
        self.faults_over = True
        self.tell("on_faults_end")

    def end(self) -> bool:
        """The run is over: observers report what they still have to, then all processes go.

        Answers whether the group had settled.
        """
        self.tell("on_end")
        settled = self.settled
        self.vanish()
        return settled

    def vanish(self) -> None:
        """All processes go, and tell nobody; what they leave to the loop ends at this moment."""
        for host in self.members.values():
            host.vanish()

    # -- observers ------------------------------------------------------------------------------------------

    def tell(self, hook: str, *arguments: object) -> None:
        """Tell observers what happened now."""
        for method in self.hooks[hook]:
            method(*arguments, self.loop.now_us)

    def report(self, invariant: str, message: str) -> None:
        """Take a checker's finding down."""
        violation = Violation(
            invariant=invariant, seq=self._sequence(), t_us=self.loop.now_us, message=message
        )
        self.violations.append(violation)
        for method in self.hooks["on_violation"]:
            method(violation)

    def _lost(self, member: str, broker: str, direction: str, request: Any, now_us: int) -> None:
        for method in self.hooks["on_loss"]:
            method(member, broker, direction, request, now_us)

    @property
    def settled(self) -> bool:
        """Whether all members that run are STABLE at the group's epoch, and nobody else is in the group."""
        running = [host for host in self.members.values() if host.status in ALIVE]
        coordinator = self.active
        if coordinator is None:
            return False
        found = coordinator.kinds.find(self.group_id)
        if found is None or not found[1].members:
            return not running
        kind, group = found
        epoch = kind.epoch(group)
        return (
            group.state == GroupState.STABLE
            and len(group.members) == len(running)
            and all(
                host.driver is not None
                and host.driver.member_epoch == epoch
                and (
                    isinstance(host.driver, ClassicDriver) and host.driver.is_settled
                    if kind is coordinator.classic
                    else host.driver.state == ConsumerMemberState.STABLE
                )
                for host in running
            )
        )

    # -- the view of observers ----------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Virtual microseconds since the start of the run."""
        return self.loop.now_us

    @property
    def topics(self) -> TopicsImage:
        """The cluster's topics as they are."""
        return self.cluster.topics

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator that answers requests now, if there is one."""
        return self.cluster.active

    @cached_property
    def settling_ms(self) -> int | None:
        """How long the group may take to settle once nothing disturbs it; None if it may never."""
        may = is_answered(self.scenario) and is_kept(self.scenario, self.config)
        return settling_ms(self.scenario, self.config) if may else None
