"""A client's host: a process with an engine of threads, which starts, fails, dies and is restarted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.transport import TransportError
from fencepost.member.streams.actions import MoveRefused, StreamsMoved
from fencepost.member.streams.application.driver import GlobalWork, StreamsDriver
from fencepost.member.streams.application.port import StreamThreadMember, ThreadEvents
from fencepost.member.streams.application.settings import check_process
from fencepost.member.streams.application.store import StateDirectory
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import STREAM_CLIENT, StreamClientState
from fencepost.member.streams.handler import Handlers, StreamThreadExceptionResponse
from fencepost.simulation.kernel.host import Host, HostClock
from fencepost.simulation.scenarios.scenario import ScenarioTopic
from fencepost.simulation.streams.failures import GLOBAL_FAILURES, Injected, answer, is_refusal
from fencepost.simulation.streams.member import SimulatedMember
from fencepost.simulation.streams.member_protocols import (
    SimulatedClassicStreamsMember,
    SimulatedStreamsGroupMember,
)
from fencepost.simulation.streams.reader import SimulatedReader

if TYPE_CHECKING:
    from fencepost.simulation.streams.world import StreamsWorld


class NoDirectory(StateDirectory):
    """A state directory without files: what is simulated keeps no stores."""

    def __init__(self) -> None:
        super().__init__(None, "simulated")
        self._taken = False

    @property
    def locked(self) -> bool:
        """True if it is taken."""
        return self._taken

    def lock(self) -> None:
        """Take it."""
        self._taken = True

    def clean(self, older_than_s: float) -> list[str]:
        """There is nothing to clean."""
        return []

    def size(self) -> int:
        """There is nothing in it."""
        return 0

    def close(self) -> None:
        """Release it."""
        self._taken = False


class WatchedEngine(StreamsDriver):
    """An engine that reports the failure about which the handler is asked."""

    failing = ""

    def global_failed(self, error: BaseException, *, ask: bool) -> None:
        """An exception left the global thread."""
        assert self.client.global_thread is not None
        self.failing = self.client.global_thread.name
        super().global_failed(error, ask=ask)

    def failed(self, thread: str, error: BaseException) -> None:
        """An exception left this thread."""
        self.failing = thread
        member = self.workers[thread].member
        if isinstance(member, SimulatedMember):
            member.broken_off = True
        super().failed(thread, error)


class StreamsClientHost(Host):
    """One host. Each start is a new process, with a client of its own."""

    def __init__(self, name: str, world: StreamsWorld) -> None:
        super().__init__(name, world.loop)
        self.world = world
        self.timer_delays = world.timer_delays
        self.rng = world.draws.small_random(f"client/{name}")
        self.clock = HostClock(self, offset_us=round(self.rng.uniform(0, 10**12)))
        self.process = 0
        """The number of the process."""
        self.process_id = ""
        self.engine: WatchedEngine | None = None
        self.members: dict[str, SimulatedMember] = {}
        """The newest member of each thread of this process, by the thread's name."""
        self.all_members: list[SimulatedMember] = []
        self.injected: list[Injected] = []
        self.refused = False
        """True if the group refused a member of this process for good, as it would one of the next."""
        self._batches = 0
        self.directory = NoDirectory()

    @property
    def is_processing(self) -> bool:
        """True if a thread of this process works on records."""
        return self._batches > 0

    @property
    def ended(self) -> bool:
        """True if no process runs."""
        return self.engine is None

    @property
    def state(self) -> StreamClientState | None:
        """State of the client; None while no process runs."""
        return None if self.engine is None else self.engine.client.state

    @property
    def has_threads(self) -> bool:
        """True if a thread lives."""
        return self.engine is not None and bool(self.engine.client.live)

    # -- the process -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process, if none runs."""
        if not self.ended:
            return
        world = self.world
        scenario = world.scenario
        group = scenario.group
        self.process += 1
        self.process_id = world.draws.uuid(f"client/{self.name}/{self.process}")
        self.members, self.all_members = {}, []
        self.injected = []
        self.refused = False
        self.directory = NoDirectory()
        handlers = Handlers()
        handlers.add(self._handle)
        self.engine = WatchedEngine(
            StreamsClient(self.name, group.threads, global_thread=scenario.global_topic is not None),
            check_process(self._process),
            self._make_member,
            handlers=handlers,
            directory=self.directory,
            runtime=self,
            commit_interval_s=world.scenario.application.commit_interval.ms / 1_000,
            cleanup_delay_s=600,
            metrics_interval_s=60,
            observer=self._observe,
            global_work=None if scenario.global_topic is None else self._global_work(scenario.global_topic),
        )
        self.engine.listener = self._listen
        world.on_start(self)
        self.spawn(self._start(self.engine), "main")

    def _global_work(self, topic: ScenarioTopic) -> GlobalWork:
        return GlobalWork(check_process(self._read_globally, most=2), lambda: SimulatedReader(self, topic))

    async def _read_globally(self, partition: TopicPartition, records: Sequence[int]) -> None:
        await self.pause_us(len(records) * self.world.processing_times.draw())

    def is_global(self, thread: str) -> bool:
        """Return true if that is the name of the global thread."""
        assert self.engine is not None
        one = self.engine.client.global_thread
        return one is not None and one.name == thread

    async def _start(self, engine: StreamsDriver) -> None:
        with contextlib.suppress(TransportError, *GLOBAL_FAILURES):  # the client is in ERROR then
            await engine.start()
        state = await engine.wait_ended()
        self.world.on_end(self, state)
        self.release()

    def inject(self, injected: Injected) -> None:
        """Let the next thread that gets to the place fail."""
        self.injected.append(injected)

    def wake(self) -> None:
        """Wake all threads, so that they look for what waits for them."""
        for member in self.members.values():
            member.wake()

    def freeze_process(self) -> None:
        """Freeze the process."""
        self.freeze()
        self._tell_of_members("freeze")
        self.world.application.on_host(self.name, "freeze")

    def thaw_process(self) -> None:
        """Resume the process, unless it has ended."""
        if self.frozen:
            self.world.application.on_host(self.name, "thaw")
            self.thaw()
            self._tell_of_members("thaw")

    def _tell_of_members(self, what: str) -> None:
        for thread in self.members:
            self.world.tell_member("on_member_host", thread, what)

    def close(self) -> None:
        """Close the client gracefully."""
        if self.engine is not None:
            self.spawn(self._close(self.engine), "close")

    @staticmethod
    async def _close(engine: StreamsDriver) -> None:
        await engine.close(None)

    def add_thread(self) -> None:
        """Start one more thread."""
        if self.engine is not None and self.engine.client.is_running:
            self.world.expect(self, +1)
            self.engine.add_thread()

    def remove_thread(self) -> None:
        """Let one thread end."""
        if self.engine is not None:
            self.spawn(self._remove(self.engine), "remove")

    async def _remove(self, engine: StreamsDriver) -> None:
        before = len(engine.client.live)
        runs = engine.client.is_running
        if runs and before:
            self.world.expect(self, -1)
        await engine.remove_thread(None)

    def crash(self) -> None:
        """End the process without notifying any peer."""
        if not self.ended:
            self.world.application.on_host(self.name, "crash")
            self.release()

    def restart_later(self) -> None:
        """Start the next process after a while, unless the application was shut down."""
        self.world.restart_later(self)

    def release(self) -> None:
        """Release what is left of an ended process."""
        self.engine = None
        self.end()
        for member in self.all_members:
            member.abandon()
        self._tell_of_members("crash")
        self.world.network.forget(self)
        self.cancel_tasks()

    # -- a runtime for the engine ------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Let time pass on this host: at least a microsecond, since a caller that looks again needs a later
        moment."""
        await self.pause_us(max(1, round(seconds * 1_000_000)) if seconds > 0 else 0)

    async def wait_for(
        self, work: Coroutine[Any, Any, None], told: asyncio.Event, grace_s: Callable[[], float]
    ) -> None:
        """Wait for this as long as it takes: the scenario's timeouts end each request."""
        await work

    def now(self) -> float:
        """Seconds of the world's clock."""
        return self.loop.now_us / 1_000_000

    # -- what runs in it ---------------------------------------------------------------------------------

    def _make_member(self, thread: str, events: ThreadEvents) -> StreamThreadMember:
        classic = self.world.scenario.group.protocol == "classic"
        make = SimulatedClassicStreamsMember if classic else SimulatedStreamsGroupMember
        member = self.members[thread] = make(self, thread, events)
        self.world.members[thread] = member
        self.all_members.append(member)
        self.world.tell_member("on_member_host", thread, "start")
        return member

    def _member_at_work(self) -> SimulatedMember:
        """Return the member of the thread that is running now."""
        assert self.engine is not None
        task = asyncio.current_task(self.loop)
        return next(self.members[name] for name, worker in self.engine.workers.items() if worker.task is task)

    async def _process(self, partition: TopicPartition, records: Sequence[int]) -> None:
        self.raise_injected("processing", "")
        commits = self._member_at_work().commits
        tenure = commits.tenure(partition)
        self._batches += 1
        try:
            await self.pause_us(len(records) * self.world.processing_times.draw())
        finally:
            self._batches -= 1
        commits.processed(partition, records[-1] + 1, tenure, self.loop.now_us)
        self.world.application.progress.processed(partition, records[0], records[-1] + 1)

    def raise_injected(self, where: str, thread: str) -> None:
        """Raise the failure that waits for a thread that gets here."""
        for injected in self.injected:
            if injected.where == where:
                self.injected.remove(injected)
                raise injected.error

    def _handle(self, error: BaseException) -> StreamThreadExceptionResponse:
        assert self.engine is not None
        self.refused = self.refused or is_refusal(error)
        self.world.on_failure(self, self.engine.failing, error)
        return answer(error)

    def _observe(self, step: StreamsMoved | MoveRefused) -> None:
        if not self.ended:
            self.world.on_step(self, step)

    def _listen(self, new: StreamClientState, old: StreamClientState) -> None:
        if self.ended:
            return
        self.world.on_listener(self, new, old)
        if new in (*STREAM_CLIENT.terminal, StreamClientState.PENDING_ERROR):
            self.close()  # as many applications do
