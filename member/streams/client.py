"""One client (one instance of an application), as a pure state machine over its threads.

Inputs are method calls; each returns the actions that the shell has to carry out, in order. The client's
state is derived from those of all threads, after every input. Nothing here waits: the outcome of an action is
fed back as another input, under the thread's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.member.streams.actions import (
    Action,
    AskForShutdown,
    CloseResources,
    Complain,
    EndGlobalThread,
    EndServices,
    EndThread,
    Level,
    StartGlobalThread,
    StartServices,
    StartThread,
)
from fencepost.member.streams.client_states import RUNNING, STREAM_CLIENT
from fencepost.member.streams.client_states import StreamClientEvent as E
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.errors import IllegalStreamsState
from fencepost.member.streams.handler import HandlerDecision
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread import Moving, StreamThread
from fencepost.member.streams.thread_states import GLOBAL_THREAD, GlobalThreadEvent, GlobalThreadState
from fencepost.member.streams.thread_states import StreamThreadState as T

Actions = tuple[Action, ...]

_REBALANCING = (T.PARTITIONS_REVOKED, T.PARTITIONS_ASSIGNED)


class StreamsClient(Moving[S, E]):
    """The threads of one client, with the client's state and its failures that follow from theirs.

    `escalates` is true if its members can ask the group to shut the application down; if they can't,
    SHUTDOWN_APPLICATION shuts this client down, and logs that.
    """

    __slots__ = (
        "_actions",
        "_before_disconnect",
        "_closing_resources",
        "_global_launched",
        "escalates",
        "failures",
        "global_thread",
        "replaced",
        "shutdown_requested",
        "shutdown_told",
        "threads",
    )

    def __init__(
        self, client_id: str, threads: int, *, global_thread: bool = False, escalates: bool = True
    ) -> None:
        self._actions: list[Action] = []
        super().__init__(STREAM_CLIENT, Level.CLIENT, client_id, self._actions)
        self.escalates = escalates
        self.threads: dict[str, StreamThread] = {}
        """All threads by name; dead ones until their index is reused."""
        for _ in range(threads):
            self._new_thread()
        self.global_thread: Moving[GlobalThreadState, GlobalThreadEvent] | None = None
        if global_thread:
            name = f"{client_id}-GlobalStreamThread"
            self.global_thread = Moving(GLOBAL_THREAD, Level.GLOBAL, name, self._actions)
        self.shutdown_requested = False
        """A handler of this client asked for the shutdown of the whole application. It stays true."""
        self.shutdown_told = False
        """The group asked a thread to shut the application down."""
        self.failures = 0
        """Uncaught exceptions of threads."""
        self.replaced = 0
        """Number of threads that took the place of one that failed. Nothing limits it: watch it."""
        self._before_disconnect = S.REBALANCING
        self._closing_resources = False
        self._global_launched = False

    # -- state -------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True if it was started, and is not about to end."""
        return self.state in RUNNING

    @property
    def is_connected(self) -> bool:
        """True if it runs, and every live thread has its connection."""
        return self.is_running and all(thread.state is not T.DISCONNECTED for thread in self.live)

    @property
    def live(self) -> tuple[StreamThread, ...]:
        """The threads that are not about to end."""
        return tuple(thread for thread in self.threads.values() if thread.is_live)

    def thread_states(self) -> Mapping[str, T]:
        """All threads' states by name."""
        return {name: thread.state for name, thread in self.threads.items()}

    # -- start and end -----------------------------------------------------------------------------------

    def start(self) -> Actions:
        """Start, the global thread before all others.

        :raises IllegalStreamsState: if it was started, or closed, before: an instance starts once.
        """
        if self.state is not S.CREATED:
            raise IllegalStreamsState(f"a client starts once; it is {self.state}")
        self.move(E.STARTED, S.REBALANCING)
        if self.global_thread is not None:
            self._global_launched = True
            self._actions.append(StartGlobalThread())
        else:
            self._start_threads()
        return self._done()

    def _start_threads(self) -> None:
        for thread in self.live:
            self._launch(thread)
        self._actions.append(StartServices())

    def close(self) -> Actions:
        """End in good order. In PENDING_ERROR and ERROR it only logs a warning (KIP-696)."""
        if self.state in (S.PENDING_ERROR, S.ERROR):
            self.move(E.CLOSE, S.PENDING_SHUTDOWN)
            self._actions.append(Complain(f"close has no effect: the client is in {self.state}"))
        elif self.state is S.CREATED or self.is_running:
            self._shut_down(E.CLOSE, S.PENDING_SHUTDOWN)
        return self._done()

    def _close_to_error(self) -> None:
        """End for good. If the client is about to end already, it ends in the same way as before."""
        if self.is_running:
            self._shut_down(E.FAILED, S.PENDING_ERROR)
        else:
            self.move(E.FAILED, S.PENDING_ERROR)

    def _shut_down(self, event: E, target: S) -> None:
        started = self.state is not S.CREATED
        self.move(event, target)
        if started:
            self._actions.append(EndServices())
        for thread in self.live:
            self._end(thread)

    def _end(self, thread: StreamThread) -> None:
        thread.shut_down()
        if thread.launched:
            self._actions.append(EndThread(thread.name))
        else:
            thread.ended()

    def resources_closed(self) -> Actions:
        """Note that the store is closed, and the state directory unlocked."""
        self.move(E.CLOSED, S.NOT_RUNNING if self.state is S.PENDING_SHUTDOWN else S.ERROR)
        return self._done()

    # -- events of threads ---------------------------------------------------------------------------------

    def thread_started(self, name: str) -> tuple[bool, Actions]:
        """Note that the thread runs. Return false if it was stopped before it could: it has only to end."""
        started = self.threads[name].started()
        return started, self._done()

    def partitions_revoked(self, name: str) -> Actions:
        """Note that a rebalance takes partitions from a thread, or none; or that all of them are lost."""
        self.threads[name].revoked()
        return self._done()

    def partitions_assigned(self, name: str) -> Actions:
        """Note that a rebalance gives a thread partitions, or none."""
        self.threads[name].assigned()
        return self._done()

    def tasks_ready(self, name: str) -> Actions:
        """Note that a thread has restored its tasks."""
        self.threads[name].ready()
        return self._done()

    def connection(self, name: str, *, connected: bool) -> Actions:
        """Take in the new result of the `is_connected()` of a thread's member."""
        self.threads[name].connection(connected=connected)
        return self._done()

    def thread_failed(self, name: str, answer: HandlerDecision) -> Actions:
        """Follow the decision about an exception that left a thread. The thread closes now; `thread_ended`
        follows."""
        self.failures += 1
        own_end = self.threads[name].shut_down()
        if answer.complaint is not None:
            self._actions.append(Complain(answer.complaint, error=True))
        match answer.response:
            case Response.REPLACE_THREAD:
                self._replace(name, own_end=own_end)
            case Response.SHUTDOWN_CLIENT:
                self._close_to_error()
            case Response.SHUTDOWN_APPLICATION:
                self._shut_application_down()
        return self._done()

    def _replace(self, name: str, *, own_end: bool) -> None:
        """Start a new thread in place of one that failed, unless that one was about to end anyway
        (KAFKA-20873)."""
        if not own_end:
            self._actions.append(Complain(f"{name} failed while it was closed: it is not replaced"))
        elif not self.is_running:
            self._actions.append(Complain(f"{name} is not replaced: the client is in {self.state}"))
        else:
            self.replaced += 1
            self._launch(self._new_thread(self.threads[name]))

    def _shut_application_down(self) -> None:
        """Let every thread ask that can still send to the group; the one that failed, too.

        The client goes on until the group responds. A client without any other thread gets one that asks, for
        it would not receive the response otherwise (KAFKA-12537).
        """
        if not self.escalates:
            text = "the members' protocol can't ask the group to shut down: only this client is shut down"
            self._actions.append(Complain(text, error=True))
            self._close_to_error()
            return
        self._ask_all()
        if self.is_running and not self.live:
            self._launch(self._new_thread())

    def _ask_all(self) -> None:
        self.shutdown_requested = True
        for thread in self.threads.values():
            if thread.launched and thread.state is not T.DEAD:
                self._actions.append(AskForShutdown(thread.name))

    def shutdown_received(self, name: str) -> Actions:
        """Take in that the group shuts the application down, as a thread's member reports."""
        self.shutdown_told = True
        if self.is_running:
            self._actions.append(Complain(f"{name} received the request to shut the application down"))
        self._close_to_error()
        return self._done()

    def thread_ended(self, name: str) -> Actions:
        """Note that everything of a thread is closed, and that it has left the group."""
        self.threads[name].ended()
        if self.shutdown_requested and self.is_running and not self.live:
            self._close_to_error()
        return self._done()

    # -- the global thread ---------------------------------------------------------------------------------

    def global_ready(self) -> Actions:
        """Note that the global thread has caught up: the others may start."""
        assert self.global_thread is not None
        if self.global_thread.move(GlobalThreadEvent.READY, GlobalThreadState.RUNNING):
            self._start_threads()
        return self._done()

    def global_failed(self, answer: HandlerDecision) -> Actions:
        """Take in that an exception left the global thread. The client can't do without it: it always ends in
        ERROR."""
        assert self.global_thread is not None
        self.failures += 1
        self.global_thread.move(GlobalThreadEvent.SHUTDOWN, GlobalThreadState.PENDING_SHUTDOWN)
        if answer.complaint is not None:
            self._actions.append(Complain(answer.complaint, error=True))
        if answer.response is Response.REPLACE_THREAD:
            text = "the global thread can't be replaced: the client is shut down"
            self._actions.append(Complain(text, error=True))
        elif answer.response is Response.SHUTDOWN_APPLICATION:
            if self.escalates and any(thread.state is not T.CREATED for thread in self.live):
                self._ask_all()
            else:
                text = "no thread can tell the group to shut down: only this client is shut down"
                self._actions.append(Complain(text, error=True))
        self._close_to_error()
        return self._done()

    def global_ended(self) -> Actions:
        """Note that everything of the global thread is closed."""
        assert self.global_thread is not None
        self.global_thread.move(GlobalThreadEvent.ENDED, GlobalThreadState.DEAD)
        return self._done()

    # -- more and fewer threads (KIP-663) ------------------------------------------------------------------

    def add_thread(self) -> tuple[str | None, Actions]:
        """Start a thread. Return its name; None, with a warning, if the client does not run."""
        if not self.is_running:
            self._actions.append(Complain(f"no thread is added: the client is in {self.state}"))
            return None, self._done()
        thread = self._new_thread()
        if self.global_thread is None or self.global_thread.state is not GlobalThreadState.CREATED:
            self._launch(thread)
        return thread.name, self._done()

    def remove_thread(self, caller: str | None = None) -> tuple[str | None, Actions]:
        """Let a live thread end, the caller only if there is no other. Return its name; None if there is no
        thread."""
        if not self.is_running or not self.live:
            self._actions.append(Complain(f"no thread is removed: the client is in {self.state}"))
            return None, self._done()
        others = [thread for thread in self.live if thread.name != caller]
        thread = (others or list(self.live))[0]
        self._end(thread)
        return thread.name, self._done()

    def _new_thread(self, replaced: StreamThread | None = None) -> StreamThread:
        """Make a thread under the lowest index that is free; one that is still closing keeps its own."""
        for name in [name for name, thread in self.threads.items() if thread.state is T.DEAD]:
            del self.threads[name]
        index = _lowest_free({thread.index for thread in self.threads.values()})
        number = (
            replaced.number if replaced else _lowest_free({each.number for each in self.threads.values()})
        )
        thread = StreamThread(self.name, index, number, self._actions)
        self.threads[thread.name] = thread
        return thread

    def _launch(self, thread: StreamThread) -> None:
        thread.launched = True
        self._actions.append(StartThread(thread.name, self.shutdown_requested))

    # -- after every input -----------------------------------------------------------------------------------

    def _done(self) -> Actions:
        """Derive the client's state from its threads, and return the actions."""
        if self.is_running:
            self._ask_threads()
        elif self.state in (S.PENDING_SHUTDOWN, S.PENDING_ERROR):
            self._close_the_rest()
        actions = tuple(self._actions)
        self._actions.clear()
        return actions

    def _ask_threads(self) -> None:
        live = self.live
        if live and all(thread.state is T.DISCONNECTED for thread in live):
            if self.state is not S.DISCONNECTED:
                self._before_disconnect = self.state
                self.move(E.DISCONNECTED, S.DISCONNECTED)
            return
        target = self._derived(live)
        if target is not self.state:
            self.move(E.RUNNING if target is S.RUNNING else E.REBALANCING, target)

    def _derived(self, live: tuple[StreamThread, ...]) -> S:
        """Return the client's state that follows from its threads; the previous one if they imply none."""
        before = self._before_disconnect if self.state is S.DISCONNECTED else self.state
        if any(thread.underneath in _REBALANCING for thread in live):
            return S.REBALANCING
        if self.global_thread is not None and self.global_thread.state is not GlobalThreadState.RUNNING:
            return before
        if live and all(thread.underneath is T.RUNNING for thread in live):
            return S.RUNNING
        # Threads that end do not count; a client that never had a thread runs with its global thread.
        return S.RUNNING if not self.threads and self.global_thread is not None else before

    def _close_the_rest(self) -> None:
        """End the global thread once the threads are dead, and after it everything else."""
        if any(thread.state is not T.DEAD for thread in self.threads.values()):
            return
        one = self.global_thread
        if one is not None and one.state in (GlobalThreadState.CREATED, GlobalThreadState.RUNNING):
            one.move(GlobalThreadEvent.SHUTDOWN, GlobalThreadState.PENDING_SHUTDOWN)
            if self._global_launched:
                self._actions.append(EndGlobalThread())
            else:
                one.move(GlobalThreadEvent.ENDED, GlobalThreadState.DEAD)
        if (one is None or one.state is GlobalThreadState.DEAD) and not self._closing_resources:
            self._closing_resources = True
            self._actions.append(CloseResources())


def _lowest_free(taken: set[int]) -> int:
    """Return the lowest number from 1 on that is not taken."""
    return next(each for each in range(1, len(taken) + 2) if each not in taken)
