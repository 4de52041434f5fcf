"""Runs the machine of a client on an event loop: worker tasks, the global thread, services, listeners."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from fencepost.member.base.arguments import refused_awaitable
from fencepost.member.base.listener import PROGRAM_ENDS
from fencepost.member.base.log import log
from fencepost.member.streams.actions import (
    Action,
    AskForShutdown,
    CloseResources,
    Complain,
    EndGlobalThread,
    EndServices,
    EndThread,
    Level,
    MoveRefused,
    StartGlobalThread,
    StartServices,
    StartThread,
    StreamsMoved,
)
from fencepost.member.streams.application.changelog import Changelog
from fencepost.member.streams.application.port import GlobalReader, StreamThreadMember, ThreadEvents
from fencepost.member.streams.application.runtime import Runtime
from fencepost.member.streams.application.services import Metrics, Service
from fencepost.member.streams.application.settings import Processing
from fencepost.member.streams.application.store import StateDirectory
from fencepost.member.streams.application.worker import GlobalWorker, Worker
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import STREAM_CLIENT, StreamClientState
from fencepost.member.streams.handler import HandlerDecision, Handlers

MakeMember = Callable[[str, ThreadEvents], StreamThreadMember]
_SHORT_LIFE_S = 10.0
"""A thread that fails sooner than this after its start counts as failed at once."""
_FIRST_REST_S = 0.1
_LONGEST_REST_S = 10.0
"""Longest wait of a thread that replaces several failed ones, in seconds: each wait is twice the last."""

StateListener = Callable[[StreamClientState, StreamClientState], Any]
"""Takes the new state and the old one, as Kafka's does."""


class GlobalWork(NamedTuple):
    """The work of the global thread."""

    processing: Processing
    make_reader: Callable[[], GlobalReader]


class StreamsDriver:
    """One client at work. Use it on the loop's own thread.

    `make_member` makes the member of a thread of this name. `observer` receives each step of each machine.
    """

    def __init__(
        self,
        client: StreamsClient,
        processing: Processing,
        make_member: MakeMember,
        *,
        handlers: Handlers,
        directory: StateDirectory,
        runtime: Runtime,
        commit_interval_s: float,
        cleanup_delay_s: float,
        metrics_interval_s: float,
        global_work: GlobalWork | None = None,
        changelog: Changelog | None = None,
        observer: Callable[[StreamsMoved | MoveRefused], None] | None = None,
    ) -> None:
        self.client = client
        self.processing = processing
        self.make_member = make_member
        self.handlers = handlers
        self.directory = directory
        self.runtime = runtime
        self.changelog = changelog
        self.commit_interval_s = commit_interval_s
        self.records = 0
        self.commits = 0
        self.metrics: Metrics | None = None
        """The last metrics of the recorder."""
        self.listener: StateListener | None = None
        self.workers: dict[str, Worker] = {}
        self._short_lives: Counter[int] = Counter()
        """Number of threads of each number that failed one after the other, each soon after its start."""
        self.cleaner = Service("state directory cleaner", cleanup_delay_s, self._clean, at_once=False)
        self.recorder = Service("metrics recorder", metrics_interval_s, self._record, at_once=True)
        self._cleanup_delay_s = cleanup_delay_s
        self.observer = observer
        """Receives each step of each machine."""
        self.end_by: float | None = None
        """Time at which `close` returns, in the runtime's seconds; None if it waits as long as it takes."""
        self._global: GlobalWorker | None = None
        self._global_work = global_work
        self._queue: list[Action] = []
        self._carrying_out = False
        self._ended = asyncio.Event()

    # -- start and end -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; return when the global thread, if there is one, has caught up.

        :raises IllegalStreamsState: if the client was started or closed before.
        :raises StreamsError: if the state directory can't be used; the client may be started again then.
        """
        if self.client.state is StreamClientState.CREATED:
            self.directory.lock()
        self.carry_out(self.client.start())
        if self._global is not None:
            error = await self._global.started
            if error is not None:
                await self._ended.wait()
                raise error

    async def close(self, timeout_s: float | None) -> bool:
        """End in good order. Return true if it is over within the time; without one it waits as long as it
        takes.

        Threads divide the time between the last commit and leaving the group, so that they end within it. A
        thread that calls this itself does not wait: it would wait for its own end.
        """
        self.end_by = None if timeout_s is None else self.runtime.now() + timeout_s
        self.carry_out(self.client.close())
        if asyncio.current_task() in [worker.task for worker in self.workers.values()]:
            log(logging.WARNING, "close was called by a stream thread, and does not wait for its end")
            return self._ended.is_set()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            if not self._ended.is_set():
                log(logging.WARNING, "threads have not ended in time", threads=", ".join(self.workers))
        return self._ended.is_set()

    async def wait_ended(self) -> StreamClientState:
        """Wait until the client is in NOT_RUNNING or ERROR; return that state."""
        await self._ended.wait()
        return self.client.state

    def add_thread(self) -> str | None:
        """Start one more thread. Return its name; None if the client does not run."""
        name, actions = self.client.add_thread()
        self.carry_out(actions)
        return name

    async def remove_thread(self, timeout_s: float | None) -> str | None:
        """End a thread, the calling one only if there is no other, and wait for that. Return None if there is
        no thread.

        :raises TimeoutError: if it takes longer; it still ends.
        """
        current = asyncio.current_task()
        caller = next((name for name, worker in self.workers.items() if worker.task is current), None)
        name, actions = self.client.remove_thread(caller)
        worker = self.workers.get(name or "")
        self.carry_out(actions)
        if worker is not None and name != caller:
            await asyncio.wait_for(worker.done.wait(), timeout_s)
        return name

    # -- events of threads ---------------------------------------------------------------------------------

    def failed(self, thread: str, error: BaseException) -> None:
        """Call the handler for an exception that left a thread, and follow its decision."""
        reason = str(error) or type(error).__name__
        log(logging.ERROR, "a stream thread failed", thread=thread, error=reason, exc_info=error)
        number = self.client.threads[thread].number
        if self.runtime.now() - self.workers[thread].started_at < _SHORT_LIFE_S:
            self._short_lives[number] += 1
        else:
            del self._short_lives[number]
        self.carry_out(self.client.thread_failed(thread, self.handlers.ask(thread, error)))

    def ended(self, thread: str) -> None:
        """Note that everything of a thread is closed."""
        del self.workers[thread]
        self.carry_out(self.client.thread_ended(thread))

    def global_failed(self, error: BaseException, *, ask: bool) -> None:
        """Handle an exception that left the global thread; one of its start is raised to the caller of the
        start."""
        answer = HandlerDecision(None)
        if ask:
            log(logging.ERROR, "the global thread failed", exc_info=error)
            answer = self.handlers.ask(f"{self.client.name}-GlobalStreamThread", error)
        self.carry_out(self.client.global_failed(answer))

    # -- carrying out --------------------------------------------------------------------------------------

    def carry_out(self, actions: tuple[Action, ...]) -> None:
        """Carry these out, after those that are being carried out: listeners see all in order."""
        self._queue.extend(actions)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._queue:
                action = self._queue.pop(0)
                self._PERFORM[type(action)](self, action)
        finally:
            self._carrying_out = False

    def _moved(self, action: StreamsMoved) -> None:
        if self.observer is not None:
            self.observer(action)
        log(
            logging.DEBUG,
            f"{action.level} moved",
            name=action.name,
            by=action.event,
            source=action.source,
            target=action.target,
        )
        if action.level is not Level.CLIENT:
            return
        self._tell_listener(action)
        if action.target in STREAM_CLIENT.terminal:
            self._ended.set()

    def _tell_listener(self, step: StreamsMoved) -> None:
        """Call the application's listener with the client's step, before anything follows from it."""
        if self.listener is not None:
            try:
                returned = self.listener(StreamClientState(step.target), StreamClientState(step.source))
                refused = refused_awaitable("the state listener", returned)
                if refused is not None:
                    log(logging.ERROR, refused)
            except PROGRAM_ENDS:
                raise
            except BaseException as error:  # such as the CancelledError of a future that it has read
                log(logging.ERROR, "the state listener failed", exc_info=error)

    def _refused(self, action: MoveRefused) -> None:
        if self.observer is not None:
            self.observer(action)
        log(
            logging.DEBUG,
            f"{action.level} does not move",
            name=action.name,
            by=action.event,
            source=action.source,
            target=action.target,
        )

    def _start_thread(self, action: StartThread) -> None:
        worker = self.workers[action.thread] = Worker(self, action.thread)
        worker.rest_s = self._rest_s(action.thread)
        if action.asks_for_shutdown:
            worker.member.ask_for_shutdown()
        worker.task = self.runtime.spawn(worker.run(), action.thread)

    def _rest_s(self, thread: str) -> float:
        """Return the wait of a thread before it starts, in seconds: none, unless those before it failed at
        once."""
        failed = self._short_lives[self.client.threads[thread].number]
        if failed < 2:
            return 0
        rest_s = min(_FIRST_REST_S * 2.0 ** min(failed - 2, 30), _LONGEST_REST_S)
        text = "a stream thread waits before it starts: those before it failed at once"
        log(logging.WARNING, text, thread=thread, failed=failed, seconds=rest_s)
        return rest_s

    def _end_thread(self, action: EndThread) -> None:
        del self._short_lives[self.client.threads[action.thread].number]
        self.workers[action.thread].stop()

    def _ask_for_shutdown(self, action: AskForShutdown) -> None:
        self.workers[action.thread].member.ask_for_shutdown()

    def _start_global_thread(self, _: StartGlobalThread) -> None:
        assert self._global_work is not None
        work = self._global_work
        self._global = GlobalWorker(self, work.processing, work.make_reader())
        self.runtime.spawn(self._global.run(), "global stream thread")

    def _end_global_thread(self, _: EndGlobalThread) -> None:
        assert self._global is not None
        self._global.stop()

    def _start_services(self, _: StartServices) -> None:
        self.cleaner.start(self.runtime)
        self.recorder.start(self.runtime)

    def _end_services(self, _: EndServices) -> None:
        self.cleaner.stop()
        self.recorder.stop()

    def _close_resources(self, _: CloseResources) -> None:
        self.directory.close()
        if self.changelog is None:
            self.carry_out(self.client.resources_closed())
        else:
            self.runtime.spawn(self._close_changelog(self.changelog), "changelog")

    async def _close_changelog(self, changelog: Changelog) -> None:
        try:
            await changelog.close()
        finally:
            self.carry_out(self.client.resources_closed())

    def _complain(self, action: Complain) -> None:
        log(logging.ERROR if action.error else logging.WARNING, action.text, client=self.client.name)

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        StreamsMoved: _moved,
        MoveRefused: _refused,
        StartThread: _start_thread,
        EndThread: _end_thread,
        AskForShutdown: _ask_for_shutdown,
        StartGlobalThread: _start_global_thread,
        EndGlobalThread: _end_global_thread,
        StartServices: _start_services,
        EndServices: _end_services,
        CloseResources: _close_resources,
        Complain: _complain,
    }
    """The method that carries out each kind of action."""

    # -- services ------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        if self.client.state is StreamClientState.RUNNING:
            for name in self.directory.clean(self._cleanup_delay_s):
                log(logging.INFO, "an old store was removed", store=name)

    def _record(self) -> None:
        client = self.client
        self.metrics = Metrics(
            at_s=self.runtime.now(),
            live_threads=len(client.live),
            records=self.records,
            commits=self.commits,
            failures=client.failures,
            replaced=client.replaced,
            store_bytes=self.directory.size(),
        )
