"""The real worlds as a nemesis sees them: processes, brokers, a proxy. Events are recorded for later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kernel.supervisor import ALIVE, ProcessStatus
from fencepost.simulation.kernel.world import host_names
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.processes import ProcessHost, RunContext, RunProcesses
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.streams.failures import SHUTS_APPLICATION_DOWN

if TYPE_CHECKING:
    from fencepost.simulation.streams.failures import Injected

_LEAST_HEARTBEAT_MS: Final = 50


class RealHost(ProcessHost):
    """A consumer's host. Each process is a new member; a static one keeps its instance id."""

    def __init__(self, name: str, world: ConsumerProcesses, instance_id: str | None) -> None:
        super().__init__(name, world)
        self.instance_id = instance_id
        self.protocol = world.scenario.group.protocol
        scenario = world.scenario
        self.topics = scenario.group.topics
        self.pattern = scenario.group.pattern
        self._all_topics = tuple(topic.name for topic in scenario.topics)

    @property
    def subscription(self) -> tuple[tuple[str, ...], str | None]:
        """Its subscription: all topics of the file if the scenario does not name any."""
        if self.topics is None and self.pattern is None:
            return self._all_topics, None
        return self.topics or (), self.pattern

    def _farewell(self, *, come_back: bool) -> m.Stop:
        return m.Stop(forever=self.instance_id is not None and not come_back)

    def slow_callback(self, lasts_us: int) -> None:
        """Make the process's next callback take that much longer."""
        self._order(m.SlowCallbackOrder(lasts_us))

    def fail_callback(self) -> None:
        """Make the process's next callback raise."""
        self._order(m.FailCallback())

    def stall(self, until_us: int) -> None:
        """Keep the application busy until then."""
        self._order(m.Stall(until_us))

    def resubscribe(self) -> None:
        """Subscribe to `topics` and `pattern`."""
        self._order(m.SubscribeOrder(*self.subscription))


class ConsumerProcesses(RunProcesses[RealHost, Scenario]):
    """One run's world of consumers."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        around: RunContext,
        *,
        members: int,
        client: m.ClientName,
        flaw: str,
    ) -> None:
        super().__init__(scenario, seed, around, flaw)
        self._client: m.ClientName = client
        self._owned: dict[str, set[TopicPartition]] = {}
        static = scenario.group.static
        self.members: dict[str, RealHost] = {
            name: RealHost(name, self, name if static else None) for name in host_names("member", members)
        }
        self.hosts = self.members

    def begin(self) -> None:
        """Let the members start."""
        self.supervisor.start_soon(list(self.members.values())[: self.scenario.group.members])

    def hear(self, host: str, event: m.Event) -> None:
        """Handle an event of a member's process. Records count as processed while they are owned."""
        self._around.happenings.add(event.t_us, host, event)
        match event:
            case m.Up():
                self._owned[host] = set()
            case m.CalledBack(_, "assigned", "begin", partitions):
                self._owned.setdefault(host, set()).update(partitions)
            case m.CalledBack(_, "lost", "begin", partitions) | m.CalledBack(_, "revoked", "end", partitions):
                self._owned.setdefault(host, set()).difference_update(partitions)
            case m.Processed(_, partition, _, _, numbers) if partition in self._owned.get(host, ()):
                self._around.ledger.process(numbers)

    def terms(self, host: RealHost, process: int) -> m.Terms:
        """Return the settings of the host's next process."""
        group, application = self.scenario.group, self.scenario.application
        topics, pattern = host.subscription
        assert application.commit != "transaction", "scenarios with producers are refused"
        return self._terms(
            m.Terms,
            host,
            process,
            topics,
            client=self._client,
            protocol=host.protocol,
            strategy=group.partition_assignment_strategy,
            session_timeout_ms=group.session_timeout.ms,
            heartbeat_interval_ms=group.heartbeat_interval.ms,
            metadata_max_age_ms=group.metadata_max_age.ms,
            instance_id=host.instance_id,
            assignor=group.assignor,
            pattern=pattern,
            commit=application.commit,
            auto_commit_interval_ms=application.auto_commit_interval.ms,
        )

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Do nothing: scenarios with steps of administration are refused before anything starts."""


def classic_interval_ms(session_ms: int) -> int:
    """Return the heartbeat interval of members of the classic protocol, by their session timeout."""
    return max(session_ms // 6, _LEAST_HEARTBEAT_MS)


class RealClient(ProcessHost):
    """A client's host. Each start is a new process, with the state directory of the one before."""

    @property
    def ended(self) -> bool:
        """True if no process runs that can receive an order."""
        return self.status not in ALIVE

    @property
    def frozen(self) -> bool:
        """True if the process is frozen."""
        return self.status is ProcessStatus.FROZEN

    def inject(self, injected: Injected) -> None:
        """Let the next thread that gets to the place fail."""
        self._order(m.FailThread(injected.answer, injected.where, injected.kind))

    def wake(self) -> None:
        """Do nothing: a thread looks when its poll ends."""

    def add_thread(self) -> None:
        """Start one more thread, if the client runs."""
        self._order(m.ChangeThreads(adds=True))

    def remove_thread(self) -> None:
        """Let one thread end."""
        self._order(m.ChangeThreads(adds=False))

    def close(self) -> None:
        """Close the client gracefully; it is started again."""
        self.stop(come_back=True)

    def forgive(self) -> None:
        """Forget the failures that no thread has met yet."""
        self._order(m.Forgive())


class RealApplication(RunProcesses[RealClient, StreamsScenario]):
    """One run's world of clients."""

    def __init__(
        self,
        scenario: StreamsScenario,
        seed: int,
        around: RunContext,
        *,
        session_ms: int,
        state_dir: Path,
        flaw: str,
    ) -> None:
        super().__init__(scenario, seed, around, flaw)
        self.asked = False
        """True if a handler asked to shut the application down: then no client is started any more."""
        self._session_ms = session_ms
        self._state_dir = state_dir
        self.clients: dict[str, RealClient] = {
            name: RealClient(name, self) for name in host_names("client", scenario.group.members)
        }
        self.hosts = self.clients

    def begin(self) -> None:
        """Let the clients start."""
        self.supervisor.start_soon(self.clients.values())

    def begin_again(self) -> None:
        """Start the application again after it was shut down."""
        self.asked = False
        for host in self.clients.values():
            host.start()

    @property
    def goes_on(self) -> bool:
        """True if the application was not shut down."""
        return not self.asked

    def calm(self) -> None:
        """End all disturbance of the application."""
        self.tell("heal")
        for host in self.clients.values():
            host.forgive()
        super().calm()

    def bring_back(self) -> None:
        """Start or resume all clients that should run."""
        for host in self.clients.values():
            host.wanted = host.wanted and not (self.asked and host.ended)
        super().bring_back()

    def hear(self, host: str, event: m.Event) -> None:
        """Handle an event of a client's process."""
        self._around.happenings.add(event.t_us, host, event)
        match event:
            case m.HandlerAsked(_, _, answer, _) if answer == SHUTS_APPLICATION_DOWN:
                self.asked = True
            case m.Processed(_, _, _, _, numbers):
                self._around.ledger.process(numbers)

    def terms(self, host: RealClient, process: int) -> m.ClientTerms:
        """Return the settings of the host's next process."""
        group, application = self.scenario.group, self.scenario.application
        return self._terms(
            m.ClientTerms,
            host,
            process,
            tuple(topic.name for topic in self.scenario.topics),
            threads=group.threads,
            group_protocol=group.protocol,
            session_timeout_ms=self._session_ms,
            heartbeat_interval_ms=classic_interval_ms(self._session_ms),
            commit_interval_ms=application.commit_interval.ms,
            poll_ms=application.poll_ms,
            state_dir=str(self._state_dir / host.name),
            global_topic=None if self.scenario.global_topic is None else self.scenario.global_topic.name,
            stores=application.changelogs,
        )
