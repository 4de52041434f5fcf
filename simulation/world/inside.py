"""The way into a cluster on the loop that the test itself runs on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.thread import LoopThread
from fencepost.simulation.world.processes import outside

R = TypeVar("R")


class SameLoop(LoopThread):
    """Replaces the loop's thread: a submitted coroutine runs at once, to its end.

    It runs as the brokers do: it does not end with the process that asked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("fencepost-world", "this world")
        self._here = loop

    @property
    def is_running(self) -> bool:
        """True until the run has ended."""
        return not self._here.is_closed()

    def submit(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Run a coroutine that waits for nothing."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        try:
            outside().run(work.send, None)
        except StopIteration as over:
            future.set_result(over.value)
        except BaseException as error:
            future.set_exception(error)
        else:
            work.close()
            raise FencepostError("this call would wait: await it")
        return future

    async def wait_for(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine that may wait, and wait for it."""
        return await outside().run(self._here.create_task, work)
