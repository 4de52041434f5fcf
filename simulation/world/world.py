"""A world: brokers on hosts of their own, and the user's programs, as a test handles them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, ParamSpec

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.embedded.controls import KafkaControls
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.groups import GroupControls
from fencepost.coordinator.kinds import GroupMember
from fencepost.simulation.embedded.logs import Headers, ReadRecord, Text
from fencepost.simulation.embedded.settings import duration, whole
from fencepost.simulation.kernel.rng import Streams
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.scenarios.values import Span
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.world.inside import SameLoop
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.processes import PROCESS, WorldProcess
from fencepost.simulation.world.programs import Program, check_name

P = ParamSpec("P")

KAFKA_PORT: Final = 9092


class WorldGroup(GroupControls):
    """A group of a world, as a test looks at it and plays with it."""

    thread: SameLoop

    async def wait_stable(
        self,
        members: int | None = None,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109  # virtual time
    ) -> list[GroupMember]:
        """Wait until the group is stable, as `AsyncGroup.wait_stable` does, in virtual time."""
        return await self.thread.wait_for(self._wait_stable(members, timeout=timeout))


class World(KafkaControls[WorldGroup]):
    """Brokers, the user's programs, and the network between them, in virtual time.

    What a test of `EmbeddedKafka` calls has the same name here; what waits is awaited.
    """

    thread: SameLoop

    def __init__(self, loop: WorldLoop, streams: Streams, network: VirtualNetwork) -> None:
        super().__init__(SameLoop(loop), WorldGroup)
        self.loop = loop
        self.streams = streams
        self.network = network
        self.programs: dict[str, Program] = {}
        """All programs by name."""
        self.dead: list[WorldProcess] = []
        """Processes that have ended, with the tasks that they have left."""
        self._processes = 0
        self._supervisor = Supervisor(
            loop,
            streams,
            start=Span("constant", 0).quantiles,
            restart=Span("uniform", 2_000_000, 10_000_000).quantiles,
        )

    async def start(self, topics: Mapping[str, int], brokers: int, config: GroupCoordinatorConfig, options: Mapping[str, Any]) -> None:
        """Start the brokers."""
        names = tuple(f"kafka-{number}" for number in range(1, brokers + 1))
        for name in names:
            self.network.add_host(name)
        for host in ("localhost", "kafka"):
            self.network.aliases[host, KAFKA_PORT] = (names[0], KAFKA_PORT)
        self._endpoint = EmbeddedEndpoint(
            topics=topics,
            brokers=brokers,
            hosts=tuple(self.network.hosts[name].address for name in names),
            ports=(KAFKA_PORT,) * brokers,
            config=config,
            journal=None,
            options=options,
        )
        await self._endpoint.start()

    # -- programs ---------------------------------------------------------------------------------------

    def process(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, object]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Program:
        """Start a program on a host of that name: a coroutine function, and its arguments.

        If it ends by an exception it is started again after some seconds, as a deployment does it.

        :raises FencepostError: if it is no coroutine function, or there is a host of that name.
        """
        check_name(name, self.network.hosts.__contains__)
        if not callable(function):
            raise FencepostError(f"process({name!r}, {function!r}): expected a coroutine function")
        host = self.network.add_host(name)
        program = Program(self, host, partial(function, *args, **kwargs), restarts=True)
        self.programs[name] = program
        program.start()
        return program

    def next_process(self) -> int:
        """The number of a new process."""
        self._processes += 1
        return self._processes

    def tell_program(self, program: Program, what: str, detail: str = "") -> None:
        """Write a row about a program."""
        self.endpoint.observer.note(program.name, RowKind.HOST, detail=f"{what} {detail}".strip())

    def program_failed(self, program: Program, error: BaseException) -> None:
        """A program has ended by an exception."""

    def bury(self, process: WorldProcess) -> None:
        """Keep what a killed process has left, so that nothing of it runs."""
        self.dead.append(process)

    def restart_later(self, program: Program) -> None:
        """Start a program again after the time that a restart takes."""
        self._supervisor.restart_later(program)

    # -- records ----------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        *values: Text | Iterable[Text],
        key: Text = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> list[ReadRecord]:
        """Append a record for each value; the records that they became."""
        flat: list[Text] = []
        for value in values:
            if value is None or isinstance(value, str | bytes):
                flat.append(value)
            else:
                flat.extend(value)
        return await self.thread.wait_for(
            self.endpoint.logs.produce(
                topic, flat, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
            )
        )

    async def records(self, topic: str, partition: int | None = None) -> list[ReadRecord]:
        """All records of a topic, or of one of its partitions, in the order of partitions and offsets."""
        return await self.thread.wait_for(self.endpoint.logs.records(topic, partition))
