"""The real world as a nemesis sees it: processes, brokers, a proxy. What happens is taken down for later."""

from __future__ import annotations

import random
from collections.abc import Callable

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.chaos import messages as m
from fencepost.simulation.chaos.brokers import RealBrokers
from fencepost.simulation.chaos.clock import RealTime
from fencepost.simulation.chaos.happenings import Happenings, HostNoted, Told
from fencepost.simulation.chaos.hosts import RealHost
from fencepost.simulation.chaos.ledger import Ledger
from fencepost.simulation.chaos.nursery import Nursery
from fencepost.simulation.faults.stage import DisturbedNetwork
from fencepost.simulation.nodes.member import ALIVE
from fencepost.simulation.scenarios.scenario import Scenario
from fencepost.simulation.world.rng import Streams
from fencepost.simulation.world.rules import Rule


class OpenNetwork:
    """What is between members and brokers where nothing is to be disturbed."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def cut_all(self, name: str) -> None:
        """There is nothing that could be cut."""


class RealWorld:
    """One run's world. Its members' hosts are there from the beginning, as in the simulated one."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        members: int,
        client: m.ClientName,
        bootstrap_servers: str,
        time: RealTime,
        happenings: Happenings,
        ledger: Ledger,
        nursery: Nursery,
        brokers: RealBrokers,
        network: DisturbedNetwork,
        flaw: str = "",
    ) -> None:
        self.scenario = scenario
        self.streams = Streams(seed)
        self.loop = time
        self.cluster = brokers
        self.network = network
        self.nursery = nursery
        self._client: m.ClientName = client
        self._servers = bootstrap_servers
        self._happenings = happenings
        self._ledger = ledger
        self._flaw = flaw
        self._restarts = self.streams.samples("restarts", scenario.application.restart.quantiles)
        self._starts = self.streams.samples("starts", scenario.group.start.quantiles)
        self._owned: dict[str, set[TopicPartition]] = {}
        self.on_calm: Callable[[], None] = _nothing
        """Called when the faults end; brokers may still have to come back."""
        width = len(str(members))
        names = [f"member-{number:0{width}}" for number in range(1, members + 1)]
        self.members = {name: RealHost(name, self, name if scenario.group.static else None) for name in names}

    # -- what happens -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the members start."""
        for host in list(self.members.values())[: self.scenario.group.members]:
            host.wanted = True
            self.loop.schedule(self.now_us + self._starts.draw(), self._start, host)

    def _start(self, host: RealHost) -> None:
        if host.wanted:
            host.start()

    def restart_later(self, host: RealHost) -> None:
        """Start a host's next process after the time that a restart takes."""
        host.wanted = True
        self.loop.schedule(self.now_us + self._restarts.draw(), self._start, host)

    def calm(self) -> None:
        """Nothing disturbs the group from here on."""
        self.on_calm()

    def bring_back(self) -> None:
        """Who is to run runs."""
        for host in self.members.values():
            host.thaw_process()
            if host.wanted and host.status not in ALIVE:
                host.start()

    def stop_all(self) -> None:
        """The run is over: processes end in good order."""
        for host in self.members.values():
            host.thaw_process()
            host.stop(come_back=False)

    @property
    def alive(self) -> bool:
        """Whether any member's process lives."""
        return any(host.status in ALIVE for host in self.members.values())

    # -- what is heard ------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Microseconds since the start of the run."""
        return self.loop.now_us

    def tell(self, hook: str, *arguments: object) -> None:
        """Something happened in the world."""
        self._happenings.add(self.now_us, "", Told(hook, arguments))

    def note(self, host: str, what: str, at_us: int) -> None:
        """Something befell a member's host."""
        self._happenings.add(at_us, host, HostNoted(what))

    def hear(self, host: str, event: m.Event) -> None:
        """A member's process told something. Records count as processed while they are owned."""
        self._happenings.add(event.t_us, host, event)
        match event:
            case m.Up():
                self._owned[host] = set()
            case m.CalledBack(_, "assigned", "begin", partitions):
                self._owned.setdefault(host, set()).update(partitions)
            case m.CalledBack(_, "lost", "begin", partitions) | m.CalledBack(_, "revoked", "end", partitions):
                self._owned.setdefault(host, set()).difference_update(partitions)
            case m.Processed(_, partition, _, _, numbers) if partition in self._owned.get(host, ()):
                self._ledger.process(numbers)

    def fail(self, error: Exception) -> None:
        """End the run."""
        self.loop.fail(error)

    # -- members ------------------------------------------------------------------------------------------

    def terms(self, host: RealHost, process: int) -> m.Terms:
        """What the host's next process has to know."""
        group, application = self.scenario.group, self.scenario.application
        timeout_ms = self.scenario.network.request_timeout.ms
        topics, pattern = host.subscription
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

    def _bootstrap(self, name: str) -> str:
        """All brokers, another one first for each process."""
        servers = self._servers.split(",")
        random.Random(self.streams.number(f"bootstrap/{name}")).shuffle(servers)
        return ",".join(servers)


def _nothing() -> None:
    """Until somebody wants to know."""
