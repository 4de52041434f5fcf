"""`EmbeddedKafka`: brokers on ports of this process, in a thread of their own, for a test to drive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.embedded.groups import AsyncGroup, Group, GroupControls, Who
from fencepost.simulation.embedded.interference import Rule
from fencepost.simulation.embedded.lifecycle import Controls, Embedded
from fencepost.simulation.embedded.logs import Headers, ReadRecord, Text
from fencepost.simulation.embedded.members import GroupMember
from fencepost.simulation.embedded.settings import (
    Api,
    Config,
    Error,
    Tls,
    address,
    api_of,
    broker_count,
    config_of,
    duration,
    error_of,
    name_of,
    ports_of,
    tls_of,
    topics_of,
    trace_topic_of,
    users_of,
    whole,
)
from fencepost.simulation.embedded.thread import LoopThread, on_loop, until_done
from fencepost.simulation.trace.schema import Kind, Row
from fencepost.simulation.world.observers import Violation

if TYPE_CHECKING:
    from fencepost.simulation.embedded.endpoint import Endpoint, JournalLike
    from fencepost.simulation.embedded.tracing import TopicTracing

G = TypeVar("G", bound=GroupControls)


class Clock:
    """The clock of the coordinators: that of the machine, and what it was advanced by."""

    def __init__(self, kafka: KafkaControls[Any]) -> None:
        self.thread = kafka.thread
        self._kafka = kafka

    @on_loop
    def advance(self, seconds: float) -> None:
        """Let that many seconds pass at once: what is due happens now, in its order, and nobody sleeps.

        Members whose connection is open count as heard all the time, since their clients can't know that
        time was moved: `expire` ends the session of such a one. The sessions of others end, revocations that
        take too long do so too, and committed offsets grow old.

        :raises FencepostError: for a length of time that is none.
        """
        self._kafka.endpoint.advance(duration("advance", seconds))


class KafkaControls(Controls["Endpoint"], Generic[G]):
    """A running Kafka, as a test drives it. Its methods take microseconds, from whatever thread."""

    def __init__(self, thread: LoopThread, group_type: type[G]) -> None:
        super().__init__(thread)
        self._group_type = group_type
        self._bootstrap_servers = ""
        self.clock = Clock(self)
        """The coordinators' clock; `advance` moves it."""

    @property
    def bootstrap_servers(self) -> str:
        """What a client's setting `bootstrap.servers` takes: all brokers, with commas between them."""
        assert self.endpoint
        return self._bootstrap_servers

    def group(self, group_id: str) -> G:
        """A group by its id, whether it exists yet or not.

        :raises FencepostError: if that can't be the id of a group.
        """
        return self._group_type(self.endpoint, self.thread, name_of("group", group_id, "a group id"))

    # -- topics and records -----------------------------------------------------------------------------

    @on_loop
    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic.

        :raises FencepostError: if it exists, or Kafka would refuse it.
        """
        name_of("topic", name, "a name")
        (checked,) = topics_of({name: partitions}).items()
        self.endpoint.create_topic(*checked)

    @until_done
    async def produce(
        self,
        topic: str,
        *values: Text,
        key: Text = None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> list[ReadRecord]:
        """Append a record for each value; the records that they became.

        They go to the partition of the key, as Kafka's own partitioner has it, to `partition` if that is
        given, or to all partitions in turn. Text is encoded as UTF-8, that of headers too.

        :raises FencepostError: for an unknown topic or partition, a value that is too large, or text that
            UTF-8 can't express.
        """
        return await self.endpoint.logs.produce(topic, values, key=key, partition=partition, headers=headers)

    @until_done
    async def records(self, topic: str, partition: int | None = None) -> list[ReadRecord]:
        """All records of a topic, or of one of its partitions, in the order of partitions and offsets.

        :raises FencepostError: for an unknown topic or partition.
        """
        return await self.endpoint.logs.records(topic, partition)

    # -- what goes wrong --------------------------------------------------------------------------------

    @on_loop
    def lose_next_response(self, api: Api, member: Who | None = None, *, times: int = 1) -> None:
        """Carry out the next request of that API, and close its connection instead of answering.

        `member` is a `GroupMember`, or a member id, an instance id or a client id: only requests that bear
        it are meant. Without it everybody's are.

        :raises FencepostError: for an unknown API, a count below 1, or a member that can't be called so.
        """
        self._add(Rule(api=api_of(api), who=_name(member), times=whole("times", times, 1, None), lost=True))

    @on_loop
    def fail_next(self, api: Api, error: Error, member: Who | None = None, *, times: int = 1) -> None:
        """Answer the next request of that API with an error, and do nothing else about it.

        Where the API's answers have an error for each of their parts, all parts have it, and not the whole:
        each partition of a Fetch, also where it goes on with those of its session. What is about a fetch
        session, or about a group as such, is told of the whole. Metadata fails for each of its topics, and
        a request that asks for brokers alone is passed over. If an answer has no place for an error (Produce
        with acks=0) the connection is closed. `member` is as for `lose_next_response`.

        :raises FencepostError: for an unknown API or error, a count below 1, or a member that can't be
            called so.
        """
        rule = Rule(
            api=api_of(api), who=_name(member), times=whole("times", times, 1, None), error=error_of(error)
        )
        self._add(rule)

    @on_loop
    def delay(self, api: Api, seconds: float, member: Who | None = None, *, times: int | None = None) -> None:
        """Carry out requests of that API at once, and answer them that much later; 0 ends it.

        It goes on until it is ended, or for `times` requests. What else came on the same connection waits
        too, as it does with a slow broker. `member` is as for `lose_next_response`; 0 without it ends all
        delays of the API, those of single members too.

        :raises FencepostError: for an unknown API, a length of time that is none, a count below 1, or a
            member that can't be called so.
        """
        key, who, delay_s = api_of(api), _name(member), duration("seconds", seconds)
        count = None if times is None else whole("times", times, 1, None)
        self.endpoint.interference.remove_delays(key, who, of_all=who is None and not delay_s)
        if delay_s:
            self._add(Rule(api=key, who=who, times=count, delay_s=delay_s))

    @on_loop
    def disconnect(self, member: Who) -> None:
        """Close the connections on which a member was heard. It is free to connect again.

        `member` is as for `lose_next_response`: all members that have this client id are meant.

        :raises FencepostError: if no connection of such a member is open.
        """
        name = _called(member)
        found = self.endpoint.interference.disconnect(name)
        if not found:
            raise FencepostError(f"no connection of a member {name!r} is open")
        for member_id in found:
            self.endpoint.watch.note("disconnect", Kind.FAULT, state_to="begin", detail=member_id)

    @on_loop
    def move_coordinator(
        self, group_id: str | None = None, *, to: int | None = None, load_seconds: float = 0.05
    ) -> None:
        """Let another broker coordinate a group, or all groups: the next one, or the one with the id `to`.

        The old one answers NOT_COORDINATOR from now on, the new one COORDINATOR_LOAD_IN_PROGRESS for
        `load_seconds`. Groups share coordinators: one that falls on the same shard moves along. A single
        broker loads its groups anew.

        :raises FencepostError: if that can't be the id of a group, there is no such broker, or for a length
            of time that is none.
        """
        if group_id is not None:
            name_of("group", group_id, "a group id")
        self.endpoint.move_coordinator(group_id, to, duration("load_seconds", load_seconds))

    @on_loop
    def restart(self) -> None:
        """Let all brokers die and come back at once, on the same ports.

        Connections break. Groups and offsets are read from the journal again; members have a full session
        to come back. Topics and records are still there.

        :raises FencepostError: if the journal is broken.
        """
        self.endpoint.watch.note("restart", Kind.FAULT, state_to="begin")
        self.endpoint.brokers.restart()

    def _add(self, rule: Rule) -> None:
        self.endpoint.interference.add(rule)

    # -- what happened ----------------------------------------------------------------------------------

    @on_loop
    def events(self) -> list[Row]:
        """The trace so far, the newest 200,000 rows of it: heartbeats, rebalances, members, faults.

        Members are called by their ids. What a member owns is what its heartbeats say.
        """
        return list(self.endpoint.watch.rows)

    @property
    def last_event(self) -> int:
        """The number (`seq`) of the newest row of the trace."""
        return self._last_event()

    @on_loop
    def _last_event(self) -> int:
        return self.endpoint.watch.seq

    @on_loop
    def member_names(self) -> dict[str, str]:
        """What members are called whose ids the trace has, by member id: also of those that are gone.

        It is the instance id, or the client id, and the beginning of the member id.
        """
        return dict(self.endpoint.watch.names)

    @on_loop
    def check(self) -> list[Violation]:
        """What was seen so far that must never happen; empty if all is well.

        Coordinators are checked after each of their steps, and their journal against what they remember;
        clients by what their requests say.
        """
        return self.endpoint.watch.check()


def _name(member: Who | None) -> str | None:
    return None if member is None else _called(member)


def _called(member: Who) -> str:
    if isinstance(member, GroupMember):
        return member.member_id
    return name_of("member", member, "one of members(), or a member id, instance id or client id")


class EmbeddedKafka(KafkaControls[Group], Embedded["Endpoint", "AsyncEmbeddedKafka"]):
    """A Kafka in this process, for any client: up in milliseconds, and driven by the test.

        with EmbeddedKafka(topics={"orders": 12}) as kafka:
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, ...})
            ...
            kafka.group("g").wait_stable(members=1)

    Entered with `async with`, waiting is awaited: `await kafka.group("g").wait_stable()`. Either way the
    brokers have a thread and an event loop of their own, so a client or a test that blocks holds up nobody.

    `brokers` share partitions and groups among them, each on a port of its own: a free one, unless `ports`
    says which. `topics` are created at once: partitions by name, or names of topics with one partition.
    `config` is settings by Kafka's names over a quick profile (heartbeats each 0.1 s, no delay before a first
    rebalance), or a whole `GroupCoordinatorConfig`. `journal` is where groups, topics and records outlive
    this object: a path, or an object for records of groups alone. With `auto_create_topics` a topic comes to
    be when a client asks for it, with `default_partitions`. With `users`, passwords by name, clients have to
    log in by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; with `tls`, an `ssl.SSLContext` or the PEM files
    (certificate, key), they have to speak TLS. `trace_topic` is where the trace goes as it grows:
    HOST:PORT/TOPIC of another Kafka that takes anybody without TLS, or a topic of this one.

    :raises FencepostError: for settings that make no sense, and on entering if a port can't be listened on.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | Iterable[str] | None = None,
        config: Config = None,
        journal: JournalLike = None,
        host: str = "127.0.0.1",
        ports: Iterable[int] = (),
        auto_create_topics: bool = False,
        default_partitions: int = 1,
        users: Mapping[str, str] | None = None,
        tls: Tls = None,
        trace_topic: str | None = None,
    ) -> None:
        super().__init__(LoopThread("fencepost-embedded-kafka"), Group)
        self._brokers = broker_count(brokers)
        self._topics = topics_of(topics)
        self._config = config_of(config)
        self._journal = journal
        self._host = address(host)
        self._ports = ports_of(ports, self._brokers)
        self._options = {
            "auto_create_topics": auto_create_topics,
            "default_partitions": whole("default_partitions", default_partitions, 1, None),
            "users": users_of(users),
            "tls": tls_of(tls),
        }
        self._trace_topic = trace_topic_of(trace_topic)
        self._tracing: TopicTracing | None = None

    @property
    def awaited(self) -> AsyncEmbeddedKafka:
        """The same Kafka for a test that awaits. It must be running.

        :raises FencepostError: if it does not run.
        """
        return AsyncEmbeddedKafka(self)

    def start(self) -> None:
        """Listen; what `with` does.

        :raises FencepostError: if it runs already, a topic is one that Kafka would refuse, or the journal
            is broken.
        :raises EnvironmentLacks: if a port can't be listened on, a library is missing, or the broker of the
            trace's topic does not answer.
        """
        for library in ("aiokafka", "kio"):
            if find_spec(library) is None:
                raise EnvironmentLacks(f"EmbeddedKafka needs {library}: pip install 'fencepost[kafka]'")
        super().start()
        self._bootstrap_servers = self.endpoint.brokers.bootstrap_servers
        if self._trace_topic is not None:
            self._trace(self.endpoint, self._trace_topic)

    def _trace(self, endpoint: Endpoint, topic: str) -> None:
        from fencepost.simulation.embedded.tracing import TopicTracing

        async def begin(tracing: TopicTracing) -> None:
            tracing.begin()

        try:
            tracing = TopicTracing(endpoint, topic)
        except BaseException:
            self.close()
            raise
        self.thread.submit(begin(tracing)).result()
        self._tracing = tracing

    async def _opened(self) -> Endpoint:
        from fencepost.simulation.embedded.endpoint import Endpoint

        endpoint = Endpoint(
            topics=self._topics,
            brokers=self._brokers,
            ports=self._ports,
            host=self._host,
            config=self._config,
            journal=self._journal,
            options=self._options,
        )
        await endpoint.start()
        return endpoint

    def close(self) -> None:
        """Close ports and connections; what the end of `with` does. Closing twice does no harm.

        :raises EnvironmentLacks: if rows could not be written to the trace's topic.
        """
        tracing, self._tracing = self._tracing, None
        try:
            if tracing is not None:
                tracing.close()
        finally:
            super().close()

    async def _closed(self, endpoint: Endpoint) -> None:
        await endpoint.brokers.close()


class AsyncEmbeddedKafka(KafkaControls[AsyncGroup]):
    """What `async with EmbeddedKafka()` gives: the same Kafka, whose groups are awaited."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        super().__init__(kafka.thread, AsyncGroup)
        self._kafka = kafka
        self._bootstrap_servers = kafka.bootstrap_servers

    @property
    def awaited(self) -> AsyncEmbeddedKafka:
        """Itself: what awaits things may take it of whatever Kafka it is given."""
        return self

    @property
    def endpoint(self) -> Endpoint:
        """What runs on the thread's loop."""
        return self._kafka.endpoint
