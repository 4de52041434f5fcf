"""The machine of a Streams client: aggregation, ends, and threads that come and go."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.machine import IllegalTransition
from fencepost.member.streams.actions import (
    Action,
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
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.errors import IllegalStreamsState
from fencepost.member.streams.handler import HandlerDecision
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import StreamThreadState as T

A, B, C = (f"app-StreamThread-{index}" for index in (1, 2, 3))


def started(threads: int = 2, **settings: bool) -> StreamsClient:
    """A client whose threads have started and heard of nothing."""
    client = StreamsClient("app", threads, **settings)
    client.start()
    for name in client.threads:
        assert client.thread_started(name)[0]
    return client


def to_running(client: StreamsClient, *names: str) -> StreamsClient:
    for name in names or tuple(client.threads):
        client.partitions_assigned(name)
        client.tasks_ready(name)
    return client


def running(threads: int = 2) -> StreamsClient:
    return to_running(started(threads))


def moves(actions: tuple[Action, ...], level: Level = Level.CLIENT) -> list[str]:
    return [action.target for action in actions if isinstance(action, StreamsMoved) and action.level is level]


def kinds(actions: tuple[Action, ...]) -> list[type]:
    return [type(action) for action in actions if not isinstance(action, StreamsMoved)]


# -- start -----------------------------------------------------------------------------------------------


def test_a_client_is_rebalancing_from_its_start() -> None:
    client = StreamsClient("app", 2)
    actions = client.start()
    assert moves(actions) == ["REBALANCING"]
    assert kinds(actions) == [StartThread, StartThread, StartServices]
    assert client.thread_states() == {A: T.CREATED, B: T.CREATED}


def test_a_client_starts_once() -> None:
    client = started()
    with pytest.raises(IllegalStreamsState, match="starts once"):
        client.start()


def test_threads_start_when_the_global_thread_has_caught_up() -> None:
    client = StreamsClient("app", 1, global_thread=True)
    assert kinds(client.start()) == [StartGlobalThread]
    name, actions = client.add_thread()
    assert (name, kinds(actions)) == (B, [])
    assert kinds(client.global_ready()) == [StartThread, StartThread, StartServices]


def test_a_client_with_only_a_global_thread_runs() -> None:
    client = StreamsClient("app", 0, global_thread=True)
    client.start()
    assert moves(client.global_ready()) == ["RUNNING"]


# -- the state is derived from the threads' --------------------------------------------------------------


def test_a_client_runs_when_all_threads_do() -> None:
    client = started()
    to_running(client, A)
    assert client.state is S.REBALANCING
    to_running(client, B)
    assert client.state is S.RUNNING


def test_one_thread_that_rebalances_makes_the_client_rebalance() -> None:
    client = running()
    actions = client.partitions_revoked(B)
    assert [action.level for action in actions if isinstance(action, StreamsMoved)] == [
        Level.THREAD,
        Level.CLIENT,
    ]
    assert client.state is S.REBALANCING


def test_a_thread_that_is_cut_off_counts_as_what_it_was() -> None:
    client = running()
    client.connection(A, connected=False)
    assert client.state is S.RUNNING
    client.partitions_revoked(B)
    assert client.state is S.REBALANCING
    to_running(client, B)
    assert client.state is S.RUNNING


def test_a_client_that_is_told_to_shut_down_says_so_once() -> None:
    client = running()
    text = f"{A} received the request to shut the application down"
    assert Complain(text) in client.shutdown_received(A)
    assert Complain not in kinds(client.shutdown_received(A))


def test_what_is_wrong_with_an_answer_is_complained_of() -> None:
    client = running()
    answer = HandlerDecision(Response.REPLACE_THREAD, complaint="it says nothing")
    assert Complain("it says nothing", error=True) in client.thread_failed(A, answer)
    assert client.failures == 1
    assert Complain not in kinds(client.thread_failed(B, HandlerDecision(Response.REPLACE_THREAD)))
    assert client.failures == 2


def test_a_rebalance_that_revokes_nothing_goes_by_way_of_revoked() -> None:
    client = running()
    assert moves(client.partitions_assigned(A), Level.THREAD) == ["PARTITIONS_REVOKED", "PARTITIONS_ASSIGNED"]


def test_a_second_revocation_is_refused_without_an_error() -> None:
    client = started()
    client.partitions_revoked(A)
    actions = client.partitions_revoked(A)
    assert actions == (
        MoveRefused(Level.THREAD, A, "partitions revoked", "PARTITIONS_REVOKED", "PARTITIONS_REVOKED"),
    )
    assert client.threads[A].refusals == 1
    assert client.threads[A].state is T.PARTITIONS_REVOKED


def test_threads_that_start_do_not_stop_a_client_from_running() -> None:
    client = running()
    client.add_thread()
    assert client.state is S.RUNNING
    assert client.thread_started(C) == (
        True,
        (StreamsMoved(Level.THREAD, C, "started", "CREATED", "STARTING"),),
    )


def test_a_thread_that_ends_does_not_hold_a_client_back() -> None:
    client = started()
    to_running(client, A)
    client.partitions_assigned(B)
    assert client.state is S.REBALANCING
    assert client.remove_thread(A)[0] == B
    assert client.state is S.RUNNING
    client.thread_ended(B)
    assert client.state is S.RUNNING


def test_the_death_of_all_threads_is_no_error() -> None:
    client = running()
    for name in (A, B):
        client.thread_failed(name, HandlerDecision(None))
        client.thread_ended(name)
    assert set(client.thread_states().values()) == {T.DEAD}
    assert client.state is S.RUNNING


def test_an_arrow_that_is_in_no_table_raises_and_changes_nothing() -> None:
    client = StreamsClient("app", 1)
    with pytest.raises(IllegalTransition):
        client.tasks_ready(A) or client.partitions_revoked(A)
    assert client.threads[A].state is T.CREATED


# -- connections -----------------------------------------------------------------------------------------


def test_a_client_is_disconnected_when_all_live_threads_are() -> None:
    client = running()
    client.connection(A, connected=False)
    assert (client.state, client.is_connected) == (S.RUNNING, False)
    client.connection(B, connected=False)
    assert (client.state, client.is_running) == (S.DISCONNECTED, True)
    client.connection(A, connected=True)
    assert client.state is S.RUNNING
    client.connection(B, connected=True)
    assert client.is_connected


@pytest.mark.parametrize("state", ["STARTING", "PARTITIONS_REVOKED", "PARTITIONS_ASSIGNED", "RUNNING"])
def test_a_thread_comes_back_to_where_it_was(state: str) -> None:
    client = started(1)
    if state != "STARTING":
        client.partitions_revoked(A)
    if state in ("PARTITIONS_ASSIGNED", "RUNNING"):
        client.partitions_assigned(A)
    if state == "RUNNING":
        client.tasks_ready(A)
    before = client.state
    assert moves(client.connection(A, connected=False)) == ["DISCONNECTED"]
    assert client.threads[A].is_running
    assert client.connection(A, connected=False) == ()
    client.tasks_ready(A)
    client.connection(A, connected=True)
    assert (client.threads[A].state, client.state) == (T(state), before)


def test_a_thread_that_was_fenced_meanwhile_goes_on_to_revoked() -> None:
    client = running(1)
    client.connection(A, connected=False)
    client.partitions_revoked(A)
    assert (client.threads[A].state, client.state) == (T.PARTITIONS_REVOKED, S.REBALANCING)
    assert client.connection(A, connected=True) == ()


def test_a_connection_means_nothing_to_threads_that_do_not_run() -> None:
    client = StreamsClient("app", 2)
    assert client.connection(A, connected=False) == ()
    client.start()
    client.close()
    assert client.connection(A, connected=False) == ()


def test_threads_may_be_added_and_replaced_while_disconnected() -> None:
    client = running(1)
    client.connection(A, connected=False)
    assert client.add_thread()[0] == B
    assert client.state is S.RUNNING
    client.thread_failed(A, HandlerDecision(Response.REPLACE_THREAD))
    assert set(client.threads) == {A, B, C}


def test_a_thread_has_the_number_of_the_one_that_it_replaces() -> None:
    client = running(2)
    client.thread_failed(A, HandlerDecision(Response.REPLACE_THREAD))
    client.thread_failed(C, HandlerDecision(Response.REPLACE_THREAD))
    added, _ = client.add_thread()
    numbers = {name: thread.number for name, thread in client.threads.items()}
    assert numbers == {A: 1, B: 2, C: 1, "app-StreamThread-4": 1, added: 3}


def test_a_disconnected_client_whose_last_thread_goes_is_what_it_was() -> None:
    client = running(1)
    client.connection(A, connected=False)
    client.remove_thread()
    assert client.state is S.RUNNING


# -- the end ---------------------------------------------------------------------------------------------


def test_close_stops_services_then_threads_then_the_global_thread_then_the_rest() -> None:
    client = StreamsClient("app", 2, global_thread=True)
    client.start()
    client.global_ready()
    for name in (A, B):
        client.thread_started(name)
    actions = client.close()
    assert kinds(actions) == [EndServices, EndThread, EndThread]
    assert moves(actions) == ["PENDING_SHUTDOWN"]
    assert kinds(client.thread_ended(A)) == []
    assert kinds(client.thread_ended(B)) == [EndGlobalThread]
    assert kinds(client.global_ended()) == [CloseResources]
    assert client.state is S.PENDING_SHUTDOWN
    assert moves(client.resources_closed()) == ["NOT_RUNNING"]


@pytest.mark.parametrize("global_thread", [False, True])
def test_a_client_that_never_started_closes_at_once(global_thread: bool) -> None:
    client = StreamsClient("app", 2, global_thread=global_thread)
    actions = client.close()
    assert kinds(actions) == [CloseResources]
    assert moves(actions, Level.THREAD) == ["PENDING_SHUTDOWN", "DEAD"] * 2
    client.resources_closed()
    assert client.state is S.NOT_RUNNING


def test_a_thread_that_is_stopped_before_it_could_start_only_ends() -> None:
    client = StreamsClient("app", 1)
    client.start()
    client.close()
    assert client.thread_started(A)[0] is False
    assert kinds(client.thread_ended(A)) == [CloseResources]


def test_closing_again_changes_nothing() -> None:
    client = started(1)
    client.close()
    assert client.close() == ()
    client.thread_ended(A)
    client.resources_closed()
    assert client.close() == ()
    assert client.state is S.NOT_RUNNING


def test_close_does_nothing_in_pending_error_and_error_and_says_so() -> None:
    client = running(1)
    client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_CLIENT))
    for state in (S.PENDING_ERROR, S.ERROR):
        assert client.state is state
        refused, warning = client.close()
        assert isinstance(refused, MoveRefused)
        assert warning == Complain(f"close has no effect: the client is in {state}")
        assert client.state is state
        if state is S.PENDING_ERROR:
            client.thread_ended(A)
            client.resources_closed()
    assert client.refusals == 2


@pytest.mark.parametrize("input_", ["partitions_revoked", "partitions_assigned"])
def test_a_rebalance_while_a_thread_ends_is_refused_without_an_error(input_: str) -> None:
    client = running(1)
    client.close()
    actions = getattr(client, input_)(A)
    assert [type(action) for action in actions] == [MoveRefused]
    assert client.threads[A].state is T.PENDING_SHUTDOWN


# -- threads that come and go ----------------------------------------------------------------------------


def test_an_index_is_free_when_its_thread_is_dead() -> None:
    client = running(2)
    client.remove_thread()
    assert client.threads[A].state is T.PENDING_SHUTDOWN
    assert client.add_thread()[0] == C
    client.thread_ended(A)
    assert client.add_thread()[0] == A


def test_a_thread_removes_itself_only_if_it_is_the_last() -> None:
    client = running(2)
    assert client.remove_thread(caller=A)[0] == B
    assert client.remove_thread(caller=A)[0] == A
    assert client.remove_thread(caller=A)[0] is None
    assert client.state is S.RUNNING


def test_threads_are_neither_added_nor_removed_when_the_client_does_not_run() -> None:
    client = StreamsClient("app", 1)
    for closed in (False, True):
        if closed:
            client.close()
        for name, actions in (client.add_thread(), client.remove_thread()):
            assert name is None
            assert [type(action) for action in actions] == [Complain]
    assert len(client.threads) == 1
