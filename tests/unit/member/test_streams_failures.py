"""Uncaught exceptions: what handlers may be and answer, and what comes of each answer in each situation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.member.streams.actions import AskForShutdown, Complain, EndServices, StartThread
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.handler import HandlerDecision, Handlers
from fencepost.member.streams.handler import StreamThreadExceptionResponse as Response
from fencepost.member.streams.thread_states import GlobalThreadState as G
from fencepost.member.streams.thread_states import StreamThreadState as T

A, B, C = (f"app-StreamThread-{index}" for index in (1, 2, 3))
ERRORS = (ValueError("x"), MemoryError(), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError())


# -- handlers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_without_a_handler_the_client_is_shut_down(error: BaseException) -> None:
    assert Handlers().ask(A, error) == HandlerDecision(Response.SHUTDOWN_CLIENT)


@pytest.mark.parametrize(("response", "error"), list(itertools.product(Response, ERRORS)))
def test_the_handlers_answer_counts(response: Response, error: BaseException) -> None:
    seen: list[BaseException] = []

    def handler(raised: BaseException) -> Response:
        seen.append(raised)
        return response

    handlers = Handlers()
    assert handlers.add(handler) is False
    assert handlers.ask(A, error) == HandlerDecision(response)
    assert seen == [error]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_handler_that_raises_shuts_the_client_down(error: BaseException) -> None:
    def handler(raised: BaseException) -> Response:
        raise error

    handlers = Handlers()
    handlers.add(handler)
    answer = handlers.ask(A, ValueError())
    assert answer.response is Response.SHUTDOWN_CLIENT
    assert "raised" in (answer.complaint or "")


@pytest.mark.parametrize("answered", [None, 0, 1, "REPLACE_THREAD", Response, object()])
def test_any_other_answer_shuts_the_client_down(answered: Any) -> None:
    handlers = Handlers()
    handlers.add(lambda error: answered)
    answer = handlers.ask(A, ValueError())
    assert answer.response is Response.SHUTDOWN_CLIENT
    assert "not a StreamThreadExceptionResponse" in (answer.complaint or "")


def test_a_coroutine_in_disguise_is_no_answer() -> None:
    async def decide() -> Response:
        return Response.REPLACE_THREAD

    handlers = Handlers()
    handlers.add(lambda error: decide())
    answer = handlers.ask(A, ValueError())
    assert answer.response is Response.SHUTDOWN_CLIENT
    assert "should be a plain function" in (answer.complaint or "")


async def _coroutine_function(error: BaseException) -> Response:
    return Response.REPLACE_THREAD


class _AsyncCallable:
    async def __call__(self, error: BaseException) -> Response:
        return Response.REPLACE_THREAD


@pytest.mark.parametrize(
    "handler",
    [
        None,
        "REPLACE_THREAD",
        Response.REPLACE_THREAD,
        _coroutine_function,
        _AsyncCallable(),
        lambda: Response.REPLACE_THREAD,
        lambda a, b, c: Response.REPLACE_THREAD,
    ],
)
def test_what_can_be_no_handler_is_refused(handler: Any) -> None:
    handlers = Handlers()
    with pytest.raises(TypeError, match="handler should"):
        handlers.add(handler)
    assert handlers.ask(A, ValueError()) == HandlerDecision(Response.SHUTDOWN_CLIENT)


def _of_thread_and_error(thread: str, error: BaseException) -> None:
    assert (thread, str(error)) == (A, "x")


def _of_error(error: BaseException) -> None:
    assert str(error) == "x"


@pytest.mark.parametrize("old", [_of_thread_and_error, _of_error])
def test_an_old_handler_alone_lets_the_thread_die_and_nothing_else(old: Callable[..., None]) -> None:
    handlers = Handlers()
    assert handlers.add(old) is True
    assert handlers.ask(A, ValueError("x")) == HandlerDecision(None)
    assert "raised" in (handlers.ask(A, ValueError("y")).complaint or "")
    assert handlers.ask(A, ValueError("y")).response is None


@pytest.mark.parametrize("new_first", [False, True])
def test_the_new_handler_wins_over_an_old_one(new_first: bool) -> None:
    called: list[str] = []

    def old(thread: str, error: BaseException) -> None:
        called.append("old")

    def new(error: BaseException) -> Response:
        called.append("new")
        return Response.REPLACE_THREAD

    handlers = Handlers()
    for handler in (new, old) if new_first else (old, new):
        handlers.add(handler)
    assert handlers.ask(A, ValueError()) == HandlerDecision(Response.REPLACE_THREAD)
    assert called == ["new"]
    handlers.clear()
    assert handlers.ask(A, ValueError()) == HandlerDecision(Response.SHUTDOWN_CLIENT)


# -- each answer in each situation ---------------------------------------------------------------------------


def client_in(situation: str, *, escalates: bool = True) -> StreamsClient:
    """A client with two threads, the first of which is about to fail."""
    client = StreamsClient("app", 2, escalates=escalates)
    client.start()
    for name in (A, B):
        client.thread_started(name)
    if situation in ("rebalancing", "running", "closing", "failing", "removed", "disconnected"):
        client.partitions_assigned(A)
        client.partitions_assigned(B)
    if situation in ("running", "closing", "failing", "removed", "disconnected"):
        client.tasks_ready(A)
        client.tasks_ready(B)
    if situation == "revoking":
        client.partitions_revoked(A)
    if situation == "closing":
        client.close()
    if situation == "failing":
        client.thread_failed(B, HandlerDecision(Response.SHUTDOWN_CLIENT))
    if situation == "removed":
        assert client.remove_thread(B)[0] == A
    if situation == "disconnected":
        client.connection(A, connected=False)
        client.connection(B, connected=False)
    return client


LIVELY = ("before the first assignment", "revoking", "rebalancing", "running", "disconnected")
ENDING = {"closing": S.PENDING_SHUTDOWN, "failing": S.PENDING_ERROR}


def end_all(client: StreamsClient) -> S:
    """Let all threads that end do so; answers the state that this comes to."""
    for name, thread in list(client.threads.items()):
        if thread.state is T.PENDING_SHUTDOWN:
            client.thread_ended(name)
    if client.state in (S.PENDING_SHUTDOWN, S.PENDING_ERROR):
        client.resources_closed()
    return client.state


@pytest.mark.parametrize("situation", LIVELY)
def test_replace_thread_keeps_the_number_of_live_threads(situation: str) -> None:
    client = client_in(situation)
    before = client.state
    actions = client.thread_failed(A, HandlerDecision(Response.REPLACE_THREAD))
    assert client.threads[A].state is T.PENDING_SHUTDOWN
    assert [action.thread for action in actions if isinstance(action, StartThread)] == [C]
    assert len(client.live) == 2
    assert client.is_running
    if situation not in ("revoking", "disconnected"):  # what the thread was made the difference
        assert client.state is before
    assert end_all(client) is client.state
    assert (len(client.live), client.replaced, client.failures) == (2, 1, 1)


@pytest.mark.parametrize("situation", LIVELY)
def test_shutdown_client_ends_in_error_for_ever(situation: str) -> None:
    client = client_in(situation)
    actions = client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_CLIENT))
    assert any(isinstance(action, EndServices) for action in actions)
    assert client.state is S.PENDING_ERROR
    client.thread_ended(A)
    assert client.state is S.PENDING_ERROR
    assert end_all(client) is S.ERROR
    client.close()
    assert client.state is S.ERROR


@pytest.mark.parametrize("situation", LIVELY)
def test_shutdown_application_asks_through_every_thread_and_goes_on(situation: str) -> None:
    client = client_in(situation)
    actions = client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_APPLICATION))
    assert [action.thread for action in actions if isinstance(action, AskForShutdown)] == [A, B]
    assert client.is_running
    assert [thread.name for thread in client.live] == [B]
    client.thread_ended(A)
    client.shutdown_received(B)
    assert client.state is S.PENDING_ERROR
    assert end_all(client) is S.ERROR


@pytest.mark.parametrize("situation", LIVELY)
@pytest.mark.parametrize("response", [None, *Response])
def test_where_the_group_cannot_be_told_only_the_client_is_shut_down(
    situation: str, response: Response | None
) -> None:
    client = client_in(situation, escalates=False)
    actions = client.thread_failed(A, HandlerDecision(response))
    ends = response in (Response.SHUTDOWN_CLIENT, Response.SHUTDOWN_APPLICATION)
    assert (client.state is S.PENDING_ERROR) is ends
    said = [action.error for action in actions if isinstance(action, Complain)]
    assert said == ([True] if response is Response.SHUTDOWN_APPLICATION else [])
    assert not any(isinstance(action, AskForShutdown) for action in actions)


@pytest.mark.parametrize("response", [None, *Response])
@pytest.mark.parametrize("situation", ENDING)
def test_a_client_that_ends_already_ends_as_it_was_going_to(
    situation: str, response: Response | None
) -> None:
    client = client_in(situation)
    actions = client.thread_failed(A, HandlerDecision(response))
    assert client.state is ENDING[situation]
    assert not any(isinstance(action, StartThread) for action in actions)
    asked = [action.thread for action in actions if isinstance(action, AskForShutdown)]
    assert asked == ([A, B] if response is Response.SHUTDOWN_APPLICATION else [])
    assert end_all(client) is {"closing": S.NOT_RUNNING, "failing": S.ERROR}[situation]


@pytest.mark.parametrize("response", [None, *Response])
def test_a_thread_that_fails_while_it_is_removed_is_not_replaced(response: Response | None) -> None:
    client = client_in("removed")
    actions = client.thread_failed(A, HandlerDecision(response))
    assert not any(isinstance(action, StartThread) for action in actions)
    assert (client.state is S.PENDING_ERROR) is (response is Response.SHUTDOWN_CLIENT)


@pytest.mark.parametrize(("first", "second"), list(itertools.product([None, *Response], repeat=2)))
def test_two_threads_fail_at_once(first: Response | None, second: Response | None) -> None:
    client = client_in("running")
    client.thread_failed(A, HandlerDecision(first))
    actions = client.thread_failed(B, HandlerDecision(second))
    if Response.SHUTDOWN_CLIENT in (first, second):
        assert end_all(client) is S.ERROR
        return
    carriers = [action.thread for action in actions if isinstance(action, StartThread)]
    if second is Response.SHUTDOWN_APPLICATION and first is not Response.REPLACE_THREAD:
        assert carriers == [C]
    end_all(client)
    if Response.SHUTDOWN_APPLICATION in (first, second):
        if client.live:
            client.shutdown_received(client.live[0].name)
        assert end_all(client) is S.ERROR
    else:
        assert client.state is S.RUNNING
        assert len(client.live) == (first, second).count(Response.REPLACE_THREAD)


def test_the_only_thread_gets_a_carrier_for_its_request() -> None:
    client = StreamsClient("app", 1)
    client.start()
    client.thread_started(A)
    actions = client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_APPLICATION))
    assert [a for a in actions if isinstance(a, StartThread)] == [StartThread(B, asks_for_shutdown=True)]
    client.thread_ended(A)
    assert client.is_running
    client.shutdown_received(B)
    assert client.state is S.PENDING_ERROR


def test_a_client_that_asked_and_has_nobody_left_to_hear_the_answer_ends_in_error() -> None:
    client = client_in("running")
    client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_APPLICATION))
    client.thread_failed(B, HandlerDecision(None))
    client.thread_ended(A)
    assert client.state is S.PENDING_ERROR
    assert end_all(client) is S.ERROR


def test_threads_that_come_later_ask_too() -> None:
    client = client_in("running")
    client.thread_failed(A, HandlerDecision(Response.SHUTDOWN_APPLICATION))
    _, actions = client.add_thread()
    assert actions == (StartThread(C, asks_for_shutdown=True),)


def test_only_the_first_of_several_threads_that_hear_of_the_shutdown_counts() -> None:
    client = client_in("running")
    client.shutdown_received(A)
    client.shutdown_received(B)
    assert (client.state, client.refusals) == (S.PENDING_ERROR, 1)


# -- the global thread ---------------------------------------------------------------------------------------


def with_global(*, running: bool, threads: int = 2) -> StreamsClient:
    client = StreamsClient("app", threads, global_thread=True)
    client.start()
    if running:
        client.global_ready()
        for name in client.threads:
            client.thread_started(name)
    return client


@pytest.mark.parametrize(("running", "response"), list(itertools.product([False, True], [None, *Response])))
def test_without_its_global_thread_a_client_ends_in_error(running: bool, response: Response | None) -> None:
    client = with_global(running=running)
    actions = client.global_failed(HandlerDecision(response))
    assert client.state is S.PENDING_ERROR
    assert not any(isinstance(action, StartThread) for action in actions)
    asked = [action.thread for action in actions if isinstance(action, AskForShutdown)]
    assert asked == ([A, B] if running and response is Response.SHUTDOWN_APPLICATION else [])
    complaints = [action.error for action in actions if isinstance(action, Complain)]
    unheard = response is Response.SHUTDOWN_APPLICATION and not running
    assert complaints == ([True] if response is Response.REPLACE_THREAD or unheard else [])
    client.global_ended()
    for name in (A, B) if running else ():
        assert client.state is S.PENDING_ERROR
        client.thread_ended(name)
    client.resources_closed()
    assert client.state is S.ERROR
    assert client.global_thread is not None
    assert client.global_thread.state is G.DEAD


def test_a_shutdown_that_threads_before_their_start_cannot_tell_is_complained_of() -> None:
    client = StreamsClient("app", 1, global_thread=True)
    client.start()
    client.global_ready()
    actions = client.global_failed(HandlerDecision(Response.SHUTDOWN_APPLICATION))
    assert not any(isinstance(action, AskForShutdown) for action in actions)
    (complaint,) = (action.text for action in actions if isinstance(action, Complain))
    assert complaint == "no thread can tell the group to shut down: only this client is shut down"
    assert client.thread_started(A)[0] is False


def test_a_global_thread_that_fails_while_the_client_closes_makes_no_error() -> None:
    client = with_global(running=True)
    client.close()
    client.global_failed(HandlerDecision(Response.SHUTDOWN_CLIENT))
    client.global_ended()
    assert end_all(client) is S.NOT_RUNNING
