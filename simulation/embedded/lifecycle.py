"""What serves clients from a thread and a loop of its own: how a test starts, enters and closes it."""

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
    """Something that serves while it runs, as a test drives it from other threads.

    `thread` is where it runs; `endpoint` belongs to its loop. With `running`, these are other controls of
    what those control, which must run.

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
        """What runs on the thread's loop.

        :raises FencepostError: if it does not run.
        """
        if self._running is not None:
            return self._running.endpoint
        if self._endpoint is None:
            raise self.thread.not_running()
        return self._endpoint

    def _must_run(self) -> None:
        """For what would else be refused later only.

        :raises FencepostError: if it does not run.
        """
        _ = self.endpoint

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not closed."""
        return self.thread.is_running


class Embedded(Controls[E], ABC, Generic[E, A]):
    """Starts and closes what serves. `with` gives itself, `async with` what a test awaits things of."""

    @property
    @abstractmethod
    def awaited(self) -> A:
        """The same for a test that awaits. It must be running.

        :raises FencepostError: if it does not run.
        """

    @abstractmethod
    def _opened(self) -> Coroutine[Any, Any, E]:
        """Make the endpoint and let it listen, on the thread's loop."""

    @abstractmethod
    def _closed(self, endpoint: E) -> Coroutine[Any, Any, None]:
        """Close the endpoint's ports and connections, on the thread's loop."""

    def start(self) -> None:
        """Listen; what `with` does.

        :raises FencepostError: if it runs already.
        :raises EnvironmentLacks: if a port can't be listened on.
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
        """Close ports and connections; what the end of `with` does. Closing twice does no harm.

        A process that was forked meanwhile closes nothing by it.
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
