"""The real world as a nemesis sees it: processes, brokers, a proxy. What happens is taken down for later."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kernel.world import host_names
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.hosts import RealHost
from fencepost.simulation.lab.chaos.processes import ProcessWorld, RunContext
from fencepost.simulation.scenarios.scenario import Scenario


class RealWorld(ProcessWorld[RealHost]):
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
        super().__init__(seed, around, start=scenario.group.start, restart=scenario.application.restart)
        self.scenario = scenario
        self._client: m.ClientName = client
        self._flaw = flaw
        self._owned: dict[str, set[TopicPartition]] = {}
        static = scenario.group.static
        self.members: dict[str, RealHost] = {
            name: RealHost(name, self, scenario, name if static else None)
            for name in host_names("member", members)
        }
        self.hosts = self.members

    def begin(self) -> None:
        """Let the members start."""
        self.supervisor.start_soon(list(self.members.values())[: self.scenario.group.members])

    def hear(self, host: str, event: m.Event) -> None:
        """A member's process told something. Records count as processed while they are owned."""
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
        """What the host's next process has to know."""
        group, application = self.scenario.group, self.scenario.application
        timeout_ms = self.scenario.network.request_timeout.ms
        topics, pattern = host.subscription
        assert application.commit != "transaction", "scenarios with producers are refused"
        callback, processing = application.callback, application.processing
        return m.Terms(
            client=self._client,
            name=host.name,
            process=process,
            seed=self.streams.seed,
            began_us=self.loop.began_us,
            bootstrap_servers=self._bootstrap(f"{host.name}/{process}"),
            group_id=group.id,
            instance_id=host.instance_id,
            assignor=group.assignor,
            topics=topics,
            pattern=pattern,
            max_poll_interval_ms=group.rebalance_timeout.ms,
            request_timeout_ms=timeout_ms,
            commit=application.commit,
            auto_commit_interval_ms=application.auto_commit_interval.ms,
            gather_ms=min(application.poll.ms, timeout_ms // 2),
            max_poll_records=application.max_poll_records,
            callback=(callback.kind, callback.low, callback.high),
            processing=(processing.kind, processing.low, processing.high),
            flaw=self._flaw,
        )

    def operate(self, request: str, topics: Sequence[str], share: float) -> None:
        """Do nothing: scenarios in which people administer the group are refused before anything starts."""
