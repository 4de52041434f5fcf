"""Handlers that share the loop: one that works on a long list stops at times, and others have their turns."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from fencepost.coordinator.server.services import Services

R = TypeVar("R")
P = ParamSpec("P")

WORK_PER_TURN = 5_000
"""How much a handler does in one turn of the loop, in elements of a request that cost little."""
CHANGE = 250
"""What a change of the cluster's topics costs, in such elements."""

Work: TypeAlias = Generator[int, None, R]
"""A handler's work: it yields what it did since it yielded last, and returns the response."""


def in_turns(
    handler: Callable[Concatenate[Services, P], Work[R]],
) -> Callable[Concatenate[Services, P], R | asyncio.Future[R]]:
    """Make a handler of a generator. It returns the response after one turn, else a future of it.

    Where the loop is not shared it always returns the response.
    """

    @functools.wraps(handler)
    def answer(services: Services, /, *args: P.args, **kwargs: P.kwargs) -> R | asyncio.Future[R]:
        work = handler(services, *args, **kwargs)
        try:
            _work_one_turn(work)
            while services.long_requests is None:
                _work_one_turn(work)
        except StopIteration as finished:
            response: R = finished.value
            return response
        return services.loop.create_task(_finish(work))

    return answer


def _work_one_turn(work: Work[Any]) -> None:
    done = 0
    while done < WORK_PER_TURN:
        done += next(work)


async def _finish(work: Work[R]) -> R:
    while True:
        await asyncio.sleep(0)
        try:
            _work_one_turn(work)
        except StopIteration as finished:
            response: R = finished.value
            break
    await asyncio.sleep(0)  # to write a long response takes a turn of its own
    return response
