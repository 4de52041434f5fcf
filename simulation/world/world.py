"""A world: brokers on hosts of their own, and the user's programs, as a test handles them."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, ParamSpec, overload

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.simulation.embedded.controls import KafkaControls
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.groups import GroupControls
from fencepost.simulation.embedded.logs import Headers, ReadRecord, Text, check_time
from fencepost.simulation.embedded.settings import duration
from fencepost.simulation.embedded.shadow import ObservedStep
from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.supervisor import Supervisor
from fencepost.simulation.scenarios.values import Span
from fencepost.simulation.trace.schema import RowKind
from fencepost.simulation.world.awaited import FoundRecords
from fencepost.simulation.world.crashes import Crash, crash_of, left_behind
from fencepost.simulation.world.http_stub import HttpStub, ServesHttp
from fencepost.simulation.world.inside import SameLoop
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.outer import check_named, run_named
from fencepost.simulation.world.outputs import OUTPUT_WRITTEN, Identity, OutputRule, Sides
from fencepost.simulation.world.places import caller_place
from fencepost.simulation.world.processes import PROCESS, WorldProcess
from fencepost.simulation.world.programs import NotAProgram, Program, check_name
from fencepost.simulation.world.record_judge import AT_LEAST_ONCE, DEFAULT_CLAIMS, NO_CRASH, Done, RecordJudge
from fencepost.simulation.world.settling import SETTLE_S, SETTLES, Settling
from fencepost.simulation.world.stored import RECORD_STORED, StoredRecords, committed_from
from fencepost.simulation.world.telling import waits_of

P = ParamSpec("P")

KAFKA_PORT: Final = 9092
AFTERMATH_S: Final = 60.0
"""The time after the last fault in which its consequences, such as a rebalance, may end a program."""
_CRASHES: Final = (
    Exception,
    BaseExceptionGroup,
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
)
"""Exceptions with which programs end on a real machine, too."""
PROGRAM_RUNS: Final = "program-runs"
_OF_WAITING: Final = frozenset({SETTLES, AT_LEAST_ONCE, OUTPUT_WRITTEN})
"""Invariants that break if programs wait for something that never happens."""


class WorldGroup(GroupControls):
    """A group of a world, for tests to inspect and control."""

    thread: SameLoop

    async def wait_stable(
        self,
        members: int | None = None,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109  # virtual time
    ) -> list[GroupMember]:
        """Wait until the group is stable, as `AsyncGroup.wait_stable` does, in virtual time."""
        return await self.thread.wait_for(self._wait_stable(members, timeout=timeout))


class SimulatedWorld(KafkaControls[WorldGroup], ServesHttp):
    """Brokers, the user's programs, and the network between them, in virtual time.

    What a test of `EmbeddedKafka` calls has the same name here; what waits is awaited.
    """

    thread: SameLoop

    def __init__(
        self,
        loop: WorldLoop,
        draws: Draws,
        network: VirtualNetwork,
        claims: Iterable[str] = DEFAULT_CLAIMS,
    ) -> None:
        super().__init__(SameLoop(loop), WorldGroup)
        self.loop = loop
        self.draws = draws
        self.network = network
        self.programs: dict[str, Program] = {}
        """All programs by name."""
        self.stubs: dict[str, HttpStub] = {}
        self.dead: list[WorldProcess] = []
        """Processes that have ended, with the tasks that they have left."""
        self.record_judge = RecordJudge(
            claims,
            self.report,
            self._owns,
            self._hindered_until,
            readable=self.readable,
            groups_of=self.groups_of,
            original=lambda partition, offset: self.stored.original(self._cluster, partition, offset),
        )
        self.stored = StoredRecords(partial(self.report, RECORD_STORED))
        self.violations: list[Violation] = []
        self.failure: BaseException | None = None
        """The exception that ended the run, if it was not a violation."""
        self.program_trouble = ""
        """The traceback of the program that `program-runs` reports."""
        self.until = ""
        """The invariant with whose violation the run ends."""
        self.faults_over = asyncio.Event()
        """Set when the phase without faults begins."""
        self._calm_since: float | None = None
        self.has_settled = False
        self.failures = 0
        """The number of processes that an exception has ended."""
        self.shows_logs = False  # of programs in processes of their own
        self.imported_anew: dict[str, str] = {}
        """Programs that each process imports anew, with the reason."""
        self.crashes: list[Crash] = []
        """The same processes, and those before the faults were over."""
        self._groups_by_process: dict[tuple[int, str, int], str] = {}
        """Groups by the number of a process, a topic that it does, and how many groups it knows."""
        self._values: dict[tuple[TopicPartition, int], Text] = {}
        self._always: list[tuple[str, Callable[[], bool]]] = []
        self._eventually: list[tuple[str, Callable[[], bool]]] = []
        self._outputs: list[tuple[str, OutputRule]] = []
        """The rules about output topics, each with its topic."""
        self._settling = Settling(self)
        self.waits: list[str] = []
        """Lines about what the tasks of programs waited for when the world did not settle."""
        self._moved: dict[str, None] = {}
        """Groups that have moved since their members were last looked at."""
        self._done_digest = hashlib.blake2b(digest_size=16)
        self._processes = 0
        self._supervisor = Supervisor(
            loop,
            draws,
            start=Span("constant", 0).quantiles,
            restart=Span("uniform", 2_000_000, 10_000_000).quantiles,
        )

    async def start(
        self,
        topics: Mapping[str, int],
        brokers: int,
        config: GroupCoordinatorConfig,
        options: Mapping[str, Any],
    ) -> None:
        """Start the brokers."""
        names = tuple(f"kafka-{number}" for number in range(1, brokers + 1))
        for name in names:
            self.network.add_host(name)
        self.network.name_together("kafka", names)
        self.network.aliases["localhost", KAFKA_PORT] = (names[0], KAFKA_PORT)
        self._endpoint = EmbeddedEndpoint(
            topics=topics,
            brokers=brokers,
            hosts=tuple(self.network.hosts[name].address for name in names),
            ports=(KAFKA_PORT,) * brokers,
            config=config,
            journal=None,
            options=options,
            observing=self.stored.observing,
        )
        self._endpoint.observer.on_step = self._stepped
        self._endpoint.observer.trace.names.name_of_host = self._program_at
        await self._endpoint.start()

    @property
    def is_started(self) -> bool:
        """True once the brokers have started."""
        return self._endpoint is not None

    def calm(self) -> None:
        """End the faults."""
        self._calm_since = self.loop.time()
        self.failures = 0
        self.faults_over.set()

    # -- programs ---------------------------------------------------------------------------------------

    @overload
    def process(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, object]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Program: ...

    @overload
    def process(self, name: str, function: str, *args: Any, port: int = 8000) -> Program: ...

    def process(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Program:
        """Start a program on a host of that name: a coroutine function, and its arguments.

        A program by its name runs in a process of its own: `"orders.main:run"` is a function, a FastStream
        application, or an ASGI application, which uvicorn serves on `port`. `"orders.main"` runs as
        `python -m orders.main` does. The arguments of such a program are plain data.

        If it ends by an exception it is started again after some seconds, as a deployment does it.

        :raises FencepostError: if it is no coroutine function, or a host has that name already.
        """
        check_name(name, self.network.has_name)
        if isinstance(function, str):
            port = check_named(name, function, args, kwargs)
            named = partial(run_named, self, function, args, port, logs=self.shows_logs)
            return self._start(name, named)
        if not callable(function):
            raise FencepostError(f"process({name!r}, {function!r}): expected a coroutine function")
        return self._start(name, partial(function, *args, **kwargs))

    def _start(self, name: str, function: Callable[[], Coroutine[Any, Any, object]]) -> Program:
        self.has_settled = False
        host = self.network.add_host(name)
        program = Program(self, host, function)
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
        """Note that a program has ended by an exception.

        What can't be simulated ends the run, and so does a verdict such as `pytest.fail`.
        """
        self.failures += 1
        if (left := left_behind(program.name, error)) is not None:
            self.fail(left.with_traceback(error.__traceback__))
            return
        if isinstance(error, OutsideWorld | NotAProgram) or not isinstance(error, _CRASHES):
            self.fail(error)
            return
        crash = crash_of(program.name, self.loop.time(), error)
        self.crashes.append(crash)
        if self.record_judge.claims(NO_CRASH):
            self.report(NO_CRASH, f"{crash.told}, at {crash.at_s:.3f} s")
        if self._calm_since is not None and self.loop.time() - self._calm_since > AFTERMATH_S:
            self.program_trouble = self.program_trouble or "".join(
                [f"{program.name} ended by:\n", *traceback.format_exception(error)]
            )
            self.report(PROGRAM_RUNS, f"{crash.told}, at {crash.at_s:.3f} s, when no fault was left")

    def bury(self, process: WorldProcess) -> None:
        """Keep what a killed process has left, so that nothing of it runs."""
        self.dead.append(process)
        self.record_judge.gone(process.host.name)

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
        over: float = 0.0,
    ) -> list[ReadRecord]:
        """Append a record for each value, as `EmbeddedKafka.produce` does, and return the records.

        Values may be given as a list, too. With `over` they are appended evenly over that many seconds.
        """
        self.has_settled = False
        flat = _flat(topic, values)
        length = duration("over", over)
        check_time(timestamp_ms)
        produce = partial(
            self.endpoint.logs.produce,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )
        if not length:
            return await self._append(produce, topic, flat)
        found = []
        begin = self.loop.time()
        for number, value in enumerate(flat):
            await asyncio.sleep(begin + length * number / len(flat) - self.loop.time())
            found += await self._append(produce, topic, [value])
        return found

    async def _append(
        self,
        produce: Callable[[str, list[Text]], Coroutine[Any, Any, list[ReadRecord]]],
        topic: str,
        values: list[Text],
    ) -> list[ReadRecord]:
        """Append values; while a partition has no leader, as when its broker has just died, wait for one."""
        while any(each.name == topic for each in self._leaderless()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        found = await self.thread.wait_for(produce(topic, values))
        for record, value in zip(found, values, strict=True):
            self._values[TopicPartition(record.topic, record.partition), record.offset] = value
        return found

    @property
    def _cluster(self) -> KafkaCluster:
        return self.endpoint.brokers.cluster

    def _leaderless(self) -> Iterator[Topic]:
        """Yield the topics with a partition that has no leader now."""
        cluster = self._cluster
        for topic in cluster.image.by_id.values():
            if any(cluster.leader_id(topic, number) < 1 for number in range(topic.partitions)):
                yield topic

    def records(self, topic: str, partition: int | None = None) -> FoundRecords:
        """Return the records of a topic, or of one of its partitions, ordered by partition and offset.

        It may be awaited, as in a test of `AsyncEmbeddedKafka`, and need not be.
        """
        read = partial(self.endpoint.logs.records, topic, partition)
        return FoundRecords(self.thread.submit(read()).result(), lambda: self.thread.wait_for(read()))

    async def stop_broker(self, node_id: int) -> None:
        """Stop one of several brokers, as `EmbeddedKafka.stop_broker` does."""
        await self.thread.wait_for(self.endpoint.brokers.stop_broker(node_id))

    async def start_broker(self, node_id: int) -> None:
        """Start a broker that was stopped."""
        await self.thread.wait_for(self.endpoint.brokers.start_broker(node_id))

    def done(self, record: object, *, group: str | None = None) -> None:
        """Report that a program has done its work on a record: what a client's `getone` gave, or its like.

        A program whose consumers read the topic in several groups says for which `group` it did the record.

        :raises FencepostError: if it has no topic, partition and offset.
        """
        process = PROCESS.get()
        if process is not None and process.ended:
            return  # what is left of a killed process is taken down
        raw = getattr(record, "raw_message", record)
        try:
            partition = TopicPartition(raw.topic, raw.partition)  # type: ignore[attr-defined]
            offset = int(raw.offset)  # type: ignore[attr-defined]
        except AttributeError:
            raise FencepostError(
                f"done({record!r}): expected a record with topic, partition and offset"
            ) from None
        name = "test" if process is None else process.host.name
        number = 0 if process is None else process.number
        key = getattr(raw, "key", None)
        done = Done(
            partition,
            offset,
            name,
            number,
            self.loop.here_us,
            self._group_of(process, partition.topic) if group is None else group,
            caller_place(1),
        )
        noted = (process, done, key.encode() if isinstance(key, str) else key)
        if self.loop.ahead_us:
            self.loop.schedule(self.loop.here_us, self._note, noted)  # it has slept or computed before
        else:
            self._note(noted)

    def _note(self, noted: tuple[WorldProcess | None, Done, bytes | None]) -> None:
        process, done, key = noted
        if process is None or not process.ended:
            self.record_judge.processed(done, key)
            self._done_digest.update(f"{done}\n".encode())

    def _group_of(self, process: WorldProcess | None, topic: str) -> str:
        """Return the group in which a process reads a topic; nothing if it is in several, or in none."""
        if process is None:
            return ""
        key = (process.number, topic, len(process.group_ids))
        found = self._groups_by_process.get(key)
        if found is None:
            reading = [each for each in process.group_ids if self._reads(each, topic)]
            found = reading[0] if len(reading) == 1 else ""
            if found:
                self._groups_by_process[key] = found
        return found

    def _reads(self, group_id: str, topic: str) -> bool:
        return any(topic == each for each, _ in self.offsets_of(group_id)) or any(
            topic in member.topics for member in self.group(group_id).members()
        )

    @property
    def processed(self) -> list[Text]:
        """The values of all records that were done, each once, in the order in which they were produced.

        Values that were given to `produce` are as they were given. Others were never kept, and are left out.
        A value is there twice if a broker has stored its record twice, and both were done.
        """
        done = self.record_judge.done
        copies: Counter[tuple[TopicPartition, int]] = Counter()
        for partition in dict.fromkeys(partition for partition, _ in self._values):
            for copy, original in self.stored.copies(self._cluster, partition).items():
                copies[partition, original] += copy in done.get(partition, ())
        return [
            value
            for place, value in self._values.items()
            for _ in range((place[1] in done.get(place[0], ())) + copies[place])
        ]

    # -- waiting ----------------------------------------------------------------------------------------

    def always(self, holds: Callable[[], bool], name: str = "always") -> None:
        """Require something to hold from now on: it is checked ten times a virtual second, and at the end.

        :raises FencepostError: if it is no function.
        """
        self._always.append((name, _function("always", holds)))

    def eventually(self, holds: Callable[[], bool], name: str = "eventually") -> None:
        """Require something to hold once the world has settled, which waits for it until nothing happens any
        more.

        :raises FencepostError: if it is no function.
        """
        self._eventually.append((name, _function("eventually", holds)))

    def outputs(
        self,
        topic: str,
        *,
        of: str,
        key: Identity | None = None,
        of_key: Identity | None = None,
        claims: Iterable[str] = ("at-least-once",),
    ) -> None:
        """Require a rule between an input and an output topic, so that a service is judged by what it writes.

        Each record of the topic `of` must have a record in `topic`. They belong together if `key` of the
        output equals `of_key` of the input; that is `key`, too, unless given. Both are functions of a
        record. Without one it is the record's key. `settled` waits for missing outputs.

        :param claims: Some of `at-least-once`, `exactly-once` (no more outputs than inputs) and `order`
            (inputs of one partition and key have their first outputs in their order, in one partition).
        :raises FencepostError: if a topic is not known, or a setting is not valid.
        """
        for name in (topic, of):
            self.records(name)
        rule = OutputRule(
            topic,
            of,
            key,
            of_key,
            claims,
            read=lambda: Sides(self._committed(of), self._committed(topic)),
            state=lambda: [self._ends_of(name) for name in (of, topic)],
            writer=lambda record: self._program_at(
                self.stored.sender(
                    self._cluster, TopicPartition(record.topic, record.partition), record.offset
                )
            ),
        )
        self._outputs.append((topic, rule))

    def _committed(self, topic: str) -> list[ReadRecord]:
        """Return the records of a topic for a `read_committed` consumer, without copies of brokers."""
        shown: set[tuple[int, int]] = set()
        for partition, (first, end) in self.ends().items():
            if partition.topic == topic:
                copies = self.stored.copies(self._cluster, partition)
                offsets = self.readable(partition, first, end)
                shown.update((partition.partition, each) for each in offsets if each not in copies)
        return [each for each in self.records(topic) if (each.partition, each.offset) in shown]

    def _ends_of(self, topic: str) -> list[tuple[int, int]]:
        return [ends for partition, ends in self.ends().items() if partition.topic == topic]

    def written(self) -> int:
        """Return how many records the output topics of rules have."""
        return sum(end for topic, _ in self._outputs for _, end in self._ends_of(topic))

    def holds_eventually(self) -> bool:
        """Return true if all holds that must hold in the end."""
        return all(rule.is_complete() for _, rule in self._outputs) and all(
            holds() for _, holds in self._eventually
        )

    async def settled(self, timeout: float = SETTLE_S) -> None:  # noqa: ASYNC109  # virtual time
        """Wait until the faults are over, all groups are stable, and consumers have read all there is.

        A group has read all when it has committed the ends of all topics that it reads, and nothing was done
        or committed for `QUIET_S` seconds. A group that never commits has read all when all records are done
        and nothing happens for `IDLE_S` seconds. Consumers that have not joined their group get that time,
        too. If something is missing, nothing must happen for `STUCK_S` seconds. After `timeout` seconds since
        the last fault, the invariant `settles` does not hold.
        """
        await self._settling.settled(duration("timeout", timeout))  # virtual time

    def group_ids(self) -> list[str]:
        """Return all groups."""
        return [each for known in self.endpoint.coordinators() for each in known.kinds.group_ids()]

    def offsets_of(self, group_id: str) -> Mapping[tuple[str, int], int]:
        """Return the committed offsets of a group by topic and partition."""
        return self.group(group_id).offsets()

    def _first_offset(self, partition: TopicPartition) -> int:
        cluster = self._cluster
        topic = cluster.image.by_name.get(partition.topic)
        return 0 if topic is None else cluster.log(topic, partition.partition).log_start_offset

    def readable(self, partition: TopicPartition, first: int, end: int) -> Iterator[int]:
        """Yield the offsets in a range at which a `read_committed` consumer gets a record."""
        cluster = self._cluster
        topic = cluster.image.by_name.get(partition.topic)
        if topic is not None:
            log = cluster.log(topic, partition.partition)
            yield from (each for each in committed_from(log, first) if each < end)

    def ends(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition, and the offset after its last record."""
        cluster = self._cluster
        found = {}
        for topic in cluster.image.by_id.values():
            for number in range(topic.partitions):
                log = cluster.log(topic, number)
                found[TopicPartition(topic.name, number)] = (log.log_start_offset, log.high_watermark)
        return found

    # -- judging ----------------------------------------------------------------------------------------

    def report(self, invariant: str, message: str) -> None:
        """Report a violation; each invariant is reported once."""
        if invariant in _OF_WAITING and not self.waits:
            self.waits = waits_of(self.programs.values())
        if all(each.invariant != invariant for each in self.violations):
            trace = self.endpoint.observer.trace
            at_us = self.loop.now_us
            self.violations.append(Violation(invariant=invariant, seq=trace.seq, t_us=at_us, message=message))
            self.endpoint.observer.note("", RowKind.VIOLATION, error=invariant, detail=message)
            if invariant == self.until:
                self.loop.halt()

    def fail(self, error: BaseException) -> None:
        """End the run with an error that is the test's own."""
        self.failure = self.failure or error
        self.loop.halt()

    def _stepped(self, step: ObservedStep) -> None:
        """Follow what a step of a coordinator has committed, and the owners that it has set."""
        if step.failure is not None:
            return
        groups: dict[str, None] = {}
        for record in step.outcome.records:
            key, value = record.key, record.value
            if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
                partition = TopicPartition(key.topic, key.partition)
                self.record_judge.committed(
                    key.group_id,
                    partition,
                    value.offset,
                    self._first_offset(partition),
                    partial(self._committer, key.group_id, step.event),
                )
            elif (group_id := getattr(key, "group_id", None)) is not None:
                groups[group_id] = None
        if groups and self.record_judge.claims("owner-only"):
            # At once: a generation may last for milliseconds only, and its members own their partitions.
            self._moved |= groups
            self._note_owners()

    def _committer(self, group_id: str, event: object) -> str:
        """Return the program that commits, the time, and its line; "" if no member of the group does."""
        member_id = getattr(event, "member_id", None)
        for member in self.group(group_id).members():
            if member.member_id == member_id:
                name = self._program_of(member)
                program = self.programs.get(name)
                process = None if program is None else program.process
                place = "" if process is None else process.commit_place
                return f" by {name} at {self.loop.time():.3f} s{f' ({place})' if place else ''}"
        return ""

    def look(self) -> None:
        """Check what must always hold, ten times a second."""
        for name, holds in self._always:
            if not holds():
                self.report(name, f"it did not hold at {self.loop.time():.3f} s")
        self._note_owners()

    def _note_owners(self) -> None:
        """Note the owners in each group that has moved and is Stable; the others remain to be noted."""
        moved, self._moved = self._moved, {}
        for group_id in moved:
            group = self.group(group_id)
            if group.state == "Stable":
                self.record_judge.owners(group.members(), self._program_of, self.loop.now_us)
            else:
                self._moved[group_id] = None

    def _program_of(self, member: GroupMember) -> str:
        return self._program_at(member.client_host)

    def _program_at(self, client_host: str) -> str:
        return self.network.name_of(client_host.removeprefix("/"))

    def _owns(self, program: str, partition: TopicPartition) -> bool:
        return any(
            partition in member.assignment and self._program_of(member) == program
            for group_id in self.group_ids()
            for member in self.group(group_id).members()
        )

    def groups_of(self, program: str) -> list[str]:
        """Return the groups of which a program is a member."""
        return [
            group_id
            for group_id in self.group_ids()
            if any(self._program_of(member) == program for member in self.group(group_id).members())
        ]

    def _hindered_until(self, program: str) -> int:
        if (found := self.programs.get(program)) is None:
            return 0
        return self.loop.now_us if found.host.callback_us else found.host.hindered_us

    async def end(self) -> None:
        """Judge the end of a test. It first waits for programs that are to run, unless the test has done so.

        If the test has taken all programs down, nothing says that they had time to do all records.
        """
        if not self.has_settled:
            if any(each.wanted or each.is_running for each in self.programs.values()):
                await self.settled()
            else:
                self._judge_eventually()
        self.stored.judge(self._cluster)
        self.look()

    def judge_end(self) -> None:
        """Judge what must hold once all has settled."""
        self.record_judge.all_done(self.ends())
        self._judge_eventually()

    def _judge_eventually(self) -> None:
        for name, holds in self._eventually:
            if not holds():
                self.report(name, "it does not hold at the end")
        for _, rule in self._outputs:
            for invariant, message in rule.judge():
                self.report(invariant, message)

    def digest(self) -> str:
        """A hash of the run: all that was sent, and all that was done."""
        self._done_digest.update(self.network.digest().encode())
        return self._done_digest.hexdigest()


def _flat(topic: str, values: Iterable[Text | Iterable[Text]]) -> list[Text]:
    flat: list[Text] = []
    for value in values:
        if value is None or isinstance(value, str | bytes):
            flat.append(value)
        elif isinstance(value, Iterable):
            flat.extend(value)
        else:
            raise FencepostError(
                f"produce({topic!r}, {value!r}): expected text, bytes, None, or a list of them"
            )
    return flat


def _function(verb: str, holds: Callable[[], bool]) -> Callable[[], bool]:
    if not callable(holds) or inspect.iscoroutinefunction(holds):
        raise FencepostError(f"{verb}({holds!r}): expected a function without arguments that returns a bool")
    return holds
