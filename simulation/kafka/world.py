"""A world of one group of consumers: the cluster, the network, and the members' hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.transactions.coordinator import TransactionConfig, TransactionCoordinator
from fencepost.member.classic.driver import ClassicDriver
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.kafka.broker import BrokerHost
from fencepost.simulation.kafka.cluster import SimulatedCluster
from fencepost.simulation.kafka.member import MemberHost
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.kafka.operator import Operator
from fencepost.simulation.kafka.transactions import SimulatedTransactions
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.observers import Observer, Subscribed
from fencepost.simulation.kernel.supervisor import ALIVE, Supervisor
from fencepost.simulation.kernel.world import PreparedRun, RunCounts, World, host_names
from fencepost.simulation.scenarios.scenario import Operate, Scenario
from fencepost.simulation.scenarios.timing import is_answered
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.rows import TraceRows


class KafkaWorld(World):
    """Everything of one run. It is a `MembersWorldView` for observers."""

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
        super().__init__(scenario.application, loop, seed, sequence)
        self.delay_timers(scenario.application.timer_delay)
        self.scenario = scenario
        batch = scenario.application.batch
        self.batch_times = None if batch is None else self.draws.samples("batches", batch.quantiles)
        """The times that applications take for the records of a poll; None if it is by record."""
        self.config = GroupCoordinatorConfig.from_properties(scenario.config)
        self.group_id = scenario.group.id
        """The one group of this world."""
        self.hosts_by_member: dict[MemberId, str] = {}
        self.all_topics = tuple(topic.name for topic in scenario.topics)
        self.attach(observers)
        self.cluster = SimulatedCluster(loop, self.draws, scenario, self.config, hooks=self.hooks)
        self.network = self.cluster.network
        if scenario.application.commit == "transaction":
            self.cluster.transactions = SimulatedTransactions(
                self.cluster,
                TransactionConfig(
                    transaction_max_timeout_ms=self.config.transaction_max_timeout_ms,
                    transactional_id_expiration_ms=self.config.transactional_id_expiration_ms,
                ),
                scenario.network.latency.quantiles,
            )
        self.journal: MemoryJournal = self.cluster.journal
        """The replicated log of the group."""
        self.coordinators: Mapping[str, BrokerHost] = self.cluster.brokers
        """All broker hosts by name."""
        self.log_ends: Mapping[TopicPartition, int] = self.cluster.logs
        """The next offset of each partition's log, as of now."""
        self.supervisor = Supervisor(
            loop,
            self.draws,
            start=scenario.group.start.quantiles,
            restart=scenario.application.restart.quantiles,
        )
        self._operator = Operator(self) if any(isinstance(each, Operate) for each in scenario.steps) else None
        self.members: dict[str, MemberHost] = {
            name: MemberHost(name, self, name if scenario.group.static else None)
            for name in host_names("member", members)
        }

    # -- actions --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the topics, put a coordinator in charge, and let the members start."""
        self.cluster.begin(self.scenario.all_topics)
        self.supervisor.start_soon(list(self.members.values())[: self.scenario.group.members])

    def calm(self) -> None:
        """End all disturbances of the group: every member that is meant to run runs."""
        self.cluster.calm()
        for host in self.members.values():
            host.thaw_process()
            if host.wanted and host.status not in ALIVE:
                host.start()
        self.faults_over = True
        self.tell("on_faults_end")

    def vanish(self) -> None:
        """Kill all processes; work that they left on the loop ends at this moment."""
        for host in self.members.values():
            host.vanish()
        if self._operator is not None:
            self._operator.vanish()

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Let the operator send a request about the group to its coordinator."""
        if self._operator is None:
            self._operator = Operator(self)  # the entry is from an edited plan
        self._operator.operate(request, topics, share)

    @property
    def settled(self) -> bool:
        """True if all running members are STABLE at the group's epoch, and the group has no other members."""
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
    def topics(self) -> TopicsImage:
        """The cluster's topics at this moment."""
        return self.cluster.topics

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator that serves requests now, if there is one."""
        return self.cluster.active

    def subscription_of(self, host: str) -> Subscribed:
        """Return the subscription of the application on that host."""
        return self.members[host].subscription

    @property
    def transactions(self) -> TransactionCoordinator | None:
        """The coordinator of transactions, if there is one now."""
        return None if self.cluster.transactions is None else self.cluster.transactions.coordinator

    @property
    def journal_fails(self) -> bool:
        """True if the logs refuse records now."""
        return bool(self.cluster.journal.failing)

    @cached_property
    def settling_ms(self) -> int | None:
        """Time that the group may take to settle once nothing disturbs it, in ms; None if it may never
        settle."""
        may = is_answered(self.scenario) and self.scenario.is_kept(self.config)
        return self.scenario.settling_ms(self.config) if may else None


def prepare(
    scenario: Scenario,
    seed: int,
    plan: FaultPlan,
    loop: VirtualLoop,
    recorder: TraceRows,
    *,
    judges: Iterable[Observer] | None = None,
) -> PreparedRun:
    """Return the run of a scenario and a seed. `judges` replace all default judges."""
    if judges is None:
        from fencepost.simulation.judge import all_judges

        transactions = scenario.application.commit == "transaction"
        judges = all_judges(scenario.protocols, transactions=transactions)
    writer = GroupTraceWriter(recorder, scenario.group.members)
    world = KafkaWorld(
        scenario,
        seed,
        loop,
        members=plan.members,
        observers=[writer, *judges],
        sequence=lambda: recorder.seq,
    )

    def counts() -> RunCounts:
        return RunCounts(writer.heartbeats, writer.rebalances)

    return PreparedRun(world, GroupNemesis(world, plan), counts)
