"""The controls of a running Kafka for a test: topics, records, members, faults, its clock, and its trace."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.fault_controls import FaultControls
from fencepost.simulation.embedded.fault_rules import FaultRule
from fencepost.simulation.embedded.groups import GroupControls, state_of
from fencepost.simulation.embedded.lifecycle import Controls
from fencepost.simulation.embedded.logs import Headers, ReadRecord, Text
from fencepost.simulation.embedded.partition_controls import PartitionControls
from fencepost.simulation.embedded.settings import (
    TopicConfig,
    duration,
    flag,
    name_of,
    racks_of,
    refused_by_kafka,
    topic_config_of,
    topics_of,
    whole,
)
from fencepost.simulation.embedded.thread import LoopThread, on_loop, until_done
from fencepost.simulation.embedded.timeline import timelines_page
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.trace.schema import Row, RowKind, is_steady

if TYPE_CHECKING:
    from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
    from fencepost.simulation.embedded.scopes import KafkaScope

G = TypeVar("G", bound=GroupControls)

_MOST_SHOWN = 10
"""The number of topics, and of groups, that `repr()` shows."""


class EmbeddedClock:
    """The clock of the coordinators: the machine's clock plus the time by which it was advanced."""

    def __init__(self, kafka: KafkaControls[Any]) -> None:
        self.thread = kafka.thread
        self._kafka = kafka

    @on_loop
    def advance(self, seconds: float) -> None:
        """Let that many seconds pass at once: all that is due happens now, in order, and nothing sleeps.

        Members whose connection is open keep their sessions, because their clients can't know that time was
        moved: use `expire` to end such a session. Sessions of other members end, revocations that take too
        long time out, and committed offsets grow old. Transactions that take too long are aborted, including
        those of connected producers.

        :raises FencepostError: if `seconds` is not a valid length of time.
        """
        self._kafka._for_all("advance")
        self._kafka.endpoint.advance(duration("advance", seconds))


class KafkaControls(FaultControls["EmbeddedEndpoint"], PartitionControls, Generic[G]):
    """A running Kafka, as a test drives it. Its methods take microseconds, and may be called from any
    thread."""

    def __init__(
        self, thread: LoopThread, group_type: type[G], running: Controls[EmbeddedEndpoint] | None = None
    ) -> None:
        super().__init__(thread, running)
        self._group_type = group_type
        self.clock = EmbeddedClock(self)
        """The coordinators' clock; `advance` moves it."""

    def __repr__(self) -> str:
        """Return the address, the topics with their partitions, and the groups with their states.

        It does not wait for the brokers' thread, because a debugger may have stopped that thread.
        """
        name = type(self).__name__
        try:
            brokers = self.endpoint.brokers
        except (FencepostError, AttributeError):  # AttributeError: its arguments were refused
            return f"<{name}, not running>"
        topics = (f"{each.name} ({each.partitions})" for each in brokers.cluster.image.by_name.values())
        groups = (
            f"{group_id} {state_of(coordinator, group_id)}"
            for coordinator in self.endpoint.coordinators()
            for group_id in {*coordinator.kinds.group_ids(), *coordinator.offsets.group_ids}
        )
        return f"<{name} {brokers.bootstrap_servers}, topics: {_listed(topics)}, groups: {_listed(groups)}>"

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's setting `bootstrap.servers`: all brokers, separated by commas.

        These are the addresses that the first listener advertises.
        """
        return self.endpoint.brokers.bootstrap_servers

    @property
    def listening(self) -> dict[str, str]:
        """The addresses that the brokers listen on, by listener: those that a proxy connects to."""
        return self.endpoint.brokers.listening

    @property
    def advertised(self) -> dict[str, str]:
        """The addresses that the clients of each listener receive, by listener."""
        return self.endpoint.brokers.advertised

    def group(self, group_id: str) -> G:
        """Return a group by its id, whether it exists yet or not.

        :raises FencepostError: if it is not a valid group id.
        """
        self._must_run()
        return self._group_type(self, self._own("group", group_id, "a group id"))

    # -- topics and records -----------------------------------------------------------------------------

    @on_loop
    def create_topic(
        self, name: str, partitions: int = 1, *, replicas: int | None = None, config: TopicConfig = None
    ) -> None:
        """Create a topic. `config` has the topic's own settings by Kafka's names: `{"retention.ms": 60_000}`.

        Each partition is on `replicas` brokers; the default is `default.replication.factor`.

        :raises FencepostError: if it exists, if Kafka would refuse it or its settings, or if there are too
            few brokers.
        """
        self._own("topic", name)
        whole("partitions", partitions, 1, None)
        if replicas is not None:
            whole("replicas", replicas, 1, len(self.endpoint.brokers.groups.node_ids))
        self.endpoint.create_topic(name, partitions, topic_config_of(config), replicas)

    @on_loop
    def topics(self) -> dict[str, int]:
        """Return the number of partitions by topic."""
        known = self.endpoint.brokers.cluster.shown.by_name
        return {name: each.partitions for name, each in sorted(known.items()) if name.startswith(self.prefix)}

    @on_loop
    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records.

        :raises FencepostError: for an unknown topic, and for `__consumer_offsets`.
        """
        cluster = self.endpoint.brokers.cluster
        topic = self.endpoint.logs.topic(self._own("topic", name), self.prefix)
        with refused_by_kafka():
            cluster.check_own(topic, "Cannot delete")
        cluster.delete_topic(topic)

    @on_loop
    def groups(self) -> dict[str, str]:
        """Return the state of each group by its id: all groups that have members or committed offsets."""
        return {
            group_id: state_of(coordinator, group_id)
            for coordinator in self.endpoint.coordinators()
            for group_id in sorted({*coordinator.kinds.group_ids(), *coordinator.offsets.group_ids})
            if group_id.startswith(self.prefix)
        }

    # -- what goes wrong --------------------------------------------------------------------------------

    @on_loop
    def move_coordinator(
        self, group_id: str | None = None, *, to: int | None = None, load_seconds: float = 0.05
    ) -> None:
        """Move the coordinator of a group, or of all groups, to the next broker or to the broker with the id
        `to`.

        The old broker responds with NOT_COORDINATOR from now on, the new one with
        COORDINATOR_LOAD_IN_PROGRESS for `load_seconds`. Groups share coordinators: groups on the same shard
        move along. A single broker loads its groups again.

        :raises FencepostError: for an invalid group id, an unknown broker, or an invalid length of time.
        """
        self._for_all("move_coordinator")
        if group_id is not None:
            name_of("group", group_id, "a group id")
        self.endpoint.move_coordinator(group_id, to, duration("load_seconds", load_seconds))

    @on_loop
    def restart(self) -> None:
        """Kill all brokers and start them again at once, on the same ports.

        Connections break. Groups and offsets are loaded from the journal. Members have a full session timeout
        to return. Topics and records are kept. Leaders stay, and leader epochs rise by two, as if each
        partition had been without a leader in between.

        :raises FencepostError: if the journal is broken.
        """
        self._for_all("restart")
        self._called("restart")
        self.endpoint.brokers.restart()

    def _add(self, rule: FaultRule) -> None:
        if rule.who is not None:
            rule.name = self.endpoint.observer.trace.names.told(rule.who)
        super()._add(rule)

    @on_loop
    def end_of_test(self, failure: BaseException | None = None) -> None:
        """Write into the trace that the test has ended, or failed with this exception, at this time."""
        error = "" if failure is None else type(failure).__name__
        self.endpoint.observer.note(
            "",
            RowKind.TEST,
            state_to="ended" if failure is None else "failed",
            error=error,
            detail="" if failure is None else "".join(traceback.format_exception_only(failure)).strip(),
        )

    # -- what happened ----------------------------------------------------------------------------------

    @on_loop
    def events(self, since: int = 0, *, steady: bool = True, group_id: str | None = None) -> list[Row]:
        """Return the newest 200,000 rows of the trace so far: heartbeats, rebalances, members, faults.

        Members are named by their ids. The partitions that a member owns are those in its heartbeats. `since`
        is a number of `last_event`: only the rows after it are returned. If `steady` is false, accepted
        heartbeats that changed nothing are left out. With `group_id`, events of other groups are, too.

        :raises FencepostError: if it is not a number of a row, or for an invalid group id.
        """
        wants = self._wanted_rows(steady=steady, group_id=group_id)
        return list(filter(wants, self.endpoint.observer.rows_since(whole("since", since, 0, None))))

    def _wanted_rows(self, *, steady: bool, group_id: str | None) -> Callable[[Row], bool]:
        """Return a test for the events that a caller wants.

        :raises FencepostError: for an invalid group id.
        """
        flag("steady", steady)
        groups = None if group_id is None else ("", self._own("group", group_id, "a group id"))
        return lambda row: (
            self._is_own(row) and (steady or not is_steady(row)) and (groups is None or row.group in groups)
        )

    def _is_own(self, row: Row) -> bool:
        """Return true for an event that these controls show."""
        return True

    @property
    @on_loop
    def last_event(self) -> int:
        """The number (`seq`) of the newest row of the trace."""
        return self.endpoint.observer.seq

    @on_loop
    def member_names(self) -> dict[str, str]:
        """The names of members that the trace mentions, by member id. It includes members that have left.

        A name is the instance id or the client id, plus the beginning of the member id.
        """
        return dict(self.endpoint.observer.names)

    @on_loop
    def check(self) -> list[Violation]:
        """Return the violations that were seen so far; empty if all is well.

        Coordinators are checked after each step, and their journal is compared with their state. Clients are
        checked by their requests.
        """
        return self.endpoint.observer.check(self.prefix)

    @on_loop
    def _events_since(self, seq: int) -> tuple[list[Row], Mapping[str, str]]:
        observer = self.endpoint.observer
        rows = observer.rows_since(seq)
        return [row for row in rows if self._is_own(row)], dict(observer.names)

    def timeline(self, group_id: str | None = None, *, since: int = 0) -> str:
        """Return a page with the timeline of a group, or of all groups: a whole HTML document.

        `since` is a number of `last_event`: the page has the events after it.

        :raises FencepostError: for an invalid group id or number.
        """
        if group_id is not None:
            self._own("group", group_id, "a group id")
        rows, names = self._events_since(whole("since", since, 0, None))
        return timelines_page(rows, group_id, names)  # in the caller's thread: it takes a while


class BlockingControls(KafkaControls[G]):
    """The controls of a Kafka that runs in its own thread: methods that take longer block the caller."""

    @until_done
    async def produce(
        self,
        topic: str,
        *values: Text,
        key: Text = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> list[ReadRecord]:
        """Append a record for each value, and return the records.

        A record goes to `partition` if that is given, else to the key's partition as Kafka's partitioner
        chooses it, else to each partition in turn. Text, including headers, is encoded as UTF-8. The time is
        that of `clock`, or `timestamp_ms`, in milliseconds since the epoch.

        :raises FencepostError: for an unknown topic or partition, a value that is too large, a time that the
            topic does not accept, or text that UTF-8 can't express.
        """
        return await self.endpoint.logs.produce(
            self._own("topic", topic),
            values,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
            prefix=self.prefix,
        )

    @until_done
    async def records(
        self, topic: str, partition: int | None = None, *, since: int = 0, most: int | None = None
    ) -> list[ReadRecord]:
        """Return all records of a topic, or of one of its partitions, in the order of partitions and offsets.

        They include records of open and aborted transactions, as for a `read_uncommitted` consumer. Of each
        partition they are those from the offset `since` on, `most` at most.

        :raises FencepostError: for an unknown topic or partition, or a negative offset or number.
        """
        return await self.endpoint.logs.records(
            self._own("topic", topic),
            partition,
            self.prefix,
            since=whole("since", since, 0, None),
            most=None if most is None else whole("most", most, 0, None),
            in_turns=True,
        )

    @until_done
    async def stop_broker(self, node_id: int) -> None:
        """Stop one of several brokers: its connections break, and Metadata no longer lists it.

        The next in-sync replica becomes the leader of each of its partitions. A partition without one has no
        leader until the broker starts again. Each of these changes raises the partition's leader epoch. Other
        brokers take over its groups, and keep them.

        :raises FencepostError: if there is no such broker, it is stopped already, or it is the last running
            one.
        """
        self._for_all("stop_broker")
        self._called("stop_broker", str(node_id))
        await self.endpoint.brokers.stop_broker(node_id)

    @until_done
    async def start_broker(self, node_id: int) -> None:
        """Start a broker that was stopped, on the same port.

        It becomes the leader of the partitions that have none, which raises their leader epochs. Others keep
        their leaders until `elect_leaders`.

        :raises FencepostError: if there is no such broker, or it runs.
        """
        self._for_all("start_broker")
        self._called("stop_broker", str(node_id), state_to="end")
        self._called("start_broker", str(node_id))
        await self.endpoint.brokers.start_broker(node_id)

    @until_done
    async def add_broker(self, *, port: int = 0, rack: str | None = None) -> int:
        """Add a broker and return its id, the one after the highest. Port 0 takes a free one.

        It has the listeners of the first broker. New topics and partitions are placed on it too; it gets
        others by `reassign_partition`, and groups by `move_coordinator`.

        :raises FencepostError: for a port or a rack that can't be, or if no id is left.
        :raises EnvironmentLacks: if it can't listen on the port.
        """
        self._for_all("add_broker")
        (checked,) = racks_of((rack,), 1)
        node_id = await self.endpoint.brokers.add_broker(whole("port", port, 0, 65_535), checked)
        self._called("add_broker", str(node_id))
        return node_id

    @until_done
    async def remove_broker(self, node_id: int) -> None:
        """Remove one of several brokers for good: Metadata no longer lists it, and its port is closed.

        Each of its replicas moves to another broker that has none of the partition, if there is one. The next
        replica leads where it led, at a higher leader epoch, and other brokers coordinate its groups. No
        record is lost. A broker that is stopped can be removed if others have all records of its partitions.

        :raises FencepostError: if there is no such broker, it is the last running one, or the only one with
            all records of a partition, and stopped.
        """
        self._for_all("remove_broker")
        brokers = self.endpoint.brokers
        brokers.check_removable(node_id)
        if node_id in brokers.cluster.stopped:
            self._called("stop_broker", str(node_id), state_to="end")
        self._called("remove_broker", str(node_id))
        await brokers.remove_broker(node_id)

    @on_loop
    def elect_leaders(self) -> None:
        """Let the first replica of each partition lead it, if it runs: Kafka's preferred leader election.

        A change of leader raises the partition's leader epoch.
        """
        self._for_all("elect_leaders")
        self._called("elect_leaders")
        self.endpoint.brokers.cluster.elect_preferred_leaders()

    @on_loop
    def _new_prefix(self, name: str) -> str:
        return self.endpoint.new_prefix(name)

    def scope(self, name: str = "test", *, topics: Mapping[str, int] | Iterable[str] = ()) -> KafkaScope[G]:
        """Open a part of this Kafka for one test; `with kafka.scope(topics={"orders": 3}) as scope`.

        `scope.name("orders")` is the full name of a topic or a group of it, such as `test-1-orders`. Its
        methods see only what has such a name, and its end removes all of it. `topics` are created at once.

        :raises FencepostError: if the name can't begin a topic's, for topics that Kafka would refuse, or in a
            scope.
        """
        from fencepost.simulation.embedded.scopes import open_scope

        self._for_all("scope")
        return open_scope(self, name, topics_of(topics))


def _listed(texts: Iterator[str]) -> str:
    """Return the first texts, sorted; "changing" if the brokers' thread adds or removes one at this
    moment."""
    try:
        found = sorted(texts)
    except RuntimeError:  # the dictionary changed while it was read
        return "changing"
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return (", ".join(found[:_MOST_SHOWN]) or "none") + more
