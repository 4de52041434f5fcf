"""`SingleActiveConsumer` over a connection that a test holds in its hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from fencepost.member.base.transport import Disconnected
from fencepost.member.sac import transport
from fencepost.member.sac.consumer import ConsumerClosed, SingleActiveConsumer
from fencepost.member.sac.offsets import FIRST, NONE, OffsetSpecification
from fencepost.member.sac.states import SacMemberState
from tests.unit.member.played_sac import SUBSCRIPTION, Clock, Connection, Node, Scene, settled


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


async def test_start_returns_although_the_state_passes_before_anything_wakes_it(scene: Scene) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    seen: list[SacMemberState] = []

    def fail(consumer: SingleActiveConsumer) -> None:
        seen.append(consumer.state)
        raise LookupError("no offset")

    def subscribe_and_activate(connection: Connection, subscription: transport.SacSubscription) -> Any:
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()
        connection.listener.consumer_update(1, True)
        loop.call_soon(accepted.set_result, None)
        return accepted

    scene.listener.on_activated = fail  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "subscribe", subscribe_and_activate)
        await asyncio.wait_for(scene.consumer.start(), 1)
    assert seen == [SacMemberState.ACTIVATING]
    assert not scene.consumer.is_active


async def test_nothing_is_asked_of_a_consumer_that_is_not_started(scene: Scene) -> None:
    with pytest.raises(RuntimeError, match=r"not started: await its start\(\) first"):
        await asyncio.wait_for(scene.consumer.getone(), 1)
    with pytest.raises(RuntimeError, match="not started"):
        await asyncio.wait_for(anext(scene.consumer), 1)
    with pytest.raises(RuntimeError, match="not started"):
        scene.consumer.store_offset(1)
    with pytest.raises(RuntimeError, match="not started"):
        await scene.consumer.stored_offset()
    await scene.consumer.close()
    with pytest.raises(ConsumerClosed):
        await scene.consumer.getone()


async def test_the_stored_offset_is_not_unknown_for_lack_of_a_connection(scene: Scene) -> None:
    await scene.consumer.start()
    assert await scene.consumer.stored_offset() is None
    scene.node.down = True
    scene.node.last.listener.disconnected("gone")
    with pytest.raises(Disconnected, match="no connection now"):
        await scene.consumer.stored_offset()


async def test_it_starts_within_a_chunk_where_the_listener_leaves_the_place_to_the_subscription() -> None:
    scene = Scene(transport.SacSubscription(stream="orders", name="app", offset=OffsetSpecification.at(1)))
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
            transport.UnreadableMessages,
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
    with pytest.raises(transport.UnreadableMessages, match="from offset 1 on"):
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
    with pytest.raises(transport.SubscriptionRefused):
        await scene.consumer.start()
    with pytest.raises(transport.SubscriptionRefused):
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


async def test_it_closes_while_a_message_is_held_on_a_lost_connection(scene: Scene) -> None:
    await scene.consumer.start()
    scene.node.last.listener.consumer_update(1, True)
    await settled()
    scene.deliver(0, b"a")
    await scene.consumer.getone()
    scene.node.last.listener.disconnected("the connection was lost")
    await settled()
    assert scene.consumer.state is SacMemberState.LOST
    async with asyncio.timeout(1):
        await scene.consumer.close()
    assert scene.listener.told == ["activated", "lost"]


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


async def test_one_that_is_abandoned_says_nothing(scene: Scene) -> None:
    await scene.active()
    asking = asyncio.ensure_future(scene.consumer.getone())
    await settled()
    scene.consumer.abandon()
    with pytest.raises(ConsumerClosed):
        await asking
    assert scene.listener.told == ["activated"]


async def test_a_connection_that_is_made_as_the_consumer_stops_is_closed(scene: Scene) -> None:
    starting = asyncio.ensure_future(scene.consumer.start())
    await asyncio.sleep(0)  # connected, and nobody has heard of it yet
    scene.consumer.abandon()
    with pytest.raises(ConsumerClosed):
        await starting
    await settled()
    assert scene.node.last.closed


class OfItsOwn(Node):
    """A transport that fails otherwise than it promised."""

    def connect(self, listener: transport.ConnectionListener) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(OverflowError("port must be 0-65535"))
        return future


class OfItsSubscription(Connection):
    """A connection that can't put a subscription into bytes."""

    def subscribe(self, subscription: transport.SacSubscription) -> asyncio.Future[None]:
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
    assert [each["error"] for each in logs] == ["no response in time"] * 2
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
