"""The listener of a `SingleActiveConsumer`: when its answers count, and what becomes of it when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.rabbit_codec.codes import OffsetType
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification as WireOffset
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.offsets import FIRST, NONE, OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SacMemberState
from tests.unit.member.played_sac import Scene, settled


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_an_answer_waits_for_the_listener(scene: Scene) -> None:
    await scene.active()
    scene.listener.release.clear()
    scene.node.last.listener.consumer_update(2, False)
    await settled()
    assert len(scene.node.last.answers) == 1
    scene.listener.release.set()
    await settled()
    assert scene.node.last.answers[1] == (2, NONE)


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
    assert "on_activated's result should be an OffsetSpecification" in str(context["exception"])
    assert (first.closed, first.answers) == (True, [])
    assert scene.listener.told == ["activated", "lost"]
    assert scene.consumer.state is SacMemberState.BACKING_OFF


@pytest.mark.parametrize("where", ["on_state", "on_callback", "on_answer"])
def test_an_observer_with_an_async_method_is_refused(where: str) -> None:
    async def observe(*seen: object) -> None: ...

    names = ("on_state", "on_callback", "on_answer")
    observer = type("Observer", (), {name: observe if name == where else print for name in names})()
    with pytest.raises(TypeError, match=f"observer should have plain methods, and {where} of .* is async"):
        Scene(observer=observer)


async def test_a_coroutine_that_an_observer_returns_is_refused() -> None:
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(str(context["exception"]))
    )

    async def observe(*seen: object) -> None: ...

    class Observer:
        def on_state(self, *seen: object) -> Any:
            return observe(*seen)

        on_callback = on_answer = on_state

    scene = Scene(observer=Observer())
    await scene.active()
    assert {failure.partition(" returned ")[0] for failure in failures} == {
        "on_state",
        "on_callback",
        "on_answer",
    }
    assert all("write asyncio.create_task(...)" in failure for failure in failures)
