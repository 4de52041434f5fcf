"""The brokers of an embedded Kafka, with their observers and fault rules; it lives on one loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.outcome import MemberHeard
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.groups import KeptJournal
from fencepost.coordinator.server.new_topics import check_replicas
from fencepost.coordinator.server.services import Asked, Handler
from fencepost.coordinator.server.topic_configs import read_topic_configs
from fencepost.simulation.embedded.fault_rules import FaultAction, FaultRule
from fencepost.simulation.embedded.faults import FaultInjector
from fencepost.simulation.embedded.logs import LogAccess
from fencepost.simulation.embedded.observer import EmbeddedObserver
from fencepost.simulation.embedded.settings import refused_by_kafka
from fencepost.simulation.trace.schema import CLOCK_ADVANCED, RowKind

JournalLike: TypeAlias = KeptJournal | str | Path | None

_LATEST_S: Final = (2**63 - 1) // 1_000_000
"""Traces count microseconds in 64 bits."""


class EmbeddedEndpoint:
    """The brokers and observers behind an `EmbeddedKafka`. It is made, started and closed on its own loop."""

    def __init__(
        self,
        *,
        topics: Mapping[str, int],
        brokers: int,
        ports: tuple[int, ...],
        host: str = "127.0.0.1",
        hosts: tuple[str, ...] = (),
        config: GroupCoordinatorConfig,
        journal: JournalLike,
        options: Mapping[str, Any],
        observing: Callable[[Mapping[int, Handler]], Mapping[int, Handler]] = lambda table: table,
    ) -> None:
        self.users: Mapping[str, str] = options["users"] or {}
        """Passwords by user name; empty if clients need no login."""
        self.observer = EmbeddedObserver()
        self.faults = FaultInjector(
            self._note, self._members, self._name_of, lambda: self.brokers.connections
        )
        kept = _kept_in(journal)
        with contextlib.ExitStack() as opened:
            if "storage" in kept:
                opened.callback(kept["storage"].close)
            self.brokers = Brokers(
                topics,
                host=host,
                hosts=hosts,
                ports=ports or (0,) * brokers,
                config=config,
                intercept=lambda node_id, table: self.faults.around(node_id, observing(table)),
                make_hooks=self.observer.make_hooks,
                on_state=self.observer.coordinator_state,
                **kept,
                **options,
            )
            opened.pop_all()  # theirs from now on
        self.observer.attach(self.brokers)
        self.observer.on_member_gone = self.faults.forget
        self.logs = LogAccess(self.brokers, observing)
        self._image = TopicsImage()
        self._scopes = 0

    async def start(self) -> None:
        """Start to listen."""
        await self.brokers.start()
        notify_groups = self.brokers.cluster.on_change

        def changed(image: TopicsImage) -> None:
            notify_groups(image)
            self._observe_topics(self.brokers.cluster.image)

        self.brokers.cluster.on_change = changed
        self._observe_topics(self.brokers.cluster.image)

    def _observe_topics(self, image: TopicsImage) -> None:
        before, self._image = self._image, image
        for topic in image.by_id.values():
            old = before.by_id.get(topic.topic_id)
            if old is None or old.partitions != topic.partitions:
                self.observer.topic(topic.name, "created" if old is None else "grown", topic.partitions)
        for topic in before.by_id.values():
            if topic.topic_id not in image.by_id:
                self.observer.topic(topic.name, "deleted", 0)

    def _name_of(self, topic_id: TopicId) -> str | None:
        """Return the name of a topic."""
        return self.brokers.cluster.known.name_of(topic_id)

    def _members(self) -> Iterator[GroupMember]:
        """Yield the members of all groups."""
        for coordinator in self.coordinators():
            image = coordinator.image
            for kind in coordinator.kinds:
                for group in kind.groups.values():
                    yield from kind.members(group, {}, image)

    def _note(self, api: int, request: Any, asked: Asked, rule: FaultRule) -> None:
        """Write into the trace that a rule has met its request."""
        who = getattr(request, "member_id", "") or asked.context.client_id
        group = getattr(request, "group_id", "")
        before = self.observer.seq
        if rule.action is FaultAction.LOSE_RESPONSE:
            self.observer.note(who, RowKind.RESPONSE_LOST, group=group, detail=type(request).__name__)
        else:
            self.observer.called(rule.method, f"{rule.arguments}: {who}", group=group, state_to="met")
        if rule.times is not None and rule.met >= rule.times and not rule.of_fence:
            self.observer.called(rule.method, rule.arguments, state_to="end")
        if rule.rows is not None:
            rule.rows.update(range(before + 1, self.observer.seq + 1))
        self.observer.waiting.wake()

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str], replicas: int | None = None
    ) -> None:
        """Create a topic with settings of its own.

        :raises FencepostError: for what Kafka would refuse.
        """
        cluster = self.brokers.cluster
        if replicas is None:
            replicas = self.brokers.new_topics.default_replication_factor
        with refused_by_kafka():
            check_replicas(replicas, len(cluster.nodes))
            checked = read_topic_configs(config, cluster.topic_defaults)
            cluster.create_topics({name: partitions}, checked, replicas=replicas)

    def check_broker(self, node_id: int) -> None:
        """Check that there is such a broker.

        :raises FencepostError: if not.
        """
        self.brokers.check_known(node_id)

    def coordinators(self) -> Iterator[GroupCoordinator]:
        """Yield the coordinators of all groups that are loaded."""
        return (host.coordinator for host in self.brokers.groups.active())

    def new_prefix(self, name: str) -> str:
        """Return a prefix for a scope: the name and a number, which no topic and no group begins with."""
        while True:
            self._scopes += 1
            prefix = f"{name}-{self._scopes}-"
            taken = [*self.brokers.cluster.image.by_name]
            for each in self.coordinators():
                taken += (*each.kinds.group_ids(), *each.offsets.group_ids)
            if not any(each.startswith(prefix) for each in taken):
                return prefix

    def advance(self, length_s: float) -> None:
        """Advance the time at once, for all members except those whose connection is open.

        :raises FencepostError: if the new time would exceed what a trace can hold.
        """
        assert self.brokers.clock is not None
        if length_s > (most_s := _LATEST_S - self.brokers.clock.now_ms() // 1000):
            raise FencepostError(f"advance={length_s!r}: expected seconds, 0 to {most_s}")
        self.observer.called(CLOCK_ADVANCED, f"{length_s:.15g} s")
        self.brokers.advance(round(length_s * 1000), self._keep_connected)

    def _keep_connected(self, end_ms: int) -> None:
        """Extend the sessions of connected members to the end of the jump, so that none of them ends before.

        In a round of a classic group, extend them from now: a round starts and ends sessions itself.
        """
        assert self.brokers.clock is not None
        now_ms = self.brokers.clock.now_ms()
        connected = self.faults.connected
        for host in self.brokers.groups.active():
            coordinator = host.coordinator
            heard = [
                (group_id, each, end_ms if kind.member_state(group) == "STABLE" else now_ms)
                for kind in coordinator.kinds
                for group_id, group in kind.groups.items()
                for each in group.members
            ]
            for group_id, member_id, at_ms in heard:
                if member_id in connected:
                    host.process(MemberHeard(group_id=group_id, member_id=member_id), at_ms)

    def move_coordinator(self, group_id: str | None, node_id: int | None, load_s: float) -> None:
        """Move the shards of all groups, or that of one group, to other brokers.

        :raises FencepostError: if there is no such broker.
        """
        groups = self.brokers.groups
        nodes = groups.node_ids
        if node_id is not None:
            self.brokers.check_known(node_id)
            if node_id in self.brokers.cluster.stopped:
                raise FencepostError(f"broker {node_id} is stopped, expected one that runs")
        to = "" if node_id is None else f"to broker {node_id}"
        self.observer.called("move_coordinator", to or "to the next broker", group=group_id or "")
        for shard in groups.shards if group_id is None else (groups.shard_of(group_id),):
            new = nodes[(nodes.index(shard.node_id) + 1) % len(nodes)] if node_id is None else node_id
            groups.move(shard, self.brokers.cluster.running_from(new), load_s)


def _kept_in(journal: JournalLike) -> dict[str, Any]:
    """Return the storage settings of the brokers for a journal."""
    if journal is None:
        return {}
    if isinstance(journal, str | Path):
        from fencepost.coordinator.server.storage import Storage

        return {"storage": Storage(Path(journal), keeps_records=True)}
    if not callable(getattr(journal, "append", None)) or not hasattr(journal, "__iter__"):
        raise FencepostError(f"journal={journal!r}: expected a path, or an object with append and iteration")
    return {"journal": journal}
