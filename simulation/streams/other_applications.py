"""Other applications that use the cluster for a moment, each in a group of its own.

Each has a topology that differs, makes mistakes that the coordinator has to refuse, and is administered:
people describe its group, delete it too soon, and delete it in the end. Every response is judged at once. A
life that the network or the coordinator disturbs is not judged any further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.consumer import DeleteGroupsRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fencepost.member.base.transport import TransportError
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.judge.base import OF_LOG
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.streams.foreign_requests import (
    ForeignTopology,
    foreign_topologies,
    mistakes_of_members,
    mistakes_of_strangers,
)
from fencepost.simulation.streams.nemesis import StreamsNemesis

if TYPE_CHECKING:
    from fencepost.simulation.streams.world import StreamsWorld

_TRIES: Final = 20
"""Number of heartbeats after which a member without tasks is a finding, and of searches for a coordinator."""
_BACKOFF_US: Final = 500_000
_REBALANCE_TIMEOUT_MS: Final = 10_000
_SLACK_US: Final = 2_000_000
"""Delay of a removal while the log refuses writes."""


class _Disturbed(Exception):
    """A request got no response, or one that only says that the coordinator moves."""


class OtherApplications(Host):
    """The host of all other applications."""

    def __init__(self, world: StreamsWorld) -> None:
        super().__init__("other-application", world.loop)
        self._world = world
        self.coordinator_changes = 0
        """Number of times that a coordinator's host changed: a new coordinator restarts all timeouts."""
        self._number = 0

    def visit(self, number: int) -> None:
        """Start one more application; `number` draws its topology."""
        self._number += 1
        prefix = f"{self._world.scenario.group.id}-other-{self._number}"
        topics = self._world.scenario.unequal_topics
        assert topics is not None
        one, other = topics
        cases = foreign_topologies(prefix, (one.name, one.partitions), (other.name, other.partitions))
        life = _Life(self, prefix, cases[number % len(cases)], other.name)
        self.spawn(self._live(life))

    async def _live(self, life: _Life) -> None:
        try:
            await life.live()
            ending = "all of its life"
        except _Disturbed:
            ending = "a part of its life"
        finally:
            life.way.close()
        detail = f"{life.group_id}, {life.case.name}: {life.responses} responses, {ending}"
        self._world.tell("on_fault", FaultKind.OTHER_APPLICATION, "end", detail)

    def vanish(self) -> None:
        """End the process at the end of the run."""
        self.end()
        self._world.network.forget(self)
        self.cancel_tasks()

    def connected(self) -> SimulatedTransport:
        """Return connections of one application's own: no other one finds the coordinator for it."""
        world = self._world
        timeout_us = world.scenario.network.request_timeout.us
        return SimulatedTransport(self, world.network, world.cluster.brokers, first=0, timeout_us=timeout_us)

    def report(self, invariant: str, message: str) -> None:
        """Report a finding."""
        self._world.application.report(invariant, message)

    def partitions(self, prefix: str) -> dict[str, int]:
        """Return the topics whose names begin like that, with their partitions."""
        topics = self._world.cluster.topics.by_name
        return {name: topic.partitions for name, topic in topics.items() if name.startswith(prefix)}

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._world.cluster.delete_topic(topic)

    @property
    def neighbour(self) -> str:
        """The group of the application that the scenario is about."""
        return self._world.scenario.group.id

    @property
    def timeout_ms(self) -> int:
        """Time after which a request is given up, in ms."""
        return self._world.scenario.network.request_timeout.ms

    @property
    def interval_us(self) -> int:
        """Time between two heartbeats, in microseconds."""
        return self._world.config.group_streams_heartbeat_interval_ms * 1_000


def _errors(response: object) -> Iterator[ErrorCode]:
    if isinstance(response, OffsetCommitResponse):
        yield from response.errors.values()
    elif isinstance(response, streams.StreamsGroupDescribeResponse):
        yield from (group.error_code for group in response.groups)
    else:
        yield getattr(response, "error_code", ErrorCode.NONE)


class _Life:
    """One application, from its first mistake to the end of its group."""

    def __init__(self, host: OtherApplications, group_id: str, case: ForeignTopology, foreign: str) -> None:
        self.group_id = group_id
        self.case = case
        self.responses = 0
        self.way = host.connected()
        self._host = host
        self._foreign = foreign
        self._join = streams.StreamsGroupHeartbeatRequest(
            group_id=group_id,
            member_id=f"{group_id}-member",
            member_epoch=JOIN_EPOCH,
            rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
            topology=case.topology,
            active_tasks=streams.NO_TASK_IDS,
            standby_tasks=streams.NO_TASK_IDS,
            warmup_tasks=streams.NO_TASK_IDS,
            process_id=f"{group_id}-process",
            client_id=group_id,
        )
        self._changes = 0
        self._epoch = JOIN_EPOCH
        self._tasks = streams.NO_TASKS
        self._statuses: set[streams.StatusCode] = set()

    async def live(self) -> None:
        """Live the whole life.

        :raises _Disturbed: if a request does not get through.
        """
        await self._find()
        plain = streams.Topology(self.case.epoch, (streams.Subtopology("0", (self._foreign,)),))
        correct = msgspec.structs.replace(self._join, topology=plain)
        for what, request, error in mistakes_of_strangers(correct):
            await self._refused(what, request, error)
        await self._described(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.case.error:
            await self._refused(self.case.name, self._join, self.case.error)
            await self._described(ErrorCode.GROUP_ID_NOT_FOUND)
            return
        if self.case.status is not None:
            endpoint = msgspec.structs.replace(self._join, user_endpoint=streams.Endpoint("localhost", 8080))
            await self._refused("an endpoint without topics", endpoint, ErrorCode.UNKNOWN_SERVER_ERROR)
        await self._beat("joins", self._join, is_new=True)
        await self._until_tasks()
        if self.case.status is None:
            await self._hold_on()
            await self._until_tasks()
        if self.case.internal:
            await self._lose_topic()
            await self._until_tasks()
        await self._described(ErrorCode.NONE)
        for what, request, error in mistakes_of_members(
            self._join, self._epoch, has_tasks=self.case.status is None
        ):
            await self._refused(what, request, error)
        await self._commits()
        await self._old_topology()
        await self._delete(ErrorCode.NON_EMPTY_GROUP)
        leave = msgspec.structs.replace(
            self._join,
            member_epoch=-1,
            topology=None,
            active_tasks=None,
            standby_tasks=None,
            warmup_tasks=None,
        )
        await self._beat("leaves", leave)
        await self._described(ErrorCode.NONE)
        await self._delete(ErrorCode.NONE)
        await self._described(ErrorCode.GROUP_ID_NOT_FOUND)

    async def _find(self) -> None:
        for _ in range(_TRIES):
            try:
                await self.way.find_coordinator(self.group_id)
            except (TransportError, ProtocolError):
                await self._host.pause_us(_BACKOFF_US)
            else:
                self._changes = self._host.coordinator_changes
                return
        raise _Disturbed

    async def _ask(self, request: Any) -> Any:
        try:
            response = await self.way.send(request, self._host.timeout_ms)
        except TransportError as error:
            raise _Disturbed from error
        moved = self._host.coordinator_changes != self._changes
        if moved or not OF_LOG.isdisjoint(_errors(response)):
            raise _Disturbed
        self.responses += 1
        return response

    def _report(self, invariant: str, message: str) -> None:
        self._host.report(invariant, f"{self.group_id}, {self.case.name}: {message}")

    async def _refused(
        self, what: str, request: streams.StreamsGroupHeartbeatRequest, error: ErrorCode
    ) -> None:
        response = await self._ask(request)
        if response.error_code is not error:
            self._report("streams-answers", f"{what} gets {response.error_code.name}, expected {error.name}")

    async def _beat(
        self, what: str, request: streams.StreamsGroupHeartbeatRequest, *, is_new: bool = False
    ) -> set[streams.StatusCode]:
        """Send a correct heartbeat; return the group's statuses. `is_new` is true for the group's first
        one."""
        response = await self._ask(request)
        assert isinstance(response, streams.StreamsGroupHeartbeatResponse)
        if response.error_code:
            self._report("streams-answers", f"a member {what}, and gets {response.error_code.name}")
            raise _Disturbed
        self._epoch = response.member_epoch
        if response.tasks is not None:
            self._tasks = response.tasks
        self._statuses = {status.code for status in response.status or ()}
        if is_new and self.case.internal and streams.StatusCode.MISSING_INTERNAL_TOPICS not in self._statuses:
            self._report("streams-replies", f"a member {what}, and is not told that topics are missing")
        return self._statuses

    async def _go_on(self) -> None:
        """Let time pass until the next heartbeat, and send it."""
        await self._host.pause_us(self._host.interval_us)
        await self._beat("goes on", self._heartbeat(self._join, self._epoch, self._tasks))

    @staticmethod
    def _heartbeat(
        join: streams.StreamsGroupHeartbeatRequest, epoch: int, owned: streams.Tasks
    ) -> streams.StreamsGroupHeartbeatRequest:
        return msgspec.structs.replace(
            join,
            member_epoch=epoch,
            topology=None,
            active_tasks=owned.active,
            standby_tasks=owned.standby,
        )

    async def _until_tasks(self) -> None:
        """Send heartbeats until the only member has all tasks, or a status says why it gets none."""
        right = streams.Tasks({one: tuple(range(count)) for one, count in sorted(self.case.tasks.items())})
        expected = set() if self.case.status is None else {self.case.status}
        for _ in range(_TRIES):
            if self._statuses == expected and self._tasks == right:
                break
            await self._go_on()
        else:
            names = [sorted(code.name for code in codes) for codes in (self._statuses, expected)]
            self._report("streams-replies", f"the statuses are {names[0]}, expected {names[1]}")
            self._report("streams-target", f"the only member has {self._tasks}, expected {right}")
        made = self._host.partitions(self.group_id)
        if made != self.case.internal:
            self._report("streams-topics", f"the topics are {made}, expected {dict(self.case.internal)}")

    async def _hold_on(self) -> None:
        """Let a second member join, and the first one release nothing: it is removed in time, and not
        before."""
        first, epoch, owned = self._join, self._epoch, self._tasks
        name = f"{self.group_id}-second"
        self._join = msgspec.structs.replace(first, member_id=name, process_id=name)
        self._epoch, self._tasks = JOIN_EPOCH, streams.NO_TASKS
        await self._beat("joins", self._join)
        began: tuple[int, int] | None = None
        """The coordinator began to wait between these two times."""
        last_us = 0
        for _ in range(_TRIES):
            await self._go_on()
            sent_us = self._host.loop.now_us
            response = await self._ask(self._heartbeat(first, epoch, owned))
            if began is not None and response.error_code is ErrorCode.UNKNOWN_MEMBER_ID:
                break
            if response.error_code:
                self._report(
                    "streams-answers", f"a member releases nothing, and gets {response.error_code.name}"
                )
                raise _Disturbed
            epoch, last_us = response.member_epoch, sent_us
            if response.tasks is not None and began is None:
                began = sent_us, self._host.loop.now_us
        since_us, until_us = began or (0, 0)
        took_us, stayed_us = self._host.loop.now_us - since_us, last_us - until_us
        if not stayed_us - _SLACK_US <= _REBALANCE_TIMEOUT_MS * 1_000 <= took_us:
            self._report(
                "streams-sessions",
                f"a member releases nothing, is a member after {stayed_us // 1_000} ms, and removed after"
                f" {took_us // 1_000} ms of its {_REBALANCE_TIMEOUT_MS} ms",
            )

    async def _lose_topic(self) -> None:
        """Delete an internal topic: the status says so, and the member waits for the topic without tasks."""
        self._host.delete(min(self.case.internal))
        await self._go_on()
        if streams.StatusCode.MISSING_INTERNAL_TOPICS not in self._statuses or self._tasks:
            self._report("streams-replies", f"a topic is deleted, and the only member has {self._tasks}")

    async def _old_topology(self) -> None:
        """Join again with an older topology: the status says so, and the member goes on."""
        older = streams.Topology(self.case.epoch - 1, self.case.subtopologies)
        statuses = await self._beat(
            "joins with an older topology", msgspec.structs.replace(self._join, topology=older)
        )
        if streams.StatusCode.STALE_TOPOLOGY not in statuses:
            self._report("streams-replies", "a member has an older topology, and is not told")

    async def _commits(self) -> None:
        """Commit as no member may."""
        offsets = {TopicPartition(self._foreign, 0): OffsetAndMetadata(offset=0)}
        commit = OffsetCommitRequest(
            group_id=self.group_id,
            member_id=self._join.member_id,
            member_epoch=self._epoch,
            offsets=offsets,
        )
        cases: list[tuple[str, dict[str, Any], ErrorCode]] = [
            ("a newer epoch", {"member_epoch": self._epoch + 1}, ErrorCode.STALE_MEMBER_EPOCH),
            ("a stranger", {"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            (
                "a client from before member epochs",
                {"api_version": MEMBER_EPOCH_VERSION - 1},
                ErrorCode.UNSUPPORTED_VERSION,
            ),
        ]
        if self._epoch > 1 and not self._reads_foreign:
            older = {"member_epoch": self._epoch - 1}
            cases.append(("an older epoch without the task", older, ErrorCode.STALE_MEMBER_EPOCH))
        for what, changes, error in cases:
            response = await self._ask(msgspec.structs.replace(commit, **changes))
            if set(response.errors.values()) != {error}:
                names = sorted({code.name for code in response.errors.values()})
                self._report("streams-commits", f"{what} commits, and gets {names}, expected {error.name}")

    @property
    def _reads_foreign(self) -> bool:
        """True if the member has tasks that read the topic for which it commits."""
        reads = (topic for one in self.case.subtopologies for topic in one.source_topics)
        return self.case.status is None and self._foreign in reads

    async def _described(self, error: ErrorCode) -> None:
        """Describe the group, and its neighbour. Their content is judged at the coordinator."""
        groups = (self.group_id, self._host.neighbour, "")
        response = await self._ask(streams.StreamsGroupDescribeRequest(group_ids=groups))
        found = [group.error_code for group in response.groups if group.group_id != self._host.neighbour]
        if found != [error, ErrorCode.INVALID_GROUP_ID]:
            self._report(
                "streams-described",
                f"the group and one without an id are described with {[code.name for code in found]},"
                f" expected {error.name} and INVALID_GROUP_ID",
            )

    async def _delete(self, error: ErrorCode) -> None:
        response = await self._ask(DeleteGroupsRequest(group_id=self.group_id))
        if response.error_code is not error:
            self._report(
                "streams-answers",
                f"the group is to be deleted, which gets {response.error_code.name}, expected {error.name}",
            )


class ApplicationNemesis(StreamsNemesis):
    """The nemesis of a simulated application, next to which there may be others."""

    _world: StreamsWorld

    def __init__(self, world: StreamsWorld, plan: FaultPlan) -> None:
        super().__init__(world, plan)
        self._actions = {**self._actions, FaultKind.OTHER_APPLICATION: self._visit}

    def _visit(self, entry: PlannedEvent) -> None:
        self._tell(entry.kind, "begin", "")
        self._world.others.visit(entry.member)
