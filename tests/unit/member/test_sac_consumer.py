"""`SingleActiveConsumer` over a connection that a test holds in its hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from fencepost.coordinator.rabbit_codec.codes import OffsetType
from fencepost.coordinator.rabbit_codec.fields import OffsetSpecification as WireOffset
from fencepost.member.driver.transport import Disconnected
from fencepost.member.rabbit.transport import RabbitTransport
from fencepost.member.sac.consumer import ConsumerClosed, SingleActiveConsumer
from fencepost.member.sac.listener import SacListener, SacObserver
from fencepost.member.sac.offsets import FIRST, NONE, OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SacMemberState
from fencepost.member.sac.transport import (
    ConnectionListener,
    SacSubscription,
    SubscriptionRefused,
    UnreadableMessages,
)

SUBSCRIPTION = SacSubscription(stream="orders", name="app", offset=FIRST)


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    def __init__(self) -> None:
        self.ms = 0
        self.timers: list[tuple[int, Handle, Any]] = []

    def now_ms(self) -> int:
        return self.ms

    def call_at(self, when_ms: int, callback: Any, *args: Any) -> Handle:
        handle = Handle()
        self.timers.append((when_ms, handle, callback))
        return handle

    def advance(self) -> None:
        """To the next timer."""
        self.timers = [timer for timer in self.timers if not timer[1].cancelled]
        timer = min(self.timers, key=lambda timer: timer[0])
        self.timers.remove(timer)
        self.ms = timer[0]
        timer[2]()


class Connection:
    def __init__(self, node: Node, listener: ConnectionListener) -> None:
        self.node, self.listener = node, listener
        self.answers: list[tuple[int, OffsetSpecification]] = []
        self.credits: list[int] = []
        self.closed = False

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.node.refusing:
            future.set_exception(SubscriptionRefused("another partition index"))
        else:
            future.set_result(None)
        return future

    def answer(self, correlation_id: int, offset: OffsetSpecification) -> None:
        self.answers.append((correlation_id, offset))

    def credit(self, chunks: int) -> None:
        self.credits.append(chunks)

    def store_offset(self, subscription: SacSubscription, offset: int) -> None:
        self.node.stored = offset

    def query_offset(self, subscription: SacSubscription) -> asyncio.Future[int | None]:
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        future.set_result(self.node.stored)
        return future

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        pass


class Node:
    """A transport whose far end is the test."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.stored: int | None = None
        self.refusing = False
        self.down = False

    def connect(self, listener: ConnectionListener) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.down:
            future.set_exception(Disconnected("nobody listens"))
        else:
            self.connections.append(Connection(self, listener))
            future.set_result(self.connections[-1])
        return future

    @property
    def last(self) -> Connection:
        return self.connections[-1]


class Listener(SacListener):
    def __init__(self) -> None:
        self.told: list[str] = []
        self.release = asyncio.Event()
        self.release.set()
        self.offset: OffsetSpecification | None = None

    async def on_activated(self, consumer: SingleActiveConsumer) -> OffsetSpecification | None:
        self.told.append("activated")
        await self.release.wait()
        return self.offset

    async def on_stepping_down(self, consumer: SingleActiveConsumer) -> None:
        self.told.append("stepping down")
        await self.release.wait()

    def on_lost(self, consumer: SingleActiveConsumer) -> None:
        self.told.append("lost")


class Scene:
    def __init__(
        self, subscription: SacSubscription = SUBSCRIPTION, *, observer: SacObserver | None = None
    ) -> None:
        self.node, self.clock, self.listener = Node(), Clock(), Listener()
        self.consumer = SingleActiveConsumer(
            subscription,
            self.node,
            listener=self.listener,
            clock=self.clock,
            rng=random.Random(1),
            observer=observer,
        )

    async def active(self) -> None:
        await self.consumer.start()
        self.node.last.listener.consumer_update(1, True)
        await settled()
        assert self.consumer.is_active

    def deliver(self, first: int, *messages: bytes) -> None:
        self.node.last.listener.delivered(first, messages)


async def settled() -> None:
    """Let everything happen that can without time."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_it_starts_where_the_subscription_says_and_behind_what_was_stored(scene: Scene) -> None:
    await scene.active()
    assert scene.node.last.answers == [(1, FIRST)]
    scene.consumer.store_offset(41)
    scene.node.last.listener.consumer_update(2, False)
    scene.node.last.listener.consumer_update(3, True)
    await settled()
    assert scene.node.last.answers[1:] == [(2, NONE), (3, OffsetSpecification.at(42))]
    assert scene.listener.told == ["activated", "stepping down", "activated"]


async def test_it_starts_within_a_chunk_where_the_listener_leaves_the_place_to_the_subscription() -> None:
    scene = Scene(SacSubscription(stream="orders", name="app", offset=OffsetSpecification.at(1)))
    scene.listener.offset = NONE
    await scene.active()
    assert scene.node.last.answers == [(1, OffsetSpecification.at(1))]
    scene.deliver(0, b"a", b"b")
    assert await scene.consumer.getone() == (1, b"b")


async def test_messages_come_one_by_one_and_pay_for_their_chunk(scene: Scene) -> None:
    await scene.active()
    scene.deliver(0, b"a", b"b")
    scene.deliver(2, b"c")
    assert [await scene.consumer.getone() for _ in range(2)] == [(0, b"a"), (1, b"b")]
    assert scene.node.last.credits == [1]
    assert (await scene.consumer.getone()).value == b"c"
    assert scene.node.last.credits == [1, 1]


async def test_what_cannot_be_read_is_raised_behind_what_came_before(scene: Scene) -> None:
    await scene.active()
    scene.deliver(0, b"a")
    scene.node.last.listener.unreadable(1, 2, "a batch in compression 7")
    scene.deliver(3, b"d")
    assert await scene.consumer.getone() == (0, b"a")
    for _ in range(2):
        with pytest.raises(
            UnreadableMessages,
            match="'orders' can't be read from offset 1 on: a batch in compression 7",
        ):
            await scene.consumer.getone()
    assert scene.consumer.is_active
    await scene.consumer.close()
    assert scene.listener.told == ["activated", "stepping down"]


async def test_what_cannot_be_read_comes_again_after_a_step_down(scene: Scene) -> None:
    await scene.active()
    scene.node.last.listener.unreadable(0, 2, "a batch in compression 7")
    scene.node.last.listener.consumer_update(2, False)
    scene.node.last.listener.unreadable(0, 2, "of a time when it waits")
    await settled()
    assert scene.consumer.state is SacMemberState.WAITING
    scene.listener.offset = OffsetSpecification.at(1)
    scene.node.last.listener.consumer_update(3, True)
    await settled()
    scene.node.last.listener.unreadable(0, 2, "a batch in compression 7")
    with pytest.raises(UnreadableMessages, match="from offset 1 on"):
        await scene.consumer.getone()


async def test_a_step_down_waits_for_the_message_that_is_worked_on(scene: Scene) -> None:
    await scene.active()
    scene.deliver(0, b"a", b"b")
    await scene.consumer.getone()
    scene.node.last.listener.consumer_update(2, False)
    await settled()
    assert scene.listener.told == ["activated"]
    assert len(scene.node.last.answers) == 1
    asking = asyncio.ensure_future(scene.consumer.getone())
    await settled()
    assert scene.listener.told == ["activated", "stepping down"]
    assert scene.node.last.answers[1] == (2, NONE)
    assert not asking.done()
    scene.node.last.listener.consumer_update(3, True)
    await settled()
    assert scene.node.last.credits == [1]
    scene.deliver(1, b"b")
    assert await asking == (1, b"b")


async def test_an_answer_waits_for_the_listener(scene: Scene) -> None:
    await scene.active()
    scene.listener.release.clear()
    scene.node.last.listener.consumer_update(2, False)
    await settled()
    assert len(scene.node.last.answers) == 1
    scene.listener.release.set()
    await settled()
    assert scene.node.last.answers[1] == (2, NONE)


async def test_it_comes_back_after_a_loss(scene: Scene) -> None:
    await scene.active()
    scene.deliver(0, b"a")
    first = scene.node.last
    first.listener.disconnected("the connection was lost")
    await settled()
    assert scene.listener.told == ["activated", "lost"]
    assert first.closed
    scene.node.down = True
    scene.clock.advance()
    await settled()
    scene.node.down = False
    scene.clock.advance()
    await settled()
    assert scene.consumer.state is SacMemberState.WAITING
    assert scene.node.last is not first
    first.listener.delivered(0, [b"late"])
    scene.node.last.listener.consumer_update(1, True)
    await settled()
    scene.deliver(0, b"a")
    assert await scene.consumer.getone() == (0, b"a")


async def test_a_refusal_is_raised_wherever_it_is_waited(scene: Scene) -> None:
    scene.node.refusing = True
    with pytest.raises(SubscriptionRefused):
        await scene.consumer.start()
    with pytest.raises(SubscriptionRefused):
        await scene.consumer.getone()
    assert scene.node.last.closed
    await scene.consumer.close()


async def test_the_iteration_ends_when_it_is_closed(scene: Scene) -> None:
    seen = []
    async with scene.consumer as consumer:
        scene.node.last.listener.consumer_update(1, True)
        await settled()
        scene.deliver(0, b"a", b"b")
        async for message in consumer:
            seen.append(message.offset)
            if len(seen) == 2:
                break
    assert seen == [0, 1]
    assert scene.listener.told == ["activated", "stepping down"]
    assert consumer.state is SacMemberState.CLOSED
    assert scene.node.last.closed
    with pytest.raises(ConsumerClosed):
        await consumer.getone()
    assert [message async for message in consumer] == []


async def test_a_listener_that_fails_gives_the_connection_up(scene: Scene) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    async def fail(consumer: SingleActiveConsumer) -> None:
        raise LookupError("no offset")

    scene.listener.on_activated = fail  # type: ignore[method-assign]
    await scene.consumer.start()
    scene.node.last.listener.consumer_update(1, True)
    await settled()
    assert scene.node.last.closed
    assert scene.node.last.answers == []
    assert [str(context["exception"]) for context in failures] == ["no offset"]
    assert scene.consumer.state is SacMemberState.BACKING_OFF


@pytest.mark.parametrize("where", ["on_state", "on_callback", "on_answer"])
async def test_nothing_gets_lost_in_an_observer_that_raises(where: str) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    class Observer:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def observe(*seen: object) -> None:
                if name == where:
                    raise LookupError(name)

            return observe

    scene = Scene(observer=Observer())  # type: ignore[arg-type]
    async with asyncio.timeout(1):
        await scene.active()
        await scene.consumer.close()
    assert scene.node.last.answers == [(1, FIRST)]
    assert {str(context["exception"]) for context in failures} == {where}


@pytest.mark.parametrize("ends", [pytest.fail.Exception("no"), asyncio.CancelledError()], ids=repr)
async def test_a_listener_that_ends_in_what_is_no_exception_has_failed(
    scene: Scene, ends: BaseException
) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    async def fail(consumer: SingleActiveConsumer) -> None:
        raise ends

    await scene.active()
    scene.listener.on_stepping_down = fail  # type: ignore[method-assign]
    scene.node.last.listener.consumer_update(2, False)
    await settled()
    assert scene.node.last.answers[1:] == [(2, NONE)]
    scene.listener.on_activated = fail  # type: ignore[method-assign]
    scene.node.last.listener.consumer_update(3, True)
    await settled()
    assert scene.node.last.closed
    assert [context["exception"] for context in failures] == [ends, ends]


@pytest.mark.parametrize("where", ["not begun", "at work", "waiting for the application"])
async def test_nobody_waits_for_a_listener_that_somebody_cancels(scene: Scene, where: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    await scene.active()
    scene.deliver(0, b"a")
    if where == "waiting for the application":
        await scene.consumer.getone()
    scene.listener.release.clear()
    others = asyncio.all_tasks()
    scene.node.last.listener.consumer_update(2, False)
    (callback,) = asyncio.all_tasks() - others
    if where != "not begun":
        await settled()
    callback.cancel()
    await settled()
    assert scene.node.last.answers[1:] == [(2, NONE)]
    async with asyncio.timeout(1):
        await scene.consumer.close()


@pytest.mark.parametrize(
    ("offset", "kind", "why"),
    [
        ("x", TypeError, "offset should be a whole number, got 'x'"),
        (None, TypeError, "offset should be a whole number, got None"),
        (1.5, TypeError, "offset should be a whole number, got 1.5"),
        (-1, ValueError, "offset should be 0 to 9,223,372,036,854,775,807, got -1"),
        (1 << 63, ValueError, "offset should be 0 to 9,"),
    ],
)
async def test_what_is_no_offset_is_not_stored(
    scene: Scene, offset: Any, kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        scene.consumer.store_offset(offset)
    await scene.active()
    with pytest.raises(kind, match=why):
        scene.consumer.store_offset(offset)
    assert scene.node.stored is None


@pytest.mark.parametrize(
    "answer", [5, "first", (OffsetKind.FIRST, 0), WireOffset(OffsetType.FIRST), OffsetSpecification.at(3).at]
)
async def test_a_listener_that_answers_no_place_of_ours_gives_the_connection_up(
    scene: Scene, answer: object
) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
    scene.listener.offset = answer  # type: ignore[assignment]
    await scene.consumer.start()
    first = scene.node.last
    first.listener.consumer_update(1, True)
    await settled()
    (context,) = failed
    assert isinstance(context["exception"], TypeError)
    assert "on_activated's answer should be an OffsetSpecification" in str(context["exception"])
    assert (first.closed, first.answers) == (True, [])
    assert scene.listener.told == ["activated", "lost"]
    assert scene.consumer.state is SacMemberState.BACKING_OFF


async def test_one_that_is_abandoned_says_nothing(scene: Scene) -> None:
    await scene.active()
    asking = asyncio.ensure_future(scene.consumer.getone())
    await settled()
    scene.consumer.abandon()
    with pytest.raises(ConsumerClosed):
        await asking
    assert scene.listener.told == ["activated"]


class OfItsOwn(Node):
    """A transport that fails otherwise than it promised."""

    def connect(self, listener: ConnectionListener) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(OverflowError("port must be 0-65535"))
        return future


class OfItsSubscription(Connection):
    """A connection that can't put a subscription into bytes."""

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(OverflowError("too long"))
        return future


async def test_what_no_second_try_would_mend_is_raised_when_it_connects() -> None:
    consumer = SingleActiveConsumer(SUBSCRIPTION, OfItsOwn(), clock=Clock())
    with pytest.raises(OverflowError, match="port must be"):
        await asyncio.wait_for(consumer.start(), 5)
    assert consumer.state is SacMemberState.FAILED
    with pytest.raises(OverflowError):
        await consumer.getone()
    await consumer.close()


async def test_what_no_second_try_would_mend_is_raised_when_it_subscribes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "subscribe", OfItsSubscription.subscribe)
    with pytest.raises(OverflowError, match="too long"):
        await asyncio.wait_for(scene.consumer.start(), 5)
    assert scene.consumer.state is SacMemberState.FAILED
    assert scene.node.last.closed


async def test_what_is_tried_again_is_logged(scene: Scene) -> None:
    scene.node.down = True
    with structlog.testing.capture_logs() as logs:
        starting = asyncio.ensure_future(scene.consumer.start())
        await settled()
        scene.clock.advance()
        await settled()
        scene.node.down = False
        scene.clock.advance()
        await starting
        scene.node.last.listener.disconnected("the connection was lost")
        await settled()
    assert {(each["log_level"], each["stream"], each["name"]) for each in logs} == {
        ("warning", "orders", "app")
    }
    assert [each["error"] for each in logs] == ["nobody listens"] * 2 + ["the connection was lost"]


@pytest.mark.parametrize("asking", ["subscribe", "query_offset"])
async def test_a_loss_is_logged_once_whatever_waited_for_an_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, asking: str
) -> None:
    asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(Connection, asking, lambda *_: asked)
    starting = asyncio.ensure_future(scene.consumer.start())
    await settled()
    scene.node.last.listener.consumer_update(1, True)
    await settled()
    with structlog.testing.capture_logs() as logs:
        asked.set_exception(Disconnected("the connection was lost"))
        scene.node.last.listener.disconnected("the connection was lost")
        await settled()
    assert [each["error"] for each in logs] == ["the connection was lost"]
    starting.cancel()
    scene.consumer.abandon()


async def test_a_connection_that_does_not_come_about_in_time_is_logged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.node, "connect", lambda listener: asyncio.get_running_loop().create_future())
    with structlog.testing.capture_logs() as logs:
        starting = asyncio.ensure_future(scene.consumer.start())
        await settled()
        for _ in range(3):
            scene.clock.advance()
        starting.cancel()
    assert [each["error"] for each in logs] == ["no answer in time"] * 2
    await scene.consumer.close()


async def test_logs_go_through_the_standard_library_where_nobody_configured_others(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.node.down = True
    starting = asyncio.ensure_future(scene.consumer.start())
    await settled()
    starting.cancel()
    await scene.consumer.close()
    assert [(each.name, each.levelname) for each in caplog.records] == [("fencepost.member", "WARNING")]
    assert "error=nobody listens" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            {"listener": 3},
            "listener should have on_activated, on_stepping_down and on_lost; 3 has no on_acti",
        ),
        ({"observer": print}, "observer should have on_state, on_callback and on_answer; .* has no on_state"),
        ({"transport": "host"}, "transport should have connect; 'host' has no connect"),
        ({"subscription": "orders"}, "subscription should be a SacSubscription, got 'orders'"),
        ({"config": {}}, "config should be a SacConfig, got {}"),
    ],
)
def test_a_consumer_is_checked_before_anything_is_connected(arguments: dict[str, Any], why: str) -> None:
    given = {
        "subscription": SacSubscription(stream="orders", name="app"),
        "transport": RabbitTransport("orders"),
    }
    with pytest.raises(TypeError, match=why):
        SingleActiveConsumer(**{**given, **arguments})


@pytest.mark.parametrize(
    ("settings", "kind", "why"),
    [
        ({"stream": 3}, TypeError, "stream should be text, got 3"),
        ({"stream": ""}, ValueError, "stream should be 1 to 32,767 bytes of text, got ''"),
        ({"name": None}, TypeError, "name should be text, got None"),
        ({"name": "x" * 40_000}, ValueError, "name should be 1 to 32,767 bytes of text, got 'xxx"),
        ({"name": "\ud800"}, ValueError, "name should be text that UTF-8 can express"),
        ({"super_stream": 1}, TypeError, "super_stream should be text, got 1"),
        ({"partition_index": "0"}, TypeError, "partition_index should be a whole number, got '0'"),
        ({"partition_index": -2}, ValueError, "partition_index should be -1 or more, got -2"),
        ({"offset": "first"}, TypeError, "offset should be an OffsetSpecification, such as FIRST .*'first'"),
        ({"offset": OffsetSpecification("first")}, TypeError, "offset should be an OffsetSpecification"),
        ({"offset": NONE}, ValueError, "offset should name a place"),
        ({"offset": OffsetSpecification(OffsetKind.OFFSET, -1)}, ValueError, "offset should be 0 to 9,"),
    ],
)
def test_a_subscription_is_checked_before_anything_is_connected(
    settings: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why) as caught:
        SacSubscription(**{"stream": "orders", "name": "app", **settings})
    assert len(str(caught.value)) < 200
