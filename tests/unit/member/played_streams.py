"""A client at work over members that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.application.driver import GlobalWork, StreamsDriver
from fencepost.member.streams.application.port import CommitRefused, PartitionRecords, ThreadEvents
from fencepost.member.streams.application.runtime import CutShort
from fencepost.member.streams.application.settings import check_process
from fencepost.member.streams.application.store import StateDirectory
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientState as S
from fencepost.member.streams.handler import Handlers
from fencepost.member.streams.thread_states import StreamThreadState as T

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B, C = (f"app-StreamThread-{index}" for index in (1, 2, 3))


class Played:
    """A member: the test says what its next poll answers, raises or does."""

    def __init__(self, events: ThreadEvents) -> None:
        self.events = events
        self.script: asyncio.Queue[Any] = asyncio.Queue()
        self.joined = False
        self.round_s = 0.0
        self.connected = True
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.refuses = False
        self.asks = False
        self.closed = False
        self.owned: list[TopicPartition] = []
        self.close_gate: asyncio.Event | None = None
        self.commit_gate: asyncio.Event | None = None
        self.closed_within = 0.0

    async def start(self) -> None: ...

    async def poll(self) -> Sequence[PartitionRecords]:
        item = await self.script.get()
        if isinstance(item, BaseException):
            raise item
        if callable(item):
            item = await item()
        return item or ()

    def is_connected(self) -> bool:
        return self.connected

    async def committed(self, partition: TopicPartition) -> int | None:
        return self.committed_offsets.get(partition)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.commit_gate is not None:
            await self.commit_gate.wait()
        if self.refuses:
            raise CommitRefused("fenced")
        self.committed_offsets.update(offsets)

    def ask_for_shutdown(self) -> None:
        self.asks = True

    def wake(self) -> None:
        self.script.put_nowait(())

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        self.closed_within = within_s
        if self.close_gate is not None:
            await self.close_gate.wait()
        if self.owned and self.commit_gate is None:
            await self.events.on_revoked(self.owned)
        self.closed = True

    # -- what a test lets happen -----------------------------------------------------------------------------

    def assign(self, *partitions: TopicPartition) -> None:
        async def rebalance() -> None:
            self.owned += partitions
            await self.events.on_assigned(partitions)
            self.joined = True

        self.script.put_nowait(rebalance)

    def revoke(self, *partitions: TopicPartition, lost: bool = False) -> None:
        async def rebalance() -> None:
            for partition in partitions:
                self.owned.remove(partition)
            await (self.events.on_lost if lost else self.events.on_revoked)(partitions)

        self.script.put_nowait(rebalance)

    def give(self, partition: TopicPartition, first: int, *values: Any) -> None:
        self.script.put_nowait([PartitionRecords(partition, values, first + len(values))])


class Time:
    """A clock that a test moves, and tasks of the loop."""

    def __init__(self) -> None:
        self.at = 0.0
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.at + seconds, future))
        await future

    def now(self) -> float:
        return self.at

    async def wait_for(
        self, work: Coroutine[Any, Any, None], told: asyncio.Event, grace_s: Callable[[], float]
    ) -> None:
        task = asyncio.create_task(work)
        over = asyncio.create_task(self._over(told, grace_s))
        await asyncio.wait((task, over), return_when="FIRST_COMPLETED")
        over.cancel()
        if task.done():
            return task.result()
        task.cancel()
        raise CutShort

    async def _over(self, told: asyncio.Event, grace_s: Callable[[], float]) -> None:
        await told.wait()
        await self.sleep(grace_s())

    async def advance(self, seconds: float) -> None:
        await settle()
        self.at += seconds
        due = [future for at, future in self.sleepers if at <= self.at]
        self.sleepers = [(at, future) for at, future in self.sleepers if at > self.at]
        for future in due:
            if not future.done():
                future.set_result(None)
        await settle()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def answering(*responses: Any) -> Callable[[BaseException], Any]:
    """A handler that gives these answers, the last one again and again."""
    answers = list(responses)

    def handler(error: BaseException) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return handler


class Rig:
    def __init__(
        self,
        process: Callable[..., Any] | None = None,
        *,
        threads: int = 2,
        escalates: bool = True,
        handler: Callable[..., Any] | None = None,
        state_dir: Any = None,
        reader: Any = None,
        changelog: Any = None,
        global_process: Callable[..., Any] | None = None,
    ) -> None:
        self.seen: list[tuple[TopicPartition, Any]] = []
        self.members: dict[str, Played] = {}
        self.time = Time()
        self.states: list[S] = []
        self.told: list[Any] = []
        handlers = Handlers()
        if handler is not None:
            handlers.add(handler)
        global_work = None
        if reader is not None:
            global_work = GlobalWork(check_process(global_process or self._process), lambda: reader)
        self.engine = StreamsDriver(
            StreamsClient("app", threads, global_thread=reader is not None, escalates=escalates),
            check_process(process or self._process),
            self._make,
            handlers=handlers,
            directory=StateDirectory(state_dir, "group"),
            runtime=self.time,
            commit_interval_s=30,
            cleanup_delay_s=600,
            metrics_interval_s=60,
            global_work=global_work,
            observer=self.told.append,
            changelog=changelog,
        )
        self.engine.listener = lambda new, old: self.states.append(new)

    async def _process(self, partition: TopicPartition, records: Sequence[Any]) -> None:
        for record in records:
            if isinstance(record, BaseException):
                raise record
            self.seen.append((partition, record))

    def _make(self, name: str, events: ThreadEvents) -> Played:
        self.members[name] = Played(events)
        return self.members[name]

    @property
    def state(self) -> S:
        return self.engine.client.state

    def thread(self, name: str) -> T:
        return self.engine.client.threads[name].state

    async def running(self) -> Rig:
        await self.engine.start()
        for number, member in enumerate(self.members.values()):
            member.assign(TopicPartition("t", number))
        await settle()
        assert self.state is S.RUNNING
        return self
