"""Clients that act only when they are polled, while a test waits for their group.

A poll may return a record that the test wants to read itself. So the client's partitions are paused before
each poll and resumed at the end. A record that arrives nevertheless is put back by a seek.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from fencepost.coordinator.protocol.errors import FencepostError

Polled: TypeAlias = Any
"""A consumer of confluent-kafka or kafka-python, or a function that polls one: called without arguments."""

_POLL_S: Final = 0.05


class PolledClients:
    """Polls clients in turn, without taking records from the test that owns them."""

    def __init__(self, clients: Sequence[Polled]) -> None:
        if isinstance(clients, str | bytes) or not isinstance(clients, Sequence):
            raise FencepostError(
                f"polling={clients!r}: expected a list of consumers, or of functions that poll"
            )
        for each in clients:
            if not callable(each) and not callable(getattr(each, "poll", None)):
                raise FencepostError(
                    f"polling: {each!r} has no method poll: expected consumers, or functions that poll"
                )
        self._clients = [each if callable(each) else _Poll(each) for each in clients]

    def __len__(self) -> int:
        return len(self._clients)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Resume reading after the block."""
        try:
            yield
        finally:
            for each in self._clients:
                if isinstance(each, _Poll):
                    each.resume()

    def poll_until(self, future: concurrent.futures.Future[Any]) -> None:
        """Poll all of them in turn, in the caller's thread, until the future is done."""
        with self.resumed():
            while not future.done():
                for each in self._clients:
                    each()

    async def poll_until_done(self, future: concurrent.futures.Future[Any]) -> None:
        """Do the same without blocking the caller's loop; a function may be a coroutine function."""
        from anyio import to_thread

        with self.resumed():
            while not future.done():
                for each in self._clients:
                    if isinstance(each, _Poll):
                        await to_thread.run_sync(each)
                    elif inspect.isawaitable(found := each()):
                        await found


class _Poll:
    """Polls one consumer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._by_batch = "timeout_ms" in _parameters(client.poll)
        """True for clients like kafka-python, whose polls return lists of records by partition."""

    def __call__(self) -> None:
        client = self._client
        if assigned := list(client.assignment()):
            self._pause(client.pause, assigned)
        if self._by_batch:
            for partition, records in client.poll(timeout_ms=round(_POLL_S * 1_000)).items():
                client.seek(partition, records[0].offset)
        elif (message := client.poll(_POLL_S)) is not None and message.error() is None:
            self._put_back(message)

    def resume(self) -> None:
        """Resume all partitions that are assigned by now."""
        if assigned := list(self._client.assignment()):
            self._pause(self._client.resume, assigned)

    def _pause(self, change: Callable[..., object], assigned: list[Any]) -> None:
        if self._by_batch:
            change(*assigned)
        else:
            change(assigned)

    def _put_back(self, message: Any) -> None:
        for each in self._client.assignment():
            if (each.topic, each.partition) == (message.topic(), message.partition()):
                each.offset = message.offset()
                self._client.seek(each)


def _parameters(method: Callable[..., object]) -> Sequence[str]:
    try:
        return list(inspect.signature(method).parameters)
    except (TypeError, ValueError):  # a method written in C has no signature
        return ()
