"""A Streams client under anything that its shell may say, against what must hold at every moment."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencepost.member.streams.actions import (
    Action,
    AskForShutdown,
    CloseResources,
    EndGlobalThread,
    EndServices,
    EndThread,
    Level,
    StartGlobalThread,
    StartServices,
    StartThread,
    StreamsMoved,
)
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import STREAM_CLIENT
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.handler import HandlerDecision
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import GLOBAL_THREAD, STREAM_THREAD
from fencepost.member.streams.thread_states import GlobalThreadState as G
from fencepost.member.streams.thread_states import StreamThreadState as T

TABLES = {Level.CLIENT: STREAM_CLIENT, Level.THREAD: STREAM_THREAD, Level.GLOBAL: GLOBAL_THREAD}
ANSWERS = st.sampled_from([None, *Response])
TERMINAL = (S.NOT_RUNNING, S.ERROR)


class Shell(RuleBasedStateMachine):
    """Carries actions out as late, and in as odd an order, as a real shell might."""

    def __init__(self) -> None:
        super().__init__()
        self.client = StreamsClient("app", 0)
        self.tasks: dict[str, bool] = {}
        """Threads that a task runs for, and whether they have said that they started."""
        self.asking: set[str] = set()
        self.services = False
        self.global_runs = False
        self.resources = True
        self.seen: dict[str, str] = {}
        self.entered: list[str] = []
        self.error_is_due = False

    @initialize(threads=st.integers(0, 3), global_thread=st.booleans(), escalates=st.booleans())
    def make(self, threads: int, global_thread: bool, escalates: bool) -> None:
        self.client = StreamsClient("app", threads, global_thread=global_thread, escalates=escalates)

    def carry_out(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case StreamsMoved():
                    self._moved(action)
                case StartThread():
                    assert action.thread not in self.tasks, "an index was used twice"
                    self.tasks[action.thread] = False
                    if action.asks_for_shutdown:
                        self.asking.add(action.thread)
                case EndThread() | AskForShutdown():
                    assert action.thread in self.tasks
                    if isinstance(action, AskForShutdown):
                        self.asking.add(action.thread)
                case StartServices():
                    assert not self.services
                    self.services = True
                case EndServices():
                    self.services = False
                case StartGlobalThread():
                    self.global_runs = True
                case EndGlobalThread():
                    assert self.global_runs
                    assert not self.tasks
                case CloseResources():
                    assert self.resources
                    assert not self.tasks
                    assert not self.global_runs
                    assert not self.services
                    self.resources = False

    def _moved(self, action: StreamsMoved) -> None:
        table = TABLES[action.level]
        assert (action.source, action.event, action.target) in {tuple(map(str, t)) for t in table.transitions}  # type: ignore[attr-defined]
        before = self.seen.get(action.name, table.initial)  # type: ignore[attr-defined]
        if before == "DEAD":  # a new thread under an old index
            before = table.initial  # type: ignore[attr-defined]
        assert action.source == before, "listeners see every step, in order"
        self.seen[action.name] = action.target
        if action.level is Level.CLIENT:
            self.entered.append(action.target)

    # -- inputs ------------------------------------------------------------------------------------------

    def alive(self) -> list[str]:
        return sorted(name for name, started in self.tasks.items() if started)

    @precondition(lambda self: self.client.state is S.CREATED)
    @rule()
    def start(self) -> None:
        self.carry_out(self.client.start())

    @rule()
    def close(self) -> None:
        before = self.client.state
        self.carry_out(self.client.close())
        if before in (S.PENDING_ERROR, *TERMINAL):
            assert self.client.state is before

    @precondition(lambda self: any(not started for started in self.tasks.values()))
    @rule(data=st.data())
    def a_thread_starts(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, started in self.tasks.items() if not started)))
        started, actions = self.client.thread_started(name)
        self.carry_out(actions)
        self.tasks[name] = True
        if not started:
            self._end(name)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), what=st.sampled_from(["revoked", "assigned", "ready", "lost", "back"]))
    def something_happens_to_a_thread(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        client = self.client
        match what:
            case "revoked":
                self.carry_out(client.partitions_revoked(name))
            case "assigned":
                self.carry_out(client.partitions_assigned(name))
            case "ready":
                self.carry_out(client.tasks_ready(name))
            case _:
                self.carry_out(client.connection(name, connected=what == "back"))

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), response=ANSWERS)
    def a_thread_fails(self, data: st.DataObject, response: Response | None) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        client = self.client
        live, own_end = len(client.live), client.threads[name].is_live
        running = client.is_running
        self.carry_out(client.thread_failed(name, HandlerDecision(response)))
        if running:
            ends = response is Response.SHUTDOWN_CLIENT
            ends |= response is Response.SHUTDOWN_APPLICATION and not client.escalates
            assert (client.state is S.PENDING_ERROR) is ends
            self.error_is_due |= ends or response is Response.SHUTDOWN_APPLICATION
            if response is Response.REPLACE_THREAD and own_end:
                assert len(client.live) == live
            if client.shutdown_requested and not ends and client.live:
                assert {t.name for t in client.live if t.launched} <= self.asking
        self._end(name)

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def the_group_answers_that_it_is_to_be_shut_down(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.alive()))
        running = self.client.is_running
        self.error_is_due |= running
        self.carry_out(self.client.shutdown_received(name))
        assert not running or self.client.state is S.PENDING_ERROR

    @precondition(lambda self: any(self.client.threads[n].state is T.PENDING_SHUTDOWN for n in self.alive()))
    @rule(data=st.data())
    def a_thread_ends(self, data: st.DataObject) -> None:
        ending = [n for n in self.alive() if self.client.threads[n].state is T.PENDING_SHUTDOWN]
        self._end(data.draw(st.sampled_from(ending)))

    def _end(self, name: str) -> None:
        del self.tasks[name]
        self.asking.discard(name)
        self.carry_out(self.client.thread_ended(name))

    @rule()
    def a_thread_is_added(self) -> None:
        live, running = len(self.client.live), self.client.is_running
        name, actions = self.client.add_thread()
        assert (name is not None) is running
        assert len(self.client.live) == live + running
        self.carry_out(actions)

    @rule()
    def a_thread_is_removed(self) -> None:
        live, running = len(self.client.live), self.client.is_running
        name, actions = self.client.remove_thread()
        assert (name is not None) is (running and live > 0)
        assert len(self.client.live) == live - (name is not None)
        self.carry_out(actions)

    @precondition(lambda self: self.global_runs and self.client.global_thread.state is G.CREATED)
    @rule()
    def the_global_thread_has_caught_up(self) -> None:
        self.carry_out(self.client.global_ready())

    @precondition(lambda self: self.global_runs)
    @rule(response=ANSWERS)
    def the_global_thread_fails(self, response: Response | None) -> None:
        running = self.client.is_running
        self.error_is_due |= running
        self.carry_out(self.client.global_failed(HandlerDecision(response)))
        assert not running or self.client.state is S.PENDING_ERROR
        self.global_runs = False
        self.carry_out(self.client.global_ended())

    @precondition(lambda self: self.global_runs and self.client.global_thread.state is G.PENDING_SHUTDOWN)
    @rule()
    def the_global_thread_ends(self) -> None:
        self.global_runs = False
        self.carry_out(self.client.global_ended())

    @precondition(lambda self: not self.resources and self.client.state not in TERMINAL)
    @rule()
    def the_resources_are_closed(self) -> None:
        self.carry_out(self.client.resources_closed())

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def an_end_is_for_ever_and_comes_after_everything_else(self) -> None:
        ends = [state for state in self.entered if state in TERMINAL]
        assert len(ends) <= 1
        if ends:
            assert self.entered[-1] == ends[0]
            assert self.entered[-2] == {"ERROR": "PENDING_ERROR", "NOT_RUNNING": "PENDING_SHUTDOWN"}[ends[0]]
            assert set(self.client.thread_states().values()) <= {T.DEAD}
            assert not self.tasks
            assert not self.global_runs

    @invariant()
    def only_failures_end_in_error(self) -> None:
        if self.client.state in (S.PENDING_ERROR, S.ERROR):
            assert self.error_is_due
            assert not self.services

    @invariant()
    def the_state_is_that_of_the_threads(self) -> None:
        client = self.client
        states = [thread.state for thread in client.live]
        assert (client.state is S.DISCONNECTED) <= (set(states) == {T.DISCONNECTED})
        if client.is_running and states:
            assert (client.state is S.DISCONNECTED) is (set(states) == {T.DISCONNECTED})
            if {T.PARTITIONS_REVOKED, T.PARTITIONS_ASSIGNED} & set(states):
                assert client.state is S.REBALANCING
            ready = client.global_thread is None or client.global_thread.state is G.RUNNING
            if set(states) == {T.RUNNING} and ready:
                assert client.state is S.RUNNING

    @invariant()
    def threads_have_indexes_of_their_own(self) -> None:
        indexes = [t.index for t in self.client.threads.values() if t.state is not T.DEAD]
        assert len(indexes) == len(set(indexes))


TestStreamsClient = Shell.TestCase
TestStreamsClient.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=40)
