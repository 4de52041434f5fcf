"""Parts of an embedded Kafka, so that parallel tests share one: each has topics and groups of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.outcome import SessionEnded
from fencepost.coordinator.protocol.topics import Topic, is_valid_name
from fencepost.simulation.embedded.controls import BlockingControls, G, KafkaControls
from fencepost.simulation.embedded.fault_rules import FaultRule
from fencepost.simulation.embedded.settings import name_of
from fencepost.simulation.embedded.thread import on_loop, until_done
from fencepost.simulation.trace.schema import Row, RowKind


class KafkaScope(BlockingControls[G]):
    """A part of a Kafka for one test, until it is closed or its `with` ends.

    Names of its topics and groups begin with `prefix`; clients use these names in full. Its methods are those
    of the Kafka, except that they see only what has such a name, and that those which affect all groups or
    brokers are refused. Its faults apply to requests that name something of it: a group, a topic, a
    transactional id, or the client's own id.
    """

    def __init__(self, kafka: KafkaControls[G], prefix: str) -> None:
        super().__init__(kafka.thread, kafka._group_type, kafka)
        self.prefix = prefix
        self._calls: set[int] = set()
        """The numbers of the rows about calls of its methods, and about its faults."""

    def name(self, text: str) -> str:
        """Return the full name of a topic, group, transactional id or client of this scope."""
        return self.prefix + name_of("name", text, "text")

    def _own(self, what: str, name: str, expected: str = "a name") -> str:
        if not name_of(what, name, expected).startswith(self.prefix):
            raise FencepostError(
                f"{what} {name!r} is not of this scope: expected a name like {self.prefix + name!r}"
            )
        return name

    def _for_all(self, method: str) -> None:
        raise FencepostError(f"{method} would affect other scopes, too: call it outside of scopes")

    def _called(self, method: str, detail: str = "", *, group: str = "", state_to: str = "begin") -> None:
        super()._called(method, detail, group=group, state_to=state_to)
        self._calls.add(self.endpoint.observer.seq)

    def _add(self, rule: FaultRule) -> None:
        rule.rows = self._calls
        super()._add(rule)

    def _is_own(self, row: Row) -> bool:
        is_topic = row.kind == RowKind.TOPIC and row.actor.startswith(self.prefix)
        return row.group.startswith(self.prefix) or is_topic or row.seq in self._calls

    @on_loop
    def member_names(self) -> dict[str, str]:
        """The names of members that its groups have had, by member id."""
        observer = self.endpoint.observer
        actors = {row.actor for row in observer.rows if row.group.startswith(self.prefix)}
        return {member_id: name for member_id, name in observer.names.items() if member_id in actors}

    @until_done
    async def close(self) -> None:
        """Remove its faults, its groups with their members and offsets, its topics, and its ACLs.

        Close clients before: a client that still runs may create its group anew. Coordinators that are
        loading groups are waited for.

        :raises FencepostError: if one takes more than 30 s for that.
        """
        endpoint = self.endpoint
        endpoint.faults.remove(endpoint.faults.of_scope(self.prefix))
        shards = endpoint.brokers.groups.shards
        if not await endpoint.observer.waiting.until(
            lambda: all(shard.host is not None for shard in shards), _LOADED_S
        ):
            raise FencepostError(
                f"a coordinator has been loading its groups for {_LOADED_S} s: close the scope later"
            )
        for host in endpoint.brokers.groups.active():
            _remove_groups(host, self.prefix)
        self._remove_acls(self._own_acls())
        self._remove_acls(self._own_acls())
        for topic in self._topics():
            endpoint.brokers.cluster.delete_topic(topic)

    def _topics(self) -> list[Topic]:
        known = self.endpoint.brokers.cluster.image.by_name
        return [topic for name, topic in known.items() if name.startswith(self.prefix)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove_groups(host: CoordinatorHost[GroupCoordinator], prefix: str) -> None:
    coordinator = host.coordinator
    for group_id in {*coordinator.kinds.group_ids(), *coordinator.offsets.group_ids}:
        if not group_id.startswith(prefix):
            continue
        for member in coordinator.kinds.members(group_id, {}, coordinator.image):
            host.process(SessionEnded(group_id=group_id, member_id=member.member_id))
        host.process(DeleteGroupsRequest(group_id=group_id))


def open_scope(kafka: BlockingControls[Any], name: str, topics: Mapping[str, int]) -> KafkaScope[Any]:
    """Open a scope whose prefix is new: the name and a number.

    :raises FencepostError: if the name can't begin a topic's, or for topics that Kafka would refuse.
    """
    if not isinstance(name, str) or not is_valid_name(name) or len(name) > _LONGEST:
        raise FencepostError(
            f"scope {name!r}: expected 1 to {_LONGEST} of a-z, A-Z, 0-9, '.', '_' and '-', not '.' or '..'"
        )
    scope = KafkaScope(kafka, kafka._new_prefix(name))
    try:
        for topic, partitions in topics.items():
            scope.create_topic(scope.name(topic), partitions)
    except BaseException:
        scope.close()
        raise
    return scope


_LOADED_S = 30
_LONGEST = 100
"""The limit on characters of a scope's name, so that names with it stay valid."""
