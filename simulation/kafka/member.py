"""A member's host: a process with a consumer and an application, which starts, stops, crashes and freezes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.leave import CloseOption
from fencepost.simulation.kafka.application import SimulatedApplication
from fencepost.simulation.kafka.drivers import MatchingSubscription, classic_driver, consumer_driver
from fencepost.simulation.kafka.requests import OffsetsSince
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import Host, HostClock
from fencepost.simulation.kernel.supervisor import ALIVE, ProcessStatus

if TYPE_CHECKING:
    from fencepost.simulation.kafka.world import KafkaWorld
    from fencepost.simulation.kernel.observers import Subscribed


class CallbackRaised(Exception):
    """The exception that an application's rebalance callback raises if a fault makes it do so."""


class MemberHost(Host):
    """One host. Each start is a new process with a new member id; a static one keeps its instance id."""

    def __init__(self, name: str, world: KafkaWorld, instance_id: str | None) -> None:
        super().__init__(name, world.loop)
        self.world = world
        self.timer_delays = world.timer_delays
        self.instance_id = instance_id
        self.status = ProcessStatus.STOPPED
        self.wanted = False
        """True if the host is meant to run: a supervisor starts it again when its process ends by itself."""
        self.member_id: MemberId = ""
        self.driver: MemberDriver | None = None
        self.application: SimulatedApplication | None = None
        self.protocol: str = world.scenario.group.protocol
        """The group.protocol of the next process."""
        self.strategies: tuple[str, ...] = (world.scenario.group.partition_assignment_strategy,)
        """The assignors that it offers if that is the classic protocol."""
        self.topics = world.scenario.group.topics
        self.pattern = world.scenario.group.pattern
        self._callback_raises = False
        self._callback_stall_us = 0
        self._stall_until_us = 0
        self.rng = world.draws.small_random(f"member/{name}")
        drift = world.scenario.application.clock_drift_ppm
        self.clock = HostClock(
            self,
            drift_ppm=round(self.rng.uniform(-drift, drift)),
            offset_us=round(self.rng.uniform(0, 10**12)),
        )
        self._processes = 0
        self._matching: MatchingSubscription | None = None

    # -- the process --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process, if none runs."""
        self.wanted = True
        if self.status in ALIVE:
            return
        world = self.world
        self._processes += 1
        transport = SimulatedTransport(
            self,
            world.network,
            world.cluster.brokers,
            first=self._processes + int(self.rng.uniform(0, 1_000)),
            timeout_us=world.scenario.network.request_timeout.us,
            on_search=self._searches,
            on_lookup=self._looks_up,
        )
        self.status = ProcessStatus.RUNNING
        classic = self.protocol == "classic"
        self.known_as("" if classic else world.draws.uuid(f"member/{self.name}/{self._processes}"))
        self.tell("start")
        self.driver = (classic_driver if classic else consumer_driver)(self, transport)
        self._matching = MatchingSubscription(self, self.driver, transport) if classic else None
        self.application = SimulatedApplication(self, self.driver)
        self.resubscribe()
        self.spawn(self._live(self.driver, self.application))

    def known_as(self, member_id: MemberId) -> None:
        """Note the id of the process's member; a classic member gets it from the coordinator."""
        self.member_id = member_id
        if member_id:
            self.world.hosts_by_member[member_id] = self.name

    def _searches(self) -> None:
        for hook in self.world.hooks["on_member_search"]:
            hook(self.name, self.world.loop.now_us)

    def _looks_up(self, request: object) -> None:
        if isinstance(request, OffsetsSince):  # its time is another one each time
            request = msgspec.structs.replace(request, since_us=0)
        for hook in self.world.hooks["on_member_lookup"]:
            hook(self.name, request, self.world.loop.now_us)

    async def _live(self, driver: MemberDriver, application: SimulatedApplication) -> None:
        """Run the process."""
        error = await application.run()
        self.status = ProcessStatus.STOPPING
        forever = self.instance_id is not None and not self.wanted and error is None
        await driver.close(CloseOption.LEAVE_GROUP if forever else CloseOption.DEFAULT)
        self._ended(ProcessStatus.STOPPED, "stopped")
        if self.wanted:
            self.restart_later()

    def stop(self, *, come_back: bool) -> None:
        """End the process cleanly; with `come_back` it is started again after the restart time.

        A frozen process learns of this when it thaws.
        """
        self.wanted = come_back
        if self.status in (ProcessStatus.RUNNING, ProcessStatus.FROZEN):
            self.run(self._stop, None)

    def _stop(self, _: object) -> None:
        if self.application is not None:
            self.tell("stop")
            self.application.stop()

    def crash(self) -> None:
        """Kill the process."""
        if self.status not in ALIVE:
            return
        self._ended(ProcessStatus.CRASHED, "crash")

    def vanish(self) -> None:
        """End the process at the end of the run: leave no task behind, and notify no observer."""
        if self.status in ALIVE:
            self._release(ProcessStatus.STOPPED)

    def _ended(self, status: ProcessStatus, what: str) -> None:
        self._release(status)
        self.tell(what)

    def _release(self, status: ProcessStatus) -> None:
        driver, self.driver = self.driver, None
        self.status = status
        self.application = None
        self._callback_raises = False
        self._callback_stall_us = 0
        self._stall_until_us = 0
        self.end()
        if driver is not None:
            driver.abandon()
        self.world.network.forget(self)
        self.cancel_tasks()

    def freeze_process(self) -> None:
        """Freeze the process: timers, deliveries and the application wait."""
        if self.status is ProcessStatus.RUNNING:
            self.status = ProcessStatus.FROZEN
            self.freeze()
            self.tell("freeze")

    def thaw_process(self) -> None:
        """Let the process continue where it stopped."""
        if self.status is ProcessStatus.FROZEN:
            self.status = ProcessStatus.RUNNING
            self.tell("thaw")
            self.thaw()

    def restart_later(self) -> None:
        """Start the next process after the restart time."""
        self.world.supervisor.restart_later(self)

    def slow_callback(self, lasts_us: int) -> None:
        """Make the process's next callback take that much longer."""
        self._callback_stall_us = max(lasts_us, self._callback_stall_us)

    def fail_callback(self) -> None:
        """Make the process's next callback raise."""
        self._callback_raises = True

    def stall(self, until_us: int) -> None:
        """Keep the application busy until that time; if it is frozen, from the time it thaws."""
        self.run(self._stall, until_us)

    def _stall(self, until_us: int) -> None:
        if self.application is not None:
            self._stall_until_us = max(until_us, self._stall_until_us)
            self.application.stall(self._stall_until_us)

    @property
    def stopping(self) -> bool:
        """True if the process is stopping or has ended."""
        return self.status not in (ProcessStatus.RUNNING, ProcessStatus.FROZEN)

    @property
    def subscription(self) -> Subscribed:
        """The topics and the expression that its application subscribes to."""
        names = self.topics if self.topics is not None or self.pattern else self.world.all_topics
        return frozenset(names or ()), self.pattern

    def resubscribe(self) -> None:
        """Set the member's subscription; a frozen member receives it when it thaws."""
        self.run(self._resubscribe, None)

    def _resubscribe(self, _: object) -> None:
        if self.driver is not None and not self.stopping:
            names, pattern = self.subscription
            if self._matching is None:
                self.driver.subscribe(names, pattern=pattern)
            else:
                self._matching.subscribe(names, pattern)

    # -- inside the process -------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Run the application's callback."""
        await self._callback()

    async def on_partitions_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Run the application's callback."""
        if (application := self.application) is not None:
            await application.before_release(tuple(partitions))
        await self._callback()

    async def on_partitions_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Run the application's callback."""
        if (application := self.application) is not None:
            await application.lost(tuple(partitions))
        await self._callback()

    async def _callback(self) -> None:
        stall, self._callback_stall_us = self._callback_stall_us, 0
        await self.pause_us(self.world.callback_times.draw() + stall)
        if self._callback_raises:
            self._callback_raises = False
            raise CallbackRaised("the callback raised")

    def tell(self, what: str) -> None:
        """Notify observers of this host's new state."""
        for hook in self.world.hooks["on_member_host"]:
            hook(self.name, what, self.loop.now_us)
