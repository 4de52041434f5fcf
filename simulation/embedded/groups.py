"""One group, as a test reads and controls it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.kinds import GroupKind, GroupMember
from fencepost.coordinator.protocol.consumer import LeaveGroupBatchRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.outcome import Event, RebalanceRequested, SessionEnded
from fencepost.coordinator.server.groups import Shard
from fencepost.simulation.embedded.fault_rules import FaultRule
from fencepost.simulation.embedded.polling import Polled, PolledClients
from fencepost.simulation.embedded.settings import duration, whole
from fencepost.simulation.embedded.thread import on_loop, wait_unblocked

if TYPE_CHECKING:
    from fencepost.simulation.embedded.controls import KafkaControls
    from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint

Who: TypeAlias = GroupMember | str
"""A member: as `members()` gives it, or by its member id, instance id or client id."""

DEAD = "Dead"
"""The state of a group that does not exist."""
_FENCED = {
    "consumer": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ErrorCode.FENCED_MEMBER_EPOCH),
    "classic": (ApiKey.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION),
    "streams": (ApiKey.STREAMS_GROUP_HEARTBEAT, ErrorCode.FENCED_MEMBER_EPOCH),
}
"""The next heartbeat of a fenced member and the error that refuses it, by protocol."""


class GroupControls:
    """A group by its id, whether it exists or not. Its methods may be called from any thread."""

    def __init__(self, kafka: KafkaControls[Any], group_id: str) -> None:
        self.group_id = group_id
        self.thread = kafka.thread
        self._kafka = kafka

    @property
    def _endpoint(self) -> EmbeddedEndpoint:
        """The current endpoint: the Kafka may have been closed and started again."""
        return self._kafka.endpoint

    @property
    @on_loop
    def state(self) -> str:
        """The group's state by Kafka's name, such as `Stable` or `Empty`; `Dead` if it does not exist."""
        return self._state()

    @on_loop
    def members(self) -> list[GroupMember]:
        """Return the group's members as its coordinator sees them, ordered by member id."""
        return self._members()

    @on_loop
    def offsets(self) -> Mapping[tuple[str, int], int]:
        """Return the group's committed offsets, by topic and partition."""
        coordinator = self._coordinator()
        return {} if coordinator is None else dict(_committed(coordinator, self.group_id))

    @on_loop
    def fence(self, member: Who) -> None:
        """Remove a member, and refuse its next heartbeat: with FENCED_MEMBER_EPOCH, or ILLEGAL_GENERATION.

        The other members get its partitions at once, as after a rebalance timeout. A client that follows
        KIP-848 drops its partitions without a commit and joins again.

        A static member of a consumer group is refused but not removed, as in Kafka. It keeps its partitions,
        and its next join is refused with UNRELEASED_INSTANCE_ID until its client leaves with epoch -2 or its
        session ends. `expire` also removes a static member.

        :raises FencepostError: if the group has no such member, or has no coordinator now.
        """
        found = self._find(member)
        self._endpoint.observer.called("fence", found.member_id, group=self.group_id)
        self._endpoint.observer.trace.fenced.add(found.member_id)
        if found.protocol in _FENCED:
            api, error = _FENCED[found.protocol]
            prefix = self._kafka.prefix  # a scope's end removes the rule, if the member sends no heartbeat
            rule = FaultRule(api=api, who=found.member_id, error=error, made_by="fence", prefix=prefix)
            self._endpoint.faults.add(rule)
        kind = self._kind()
        if kind is not None and not kind.leaves_by_request:
            self._process(SessionEnded(group_id=self.group_id, member_id=found.member_id))
            return
        if found.protocol == "consumer" and found.instance_id is not None:
            return
        removal = LeaveGroupRequest(group_id=self.group_id, member_id=found.member_id)
        self._process(LeaveGroupBatchRequest(group_id=self.group_id, members=(removal,)))

    @on_loop
    def expire(self, member: Who) -> None:
        """End a member's session now: it is removed as if no heartbeat had arrived for the session timeout.

        A live client receives UNKNOWN_MEMBER_ID, and joins again.

        :raises FencepostError: if the group has no such member, or has no coordinator now.
        """
        found = self._find(member)
        self._endpoint.observer.called("expire", found.member_id, group=self.group_id)
        self._process(SessionEnded(group_id=self.group_id, member_id=found.member_id))

    @on_loop
    def rebalance(self) -> None:
        """Make the group rebalance although nothing changed: a new epoch, or a new generation that all
        members join.

        :raises FencepostError: if the group has no members, or has no coordinator now.
        """
        if not self._members():
            raise FencepostError(f"group {self.group_id!r} has no members that could rebalance")
        self._endpoint.observer.called("rebalance", group=self.group_id)
        self._process(RebalanceRequested(group_id=self.group_id))

    # -- on the loop ------------------------------------------------------------------------------------

    def _shard(self) -> Shard:
        return self._endpoint.brokers.groups.shard_of(self.group_id)

    def _coordinator(self) -> GroupCoordinator | None:
        return self._shard().coordinator

    def _process(self, event: Event) -> Any:
        host = self._shard().host
        if host is None:
            raise FencepostError(
                f"the coordinator of group {self.group_id!r} is loading: nothing can happen to it"
            )
        return host.process(event).reply

    def _state(self) -> str:
        return state_of(self._coordinator(), self.group_id)

    def _members(self) -> list[GroupMember]:
        shard = self._shard()
        coordinator = shard.coordinator
        if coordinator is None:
            return []
        owned = self._endpoint.observer.owned(shard, self.group_id)
        return coordinator.kinds.members(self.group_id, owned, coordinator.image)

    def _kind(self) -> GroupKind | None:
        coordinator = self._coordinator()
        return None if coordinator is None else coordinator.kinds.of(self.group_id)

    def _find(self, member: Who) -> GroupMember:
        members = self._members()
        if isinstance(member, GroupMember):
            member = member.member_id
        for name in ("member_id", "instance_id", "client_id"):
            found = [each for each in members if getattr(each, name) == member]
            if len(found) == 1:
                return found[0]
            if found:
                raise FencepostError(
                    f"{len(found)} members of group {self.group_id!r} have the client id {member!r}"
                )
        known = ", ".join(name_of_member(each, members) for each in members)
        raise FencepostError(f"group {self.group_id!r} has no member {member!r}; it has {known or 'none'}")

    async def _wait_stable(
        self,
        members: int | None = None,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109  # its own thread's loop
    ) -> list[GroupMember]:
        """Wait until the group is stable, with that many members if a number is given, and return its
        members.

        In a stable group, all members are at the newest epoch and have confirmed their assignment. Each has
        sent a request since the coordinator was loaded; classic members have fetched their assignment. All
        subscribed topics are known in their current form, and all their partitions are assigned. Without a
        number, the group has at least one member; with 0 it has none.

        :raises TimeoutError: if it takes longer than `timeout` seconds; the text says what is missing.
        """
        wanted = None if members is None else whole("members", members, 0, None)
        limit = duration("timeout", timeout)
        if not await self._endpoint.observer.waiting.until(lambda: self._is_stable(wanted), limit):
            raise TimeoutError(self._why_not(wanted, limit))
        return self._members()

    def _is_stable(self, wanted: int | None) -> bool:
        if wanted and self._state() != "Stable":
            return False  # checked after each step: the cheap condition first
        members = self._members()
        if wanted is not None and len(members) != wanted:
            return False
        if not members:
            return wanted == 0
        heard = self._endpoint.observer.confirmed(self._shard(), self.group_id)
        confirmed = all(not any(_unconfirmed(each, heard)) for each in members)
        return confirmed and self._state() == "Stable" and self._is_covered(members)

    def _is_covered(self, members: list[GroupMember]) -> bool:
        """Return true if every partition of the subscribed topics is assigned: a cooperative rebalance takes
        two generations."""
        coordinator = self._coordinator()
        if coordinator is None:
            return False
        found = coordinator.kinds.find(self.group_id)
        if found is not None and not found[0].knows_its_topics(found[1], coordinator.image):
            return False
        known = self._endpoint.brokers.cluster.known.by_name
        topics = {
            name for each in members if each.protocol == "classic" for name in each.topics if name in known
        }
        given = {partition for each in members for partition in each.assignment}
        return all(
            partition in given
            for name in topics
            for partition in topic_partitions(name, range(known[name].partitions))
        )

    def _why_not(self, wanted: int | None, limit: float) -> str:
        members = self._members()
        missing = []
        if members and self._state() != "Stable":
            missing.append(f"its state is {self._state()}")
        if wanted is not None and len(members) != wanted:
            names = ", ".join(name_of_member(each, members) for each in members)
            missing.append(f"members: {wanted} expected, there are {len(members)}{names and f' ({names})'}")
        elif not members and wanted is None:
            missing.append("it has no members")
        heard = self._endpoint.observer.confirmed(self._shard(), self.group_id)
        for each in members:
            missing += (f"{name_of_member(each, members)} {what}" for what in _unconfirmed(each, heard))
        if not self._is_covered(members):
            missing.append("some partitions of its topics are not assigned, or not all topics are found yet")
        why = "; ".join(missing) or "it became stable just now"
        return f"group {self.group_id!r} is not stable after {limit:g} s: {why}"


def name_of_member(member: GroupMember, members: Collection[GroupMember]) -> str:
    """Return a member's instance id or client id, with the member id if others of the group share it."""
    name = member.instance_id or member.client_id
    alone = sum(name in (each.instance_id, each.client_id) for each in members) < 2
    return name if name and alone else f"{name} {member.member_id}".strip()


def state_of(coordinator: GroupCoordinator | None, group_id: str) -> str:
    """Return a group's state by Kafka's name; `Dead` if no coordinator has it."""
    if coordinator is None:
        return DEAD
    if (found := coordinator.kinds.find(group_id)) is not None:
        return str(found[1].state)
    return str(GroupState.EMPTY) if group_id in coordinator.offsets else DEAD


def _unconfirmed(member: GroupMember, heard: Set[MemberId]) -> Iterator[str]:
    """Yield what a member has not confirmed yet."""
    if member.epoch < 0:
        yield "is static and has left: its place is kept until its session ends"
        return
    if new := set(member.assignment).difference(member.owned):
        yield f"has not confirmed {len(new)} of {_partitions(member.assignment)}: is it polled?"
    if old := set(member.owned).difference(member.assignment):
        yield f"has not given up {_partitions(old)}: is it polled?"
    if member.member_id not in heard:
        classic = member.protocol == "classic"
        yield (
            "has not asked for its assignment"
            if classic
            else "has sent no request since its coordinator was loaded"
        )


def _partitions(some: Collection[TopicPartition]) -> str:
    return f"{len(some)} partition{'' if len(some) == 1 else 's'}"


class Group(GroupControls):
    """A group for tests that block."""

    def wait_stable(
        self, members: int | None = None, *, timeout: float = 30.0, polling: Sequence[Polled] = ()
    ) -> list[GroupMember]:
        """Wait until the group is stable, with that many members if a number is given, and return its
        members.

        `polling` lists clients that act only when they are polled, such as those of confluent-kafka and
        kafka-python. They are polled while the test waits, and their records stay for the test. A function is
        called instead.

        :raises TimeoutError: if it takes longer than `timeout` seconds; the text says what is missing.
        """
        __tracebackhide__ = True
        clients = PolledClients(polling)
        future = self.thread.submit(self._wait_stable(members, timeout=timeout))
        try:
            if clients:
                clients.poll_until(future)
            return self.thread.result(future)
        finally:
            future.cancel()  # polling a client may raise


class AsyncGroup(GroupControls):
    """A group for tests that await."""

    async def wait_stable(
        self,
        members: int | None = None,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109  # the brokers' loop measures it
        polling: Sequence[Polled] = (),
    ) -> list[GroupMember]:
        """Wait until the group is stable, with that many members if a number is given, and return its
        members.

        :raises TimeoutError: if it takes longer than `timeout` seconds; the text says what is missing.
        """
        __tracebackhide__ = True
        clients = PolledClients(polling)
        future = self.thread.submit(self._wait_stable(members, timeout=timeout))
        try:
            if clients:
                await clients.poll_until_done(future)
            await wait_unblocked(future)
        finally:
            future.cancel()
        return self.thread.result(future)


def _committed(coordinator: GroupCoordinator, group_id: str) -> Iterator[tuple[tuple[str, int], int]]:
    for topic, partitions in coordinator.offsets.topics(group_id).items():
        for number, value in partitions.items():
            yield TopicPartition(topic, number), value.offset
