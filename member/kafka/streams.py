"""An application of worker threads on Kafka, with a decision for each failure in them (KIP-671)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.arguments import check_function
from fencepost.member.kafka.changelog import KafkaChangelog
from fencepost.member.kafka.classic_streams_member import KafkaClassicStreamsMember
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.member.kafka.settings import check_choice
from fencepost.member.kafka.streams_group import KafkaStreamsGroupMember
from fencepost.member.kafka.streams_member import POLL_MS, KafkaConsumerGroupMember, WholeTopicReader
from fencepost.member.streams.application.changelog import changelog_topic
from fencepost.member.streams.application.driver import GlobalWork, StateListener, StreamsDriver
from fencepost.member.streams.application.port import StreamThreadMember, ThreadEvents
from fencepost.member.streams.application.runtime import LoopRuntime
from fencepost.member.streams.application.services import Metrics
from fencepost.member.streams.application.settings import (
    GlobalThread,
    Process,
    check_flag,
    check_milliseconds,
    check_process,
    check_seconds,
    check_text,
    check_threads,
    check_topics,
)
from fencepost.member.streams.application.store import StateDirectory
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientState
from fencepost.member.streams.errors import IllegalStreamsState
from fencepost.member.streams.handler import Handlers
from fencepost.member.streams.thread_states import StreamThreadState

GROUP_PROTOCOLS = ("streams", "consumer", "classic")
_OWN = ("group_id", "client_id", "listener", "observer", "enable_auto_commit", "auto_commit_interval_ms")
_CONNECTING = ("bootstrap_servers", "security_protocol", "ssl_context")
"""Settings that other clients of the brokers share with the members; and those that begin with `sasl_`."""


class _Nobody:
    """Stands in for the thread of a member that is never started."""

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...
    def on_connection(self) -> None: ...
    def on_shutdown_requested(self) -> None: ...


class StreamsApp:
    """One client of an application: worker threads, each a member of the group, which process records.

        async def process(partition, records):
            ...

        async with StreamsApp(process, topics=["orders"], group_id="billing", threads=3) as app:
            await app.wait_ended()

    A thread is a task of the running event loop. `process` gets the records of one partition, in order, and
    never two batches of one partition at the same time. With a third parameter it gets that partition's
    store, an SQLite file in `state_dir`, which follows its partition to other clients through a topic, the
    changelog, unless `changelog` is False. When it returns the records are processed; their offsets are
    committed every `commit_interval_ms`, and before partitions are given up: at least once. A poll without
    records lasts `poll_ms`; a thread takes up new partitions when its poll has ended.

    An exception that leaves `process` goes to `handler`, which returns what to do; without a handler the
    client is shut down. `global_thread` reads whole topics before the others start, and next to them. Further
    settings are KIP848Consumer's; each thread adds its number to `group_instance_id`.

    The members speak KIP-1071, where SHUTDOWN_APPLICATION goes through the coordinator. With
    group_protocol="classic" they speak the classic protocol as Kafka Streams does, and all clients of the
    group receive it, Java instances included; session_timeout_ms and heartbeat_interval_ms can be set then.
    With group_protocol="consumer" they speak KIP-848, which cannot send messages to other clients: there
    SHUTDOWN_APPLICATION is logged as an error, and shuts this client down.

    :raises TypeError: if a function is not async, a handler is async, or a setting is of a wrong kind.
    :raises ValueError: if a setting is impossible.
    """

    def __init__(
        self,
        process: Process,
        *,
        topics: Sequence[str] = (),
        group_id: str,
        threads: int = 1,
        global_thread: GlobalThread | None = None,
        handler: Any = None,
        state_dir: str | os.PathLike[str] | None = None,
        changelog: bool = True,
        client_id: str | None = None,
        group_protocol: str = "streams",
        commit_interval_ms: int = 30_000,
        poll_ms: int = POLL_MS,
        state_cleanup_delay_ms: int = 600_000,
        metrics_interval_ms: int = 60_000,
        auto_offset_reset: str = "earliest",
        **settings: Any,
    ) -> None:
        check_choice("group_protocol", group_protocol, GROUP_PROTOCOLS)
        self._group_id = check_text("group_id", group_id)
        number = check_threads(threads, global_thread=global_thread is not None)
        self._topics = check_topics(topics) if number or topics else ()
        self._settings = {"auto_offset_reset": auto_offset_reset, **_checked(settings)}
        self._protocol = group_protocol
        self._process_id = uuid.uuid4()
        self._statics: dict[int, KafkaConsumerGroupMember] = {}
        """Static members by their numbers, the last one of each."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which it was started, and on which methods that are not thread-safe may be
        called."""
        self._poll_ms = round(check_milliseconds("poll_ms", poll_ms, zero=False) * 1000)
        processing = check_process(process)
        self._logged = processing.wants_store and check_flag("changelog", changelog)
        name = check_text("client_id", client_id or f"{group_id}-{uuid.uuid4()}")
        self._engine = StreamsDriver(
            StreamsClient(
                name, number, global_thread=global_thread is not None, escalates=group_protocol != "consumer"
            ),
            processing,
            self._make_member,
            handlers=Handlers(),
            directory=StateDirectory(state_dir, group_id),
            runtime=LoopRuntime(),
            commit_interval_s=check_milliseconds("commit_interval_ms", commit_interval_ms, zero=True),
            cleanup_delay_s=check_milliseconds("state_cleanup_delay_ms", state_cleanup_delay_ms, zero=False),
            metrics_interval_s=check_milliseconds("metrics_interval_ms", metrics_interval_ms, zero=False),
            global_work=None if global_thread is None else self._global_work(global_thread),
            changelog=self._changelog() if self._logged else None,
        )
        if handler is not None:
            self._add_handler(handler)
        self._try_settings()

    def _try_settings(self) -> None:
        """Make a thread's consumer, and drop it: it refuses impossible settings before threads fail because
        of them."""
        member = self._group_member(self._engine.client.name, _Nobody())

        async def make() -> None:
            member.make_consumer()

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # A consumer is made in an event loop; an application may be made before there is one.
            with contextlib.closing(asyncio.new_event_loop()) as loop:
                loop.run_until_complete(make())
        else:
            member.make_consumer()

    def _make_member(self, thread: str, events: ThreadEvents) -> StreamThreadMember:
        instance_id = self._settings.get("group_instance_id")
        if instance_id is None:
            return self._group_member(thread, events)
        client = self._engine.client
        number = client.threads[thread].number
        member = self._group_member(thread, events, group_instance_id=f"{instance_id}-{number}")
        member.follow(self._statics.get(number), lambda: client.is_running)
        self._statics[number] = member
        return member

    def _group_member(self, thread: str, events: ThreadEvents, **own: Any) -> KafkaConsumerGroupMember:
        settings = {"group_id": self._group_id, "client_id": thread, **self._settings, **own}
        if self._protocol == "streams":
            changelogs = {topic: changelog_topic(self._group_id, topic) for topic in self._topics}
            logged = changelogs if self._logged else None
            return KafkaStreamsGroupMember(
                events, self._topics, settings, self._process_id, logged, poll_ms=self._poll_ms
            )
        if self._protocol == "classic":
            return KafkaClassicStreamsMember(
                events, self._topics, settings, self._process_id, poll_ms=self._poll_ms
            )
        return KafkaConsumerGroupMember(events, self._topics, settings, poll_ms=self._poll_ms)

    def _global_work(self, given: GlobalThread) -> GlobalWork:
        if not isinstance(given, GlobalThread):
            raise TypeError(f"global_thread should be a GlobalThread(topics, process), got {given!r}")
        topics = check_topics(given.topics, "the global thread's topics")
        processing = check_process(given.process, "the global thread's process", most=2)
        # If aborted records are not read elsewhere, they are not read here either.
        reading = {name: self._settings[name] for name in ("isolation_level",) if name in self._settings}
        return GlobalWork(
            processing, lambda: WholeTopicReader(topics, {**self._connecting(), **reading}, self._poll_ms)
        )

    def _changelog(self) -> KafkaChangelog:
        return KafkaChangelog(self._group_id, self._connecting(), creates=self._protocol != "streams")

    def _connecting(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self._settings.items()
            if name in _CONNECTING or name.startswith("sasl_")
        }

    # -- state -------------------------------------------------------------------------------------------

    @property
    def state(self) -> StreamClientState:
        """The client's state, which follows from those of its threads."""
        return self._engine.client.state

    @property
    def is_running(self) -> bool:
        """Started, and not about to end: REBALANCING, RUNNING or DISCONNECTED."""
        return self._engine.client.is_running

    @property
    def is_connected(self) -> bool:
        """True if it is running, and no thread has lost its broker (KIP-457).

        Heartbeats report it, and they go on while `process` runs.
        """
        return self._engine.client.is_connected

    @property
    def threads(self) -> Mapping[str, StreamThreadState]:
        """Return all threads' states by name; dead ones until their place is taken."""
        return self._engine.client.thread_states()

    @property
    def metrics(self) -> Metrics | None:
        """The last metrics of the recorder; None before the start."""
        return self._engine.metrics

    # -- before the start --------------------------------------------------------------------------------

    def set_uncaught_exception_handler(self, handler: Any) -> None:
        """Call this function for exceptions: it takes one, and returns a StreamThreadExceptionResponse.

        None deletes the handler. A handler of the old style takes a thread and an exception, or is declared
        to return None. It is accepted; with it alone, a thread that fails just ends.

        :raises IllegalStreamsState: once the client was started.
        :raises TypeError: if it can't be a handler.
        """
        self._only_before_the_start("the uncaught-exception handler")
        if handler is None:
            self._engine.handlers.clear()
        else:
            self._add_handler(handler)

    def _add_handler(self, handler: Any) -> None:
        if self._engine.handlers.add(handler):
            text = "handlers that return no StreamThreadExceptionResponse are deprecated (KIP-671)"
            warnings.warn(text, DeprecationWarning, stacklevel=3)

    def set_state_listener(self, listener: StateListener | None) -> None:
        """Call this plain function with the new and the old state of the client, at each step, in order.

        The client does not wait for it. A coroutine that it returns is refused: an error in the log proposes
        `asyncio.create_task(...)` instead.

        :raises IllegalStreamsState: once the client was started.
        :raises TypeError: if it can't be called, or is async.
        """
        self._only_before_the_start("the state listener")
        check_function("listener", listener)
        self._engine.listener = listener

    def _only_before_the_start(self, what: str) -> None:
        if self.state is not StreamClientState.CREATED:
            raise IllegalStreamsState(f"{what} can only be set before the start; the client is {self.state}")

    # -- start and end -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the global thread, which reads everything that exists, then all others. An instance starts
        once.

        :raises IllegalStreamsState: if it was started or closed before.
        :raises StreamsError: if `state_dir` can't be used, or another client has it.
        :raises Exception: the error that keeps the global thread from catching up; the client is in ERROR
            then.
        """
        if self.state is StreamClientState.CREATED:
            self._loop = asyncio.get_running_loop()
        await self._engine.start()

    def _only_on_its_loop(self, what: str) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop not in (None, running):
            raise RuntimeError(
                f"{what} should be called on the event loop that the client was started on; elsewhere use the"
                " loop's call_soon_threadsafe, or asyncio.run_coroutine_threadsafe"
            )

    async def close(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - waits, is not ended
        """End all threads after their current record, commit, and leave. Return true if that is over in time.

        Once `process` has returned it takes at most 25 s, even if no broker can be reached. These are 10 s
        for the last commit, 10 s for leaving (2 s if no broker responded to the commit), and 5 s for the
        changelog. With a timeout, in seconds, the threads divide that time. Records that are not committed by
        then are processed again by the next owner of the partition.

        In PENDING_ERROR and ERROR it has no effect and logs a warning; it waits for ERROR, and never
        raises. A thread that calls it does not wait for its own end.

        :raises ValueError: if the time, in seconds, is negative.
        :raises RuntimeError: on another event loop than the client's.
        """
        self._only_on_its_loop("close")
        return await self._engine.close(None if timeout is None else check_seconds("timeout", timeout))

    async def wait_ended(self) -> StreamClientState:
        """Wait until it is over; return NOT_RUNNING or ERROR."""
        return await self._engine.wait_ended()

    async def __aenter__(self) -> StreamsApp:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- threads -----------------------------------------------------------------------------------------

    def add_thread(self) -> str | None:
        """Start one more thread. Return its name; None, with a warning, unless the client is running.

        :raises RuntimeError: outside of the client's event loop, as in another thread of the process.
        """
        self._only_on_its_loop("add_thread")
        return self._engine.add_thread()

    async def remove_thread(self, timeout: float | None = None) -> str | None:  # noqa: ASYNC109 - the same
        """End one thread, and wait for that. Return its name; None, with a warning, unless there is one.

        A thread that calls this removes another one, if there is any.

        :raises TimeoutError: if the thread has not ended in that many seconds; it still ends.
        :raises RuntimeError: on another event loop than the client's.
        """
        self._only_on_its_loop("remove_thread")
        return await self._engine.remove_thread(
            None if timeout is None else check_seconds("timeout", timeout)
        )


def _checked(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of KIP848Consumer.

    :raises TypeError: if there is no such setting, or it is not the user's to set.
    """
    known = inspect.signature(KIP848Consumer).parameters
    for name in settings:
        if name in _OWN or name not in known or name == "topics":
            raise TypeError(f"StreamsApp has no setting {name!r}")
    return settings
