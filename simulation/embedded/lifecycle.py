"""The base of servers that run in a thread with its own loop: how a test starts, enters and closes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.thread import LoopThread

E = TypeVar("E")
A = TypeVar("A")


class Controls(Generic[E]):
    """The controls of a server, for a test in other threads.

    `thread` runs the server; `endpoint` belongs to its loop. `running` is another object with controls of the
    same server, which must run.

    :raises FencepostError: if it does not.
    """

    def __init__(self, thread: LoopThread, running: Controls[E] | None = None) -> None:
        self.thread = thread
        self._running = running
        self._endpoint: E | None = None
        if running is not None:
            self._must_run()

    @property
    def endpoint(self) -> E:
        """The object that runs on the thread's loop.

        :raises FencepostError: if it does not run.
        """
        if self._running is not None:
            return self._running.endpoint
        if self._endpoint is None:
            raise self.thread.not_running()
        return self._endpoint

    def _must_run(self) -> None:
        """Raise now, instead of later, if it does not run.

        :raises FencepostError: if it does not run.
        """
        _ = self.endpoint

    @property
    def is_running(self) -> bool:
        """True if it was started and not closed."""
        return self.thread.is_running


class Embedded(Controls[E], ABC, Generic[E, A]):
    """Starts and closes a server. `with` returns itself, `async with` the object for a test that awaits."""

    @property
    @abstractmethod
    def awaited(self) -> A:
        """Return the same server for a test that awaits. It must be running.

        :raises FencepostError: if it does not run.
        """

    @abstractmethod
    def _opened(self) -> Coroutine[Any, Any, E]:
        """Make the endpoint and let it listen, on the thread's loop."""

    @abstractmethod
    def _closed(self, endpoint: E) -> Coroutine[Any, Any, None]:
        """Close the endpoint's ports and connections, on the thread's loop."""

    def start(self) -> None:
        """Start to listen, as `with` does.

        :raises FencepostError: if it runs already.
        :raises EnvironmentLacks: if it can't listen on a port.
        """
        if self.thread.is_running:
            raise FencepostError(f"{self.thread.what} is running already")
        self.thread.start()
        try:
            self._endpoint = self.thread.submit(self._opened()).result()
        except BaseException:
            self.thread.stop()
            raise

    def close(self) -> None:
        """Close ports and connections, as the end of `with` does. Closing twice is harmless.

        In a forked process it closes nothing.
        """
        endpoint = self._endpoint
        if endpoint is None or not self.is_running:
            return
        try:
            self.thread.stop(lambda: self._closed(endpoint))
        finally:
            self._endpoint = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> A:
        self.start()
        return self.awaited

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
