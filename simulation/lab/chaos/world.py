"""The real world as a nemesis sees it: processes, brokers, a proxy. Its events are recorded for later."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kernel.world import host_names
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.processes import ProcessHost, ProcessWorld, RunContext
from fencepost.simulation.scenarios.scenario import Scenario


class RealHost(ProcessHost):
    """A consumer's host. Each process is a new member; a static one keeps its instance id."""

    def __init__(self, name: str, world: RealWorld, instance_id: str | None) -> None:
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


class RealWorld(ProcessWorld[RealHost, Scenario]):
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
