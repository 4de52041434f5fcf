"""Checks the coordinator of a streams group, step by step: the cause of each change, and the reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId
from fencepost.coordinator.protocol.outcome import CreateInternalTopics, MemberFenced, Outcome
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState, StreamsGroupState
from fencepost.simulation.faults.plan import FaultKind
from fencepost.simulation.judge.base import OF_LOG, Finding, Judge
from fencepost.simulation.judge.consumer_model import minus
from fencepost.simulation.judge.journal import JournalVersion, check_replays
from fencepost.simulation.streams.commits import StreamsCommits
from fencepost.simulation.streams.described import descriptions
from fencepost.simulation.streams.reconciliation import parts_of, reconciliations
from fencepost.simulation.streams.targets import (
    ExpectedTopics,
    TargetInput,
    expected_topics,
    targets,
)

if TYPE_CHECKING:
    from fencepost.simulation.streams.world import StreamsWorld

_LATE_MS: Final = 1_500
"""A session is looked at on whole seconds."""
_PROMPT_MS: Final = 100
_REPLAY_EVERY: Final = 60
"""Steps that wrote records between two comparisons with a replay."""


class KnownStreamsGroup:
    """A group after the step before; its members' values are immutable."""

    def __init__(self, group: StreamsGroup) -> None:
        self.members: Mapping[MemberId, StreamsGroupMember] = dict(group.members)
        self.targets: Mapping[MemberId, streams.Tasks] = dict(group.targets)
        self.group_epoch = group.group_epoch
        self.assignment_epoch = group.assignment_epoch
        self.metadata_hash = group.metadata_hash
        self.validated_topology_epoch = group.validated_topology_epoch
        self.configs = group.last_assignment_configs


class StreamsCoordination(Judge):
    """Judges the coordinator of a world's application, which has one streams group."""

    world: StreamsWorld  # type: ignore[assignment]  # it has no single members

    def __init__(self) -> None:
        self._known: KnownStreamsGroup | None = None
        self._heard_ms: dict[MemberId, int] = {}
        """Time of each member's last heartbeat, or of the coordinator's load, in ms."""
        self._revoking_ms: dict[MemberId, int] = {}
        """Time since which members have to confirm a revocation, in ms."""
        self._waiting_ms: int | None = None
        """Time at which the first member of an empty group joined, while it has no target yet, in ms."""
        self._asked_by: MemberId | None = None
        """The member that asked to shut the application down."""
        self._assigned_ms: int | None = None
        """Time at which the last target was computed, in ms."""
        self._endpoint_epoch: int | None = 0
        """Changes of the tasks of members with an endpoint that this coordinator has seen; None after a
        heartbeat that failed: it may have been one."""
        self._untold: set[MemberId] = set()
        """Members that were sent tasks, and have not received them."""
        self._anew: set[MemberId] = set()
        """Members whose last request is a join or a leave: an earlier response means nothing to them."""
        self._log_failures = 0
        """Number of faults that make the log refuse records now."""
        self._log_failed_ms: int | None = None
        """Time at which the last one began or ended, in ms."""
        self._commits = StreamsCommits()
        self._topics: tuple[streams.Topology, TopicsImage, ExpectedTopics] | None = None
        """The topics that were last expected, with the topology and the image that they follow from."""
        self._steps = 0

    # -- what happens ---------------------------------------------------------------------------------------

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Reset all times when a coordinator has loaded; it knows of no request for a shutdown."""
        if what == "active":
            now_ms = now_us // 1_000
            self._heard_ms = dict.fromkeys(self._heard_ms, now_ms)
            self._revoking_ms = dict.fromkeys(self._revoking_ms, now_ms)
            self._waiting_ms = self._asked_by = None
            self._endpoint_epoch = 0

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Follow when the log refuses records: removals and targets wait then."""
        if fault == FaultKind.APPEND_FAILURE:
            self._log_failures += 1 if phase == "begin" else -1
            self._log_failed_ms = now_us // 1_000

    def on_coordinator_step(self, host: str, event: Any, outcome: Outcome, now_us: int) -> None:
        """Judge one step."""
        coordinator = self.world.cluster.brokers[host].coordinator
        if coordinator is None or self.world.scenario.group.protocol != "streams":
            return
        group_id = self.world.scenario.group.id
        group = coordinator.streams.groups.get(group_id)
        now_ms = now_us // 1_000
        self.report_all(
            descriptions(coordinator.streams.groups, coordinator.streams.image, event, outcome.reply)
        )
        if getattr(event, "group_id", group_id) != group_id:
            return  # of another application, which judges its responses itself
        if isinstance(event, streams.StreamsGroupHeartbeatRequest):
            self._heartbeat(coordinator, group, event, outcome, now_ms)
        elif group is not None and group.topology is not None and self._known is not None:
            self.report_all(self._commits.judge(event, outcome.reply, group.members, group.topology))
        if any(
            type(record.key) in StreamsGroup.applied_by and record.key.group_id == group_id
            for record in outcome.records
        ):
            self.report_all(self._changes(coordinator, group, event, outcome, now_ms))
            self._steps += 1
            self._follow(group, now_ms)  # compares with what was known before
            self._known = None if group is None else KnownStreamsGroup(group)
            if self._steps % _REPLAY_EVERY == 0:
                self._replay(coordinator)
        self._late(group, now_ms)

    def on_member_request(self, host: str, request: Any, now_us: int) -> None:
        """Note whether a member joins or leaves."""
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            change = self._anew.add if request.member_epoch <= JOIN_EPOCH else self._anew.discard
            change(request.member_id)

    def on_member_response(self, host: str, request: Any, response: Any, now_us: int) -> None:
        """Judge what a member makes of a response: tasks are sent once, and again to a member that joins.

        A member that missed a response with tasks takes the next one without tasks as a reason to join. One
        that already joins or leaves ignores it.
        """
        if not isinstance(request, ConsumerGroupHeartbeatRequest) or isinstance(response, Exception):
            return
        member_id = request.member_id
        if request.member_epoch < JOIN_EPOCH or response.assignment is not None:
            self._untold.discard(member_id)
        elif member_id in self._untold - self._anew and not response.error_code:
            self._untold.remove(member_id)
            self.report("streams-reconciles", f"{member_id} goes on, and missed the response with its tasks")

    def on_end(self, now_us: int) -> None:
        """Compare the journal with the group once more, and report what is late."""
        coordinator = self.world.cluster.active
        if coordinator is not None and self.world.scenario.group.protocol == "streams":
            self._replay(coordinator)
            self._late(coordinator.streams.groups.get(self.world.scenario.group.id), now_us // 1_000)

    def _follow(self, group: StreamsGroup | None, now_ms: int) -> None:
        members = {} if group is None else group.members
        self._heard_ms = {one: self._heard_ms.get(one, now_ms) for one in members}
        revoking = {one: member for one, member in members.items() if member.pending_revocation}
        before = {} if self._known is None else self._known.members
        self._revoking_ms = {
            one: self._revoking_ms.get(one, now_ms) if before.get(one) == member else now_ms
            for one, member in revoking.items()
        }
        if group is None:
            self._waiting_ms = None
        if not members:
            self._asked_by = None
        elif group is not None and group.assignment_epoch >= group.group_epoch:
            self._waiting_ms = None

    # -- heartbeats -----------------------------------------------------------------------------------------

    def _heartbeat(
        self,
        coordinator: GroupCoordinator,
        group: StreamsGroup | None,
        request: streams.StreamsGroupHeartbeatRequest,
        outcome: Outcome,
        now_ms: int,
    ) -> None:
        reply = outcome.reply
        if not isinstance(reply, streams.StreamsGroupHeartbeatResponse):
            return
        if reply.error_code in OF_LOG:
            self._failed(request, now_ms)
            return
        expected = self._expected_error(request, group, coordinator.streams.image)
        if reply.error_code is not expected:
            self.report(
                "streams-answers",
                f"{request.member_id} at epoch {request.member_epoch} gets {reply.error_code.name},"
                f" expected {expected.name}",
            )
        if request.shutdown_application and request.member_epoch < 0 and self._known is not None:
            self._asked_by = self._asked_by or request.member_id
        if reply.error_code:
            if outcome.records:
                self.report(
                    "streams-answers", f"{reply.error_code.name} is the response, and records are written"
                )
            return
        if request.member_epoch < 0:
            if reply.member_epoch != request.member_epoch:
                self.report("streams-replies", f"the response to a leave has epoch {reply.member_epoch}")
            return
        known = self._known
        asked = self._asked_by or (request.member_id if request.shutdown_application else None)
        if known is not None:
            self._asked_by = asked
        self._wait(now_ms)
        self._heard_ms[request.member_id] = now_ms
        if reply.tasks is not None:
            self._untold.add(request.member_id)
        if group is not None:
            old = None if known is None else known.members.get(request.member_id)
            self.report_all(self._replies(coordinator, group, old, request, outcome, asked=asked))
            self.report_all(self._put_off(group, now_ms))

    def _wait(self, now_ms: int) -> None:
        """A member joins: the first one of an empty group starts the wait for others."""
        is_first = self._known is None or not self._known.members
        if is_first and now_ms >= self._delays_end_ms[0]:
            self._waiting_ms = now_ms  # a wait continues, even if all members have left meanwhile

    @property
    def _delays_end_ms(self) -> tuple[int, int]:
        """Times until which a first target, and another one, are delayed, in ms; -1 without a delay."""
        config, since_ms, last_ms = self.world.config, self._waiting_ms, self._assigned_ms
        return (
            -1 if since_ms is None else since_ms + config.group_streams_initial_rebalance_delay_ms,
            -1 if last_ms is None else last_ms + config.group_streams_assignment_interval_ms,
        )

    def _failed(self, request: streams.StreamsGroupHeartbeatRequest, now_ms: int) -> None:
        """Follow a heartbeat whose records were not written: only what no record holds has changed."""
        known = self._known
        if request.member_epoch >= 0:
            self._wait(now_ms)
            self._endpoint_epoch = None
            if known is not None and request.member_id in known.members:
                self._heard_ms[request.member_id] = now_ms
        if known is not None and request.shutdown_application:
            self._asked_by = self._asked_by or request.member_id

    def _expected_error(
        self, request: streams.StreamsGroupHeartbeatRequest, group: StreamsGroup | None, image: TopicsImage
    ) -> ErrorCode:
        known, epoch = self._known, request.member_epoch
        if epoch == JOIN_EPOCH:
            most = self.world.config.group_streams_max_size
            full = known is not None and len(known.members) >= most
            return ErrorCode.GROUP_MAX_SIZE_REACHED if full else ErrorCode.NONE
        if known is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        member = known.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch >= 0 and epoch != member.member_epoch and not _is_late_word(member, request):
            return ErrorCode.FENCED_MEMBER_EPOCH
        if epoch >= 0 and group is not None and group.topology is not None:
            topics = self._expected_topics(group.topology, image)
            if topics.problem is None and not topics.has(request):
                return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _replies(
        self,
        coordinator: GroupCoordinator,
        group: StreamsGroup,
        old: StreamsGroupMember | None,
        request: streams.StreamsGroupHeartbeatRequest,
        outcome: Outcome,
        *,
        asked: MemberId | None,
    ) -> Iterator[Finding]:
        reply = outcome.reply
        assert isinstance(reply, streams.StreamsGroupHeartbeatResponse)
        member = group.members.get(request.member_id)
        if member is None:
            yield "streams-replies", f"{request.member_id} is accepted, and is no member"
            return
        told = reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms
        interval_ms = self.world.config.group_streams_heartbeat_interval_ms
        if told != (member.member_id, member.member_epoch, interval_ms):
            yield "streams-replies", f"{member.member_id} at epoch {member.member_epoch} receives {told}"
        shown = request.member_epoch == JOIN_EPOCH or old is None or old.assigned != member.assigned
        if shown and reply.tasks != member.assigned:
            yield "streams-replies", f"{member.member_id} has {member.assigned}, and receives {reply.tasks}"
        elif not shown and reply.tasks is not None:
            yield "streams-replies", f"nothing changed, and {member.member_id} receives {reply.tasks}"
        yield from self._statuses(coordinator, group, reply, outcome, asked=asked)
        is_news = shown
        if self.world.config.release_version is not ReleaseVersion.V4_3:
            before = (streams.NO_TASKS, None) if old is None else (old.assigned, old.user_endpoint)
            is_news = before != (member.assigned, member.user_endpoint)
        if is_news and member.user_endpoint is not None and self._endpoint_epoch is not None:
            self._endpoint_epoch += 1
        yield from self._endpoints(group, reply, had=request.endpoint_information_epoch)
        if self._known is None:
            self._endpoint_epoch = 0  # a group that this heartbeat creates does not keep it

    def _endpoints(
        self, group: StreamsGroup, reply: streams.StreamsGroupHeartbeatResponse, *, had: int
    ) -> Iterator[Finding]:
        """Yield a map of endpoints that is missing or wrong; `had` is the epoch of the member's own map."""
        if self._endpoint_epoch is None:
            self._endpoint_epoch = reply.endpoint_information_epoch
        kept = 0 if self._known is None else self._endpoint_epoch
        if reply.endpoint_information_epoch != kept:
            yield (
                "streams-endpoints",
                f"the map is sent with epoch {reply.endpoint_information_epoch}, its epoch is {kept}",
            )
        told = reply.partitions_by_endpoint
        if (told is None) != (self._endpoint_epoch == had):
            what = "is missing" if told is None else "is sent"
            yield "streams-endpoints", f"the map of {self._endpoint_epoch} {what} where {had} is known"
        elif told is not None and sorted(map(_shown_endpoint, told)) != sorted(endpoints(group)):
            yield "streams-endpoints", f"the map is sent as {told}"

    def _expected_topics(self, topology: streams.Topology, image: TopicsImage) -> ExpectedTopics:
        last = self._topics
        if last is not None and last[0] is topology and last[1] is image:
            return last[2]
        found = expected_topics(topology, image)
        self._topics = topology, image, found
        return found

    def _statuses(
        self,
        coordinator: GroupCoordinator,
        group: StreamsGroup,
        reply: streams.StreamsGroupHeartbeatResponse,
        outcome: Outcome,
        *,
        asked: MemberId | None,
    ) -> Iterator[Finding]:
        assert group.topology is not None
        topics = self._expected_topics(group.topology, coordinator.streams.image)
        expected = set() if topics.problem is None else {topics.problem}
        if asked is not None:
            expected.add(streams.StatusCode.SHUTDOWN_APPLICATION)
        if group.assignment_epoch < group.group_epoch:
            expected.add(streams.StatusCode.ASSIGNMENT_DELAYED)
        told = {status.code for status in reply.status or ()}
        if told != expected:
            names = [sorted(code.name for code in codes) for codes in (told, expected)]
            yield "streams-replies", f"the group's status is sent as {names[0]}, expected {names[1]}"
        made = [each for each in outcome.effects if isinstance(each, CreateInternalTopics)]
        wanted = {(topic.name, topic.partitions) for each in made for topic in each.topics}
        if wanted != topics.missing:
            yield (
                "streams-topics",
                f"{sorted(wanted)} are to be created, missing are {sorted(topics.missing)}",
            )

    # -- changes --------------------------------------------------------------------------------------------

    def _changes(
        self,
        coordinator: GroupCoordinator,
        group: StreamsGroup | None,
        event: Any,
        outcome: Outcome,
        now_ms: int,
    ) -> Iterator[Finding]:
        known = self._known
        yield from self._removals(group, event, outcome, now_ms)
        if group is None:
            return
        yield from epochs(known, group)
        if group.state is not (right := state_of(group)):
            yield "streams-bookkeeping", f"the group says {group.state}, and is {right}"
        yield from self._delays(known, group, now_ms)
        if group.topology is not None and group.members:
            topics = self._expected_topics(group.topology, coordinator.streams.image)
            looked = _is_heartbeat(event) and event.member_epoch >= 0
            if not looked and group.validated_topology_epoch != group.topology.epoch:
                # Only heartbeats look at topics; a timer uses what they found.
                topics = topics._replace(problem=streams.StatusCode.MISSING_INTERNAL_TOPICS)
            new = known is None or group.assignment_epoch != known.assignment_epoch
            if new and group.assignment_epoch > 1:
                given = TargetInput(
                    members=group.members,
                    before={} if known is None else known.targets,
                    old_members={} if known is None else known.members,
                    after=group.targets,
                    topics=topics,
                    standbys=self.world.config.group_streams_num_standby_replicas,
                )
                yield from targets(given)
            elif known is not None and any(
                known.targets.get(one) != tasks for one, tasks in group.targets.items()
            ):
                yield "streams-target", "a target changes, and its epoch does not"
            yield from self._validated(event, group, ready=topics.problem is None)
        yield from reconciliations(
            {} if known is None else known.members, group, event if _is_heartbeat(event) else None
        )

    def _validated(self, event: Any, group: StreamsGroup, *, ready: bool) -> Iterator[Finding]:
        if _is_heartbeat(event) and event.member_epoch >= 0 and group.topology is not None:
            right = group.topology.epoch if ready else -1
            if group.validated_topology_epoch != right:
                yield (
                    "streams-topics",
                    f"the topology counts as validated at {group.validated_topology_epoch}, not at {right}",
                )

    def _removals(
        self, group: StreamsGroup | None, event: Any, outcome: Outcome, now_ms: int
    ) -> Iterator[Finding]:
        if self._known is None:
            return
        members = {} if group is None else group.members
        fenced = {each.member_id: each.reason for each in outcome.effects if isinstance(each, MemberFenced)}
        leaves = event.member_id if _is_heartbeat(event) and event.member_epoch < 0 else None
        if leaves is not None and leaves in members:
            yield "streams-sessions", f"{leaves} leaves, and is still a member"
        session_ms = self.world.config.group_streams_session_timeout_ms
        for member_id, member in self._known.members.items():
            if member_id in members or member_id == leaves:
                continue
            heard_ms = now_ms - self._heard_ms.get(member_id, 0)
            revokes_ms = now_ms - self._revoking_ms.get(member_id, now_ms)
            reason = fenced.get(member_id)
            if reason not in ("session", "rebalance"):
                yield "streams-sessions", f"{member_id} is removed, and no cause is known"
            elif reason == "session" and heard_ms < session_ms:
                yield "streams-sessions", f"{member_id} is removed {heard_ms} ms after its last heartbeat"
            elif reason == "rebalance" and revokes_ms < member.rebalance_timeout_ms:
                yield "streams-sessions", f"{member_id} is removed after {revokes_ms} ms of its revocation"

    def _delays(self, known: KnownStreamsGroup | None, group: StreamsGroup, now_ms: int) -> Iterator[Finding]:
        """Yield a first target that comes too early, or that is delayed without a reason."""
        due_ms, free_ms = self._delays_end_ms
        new = known is not None and group.assignment_epoch != known.assignment_epoch
        if new and group.members and now_ms < due_ms:
            yield "streams-delays", "a target is computed while the group waits for its first members"
        if new and group.members and now_ms < free_ms:
            yield "streams-delays", f"a target is computed {free_ms - now_ms} ms before the interval is over"
        several = known is not None and len(known.members) > 1
        if new and several and due_ms >= free_ms and 0 <= due_ms < now_ms - _PROMPT_MS:
            yield "streams-delays", f"the first target comes {now_ms - due_ms} ms after the initial delay"
        if group.assignment_epoch > 1 and (known is None or new):
            self._assigned_ms = now_ms

    def _put_off(self, group: StreamsGroup, now_ms: int) -> Iterator[Finding]:
        """Yield a target that a heartbeat could have computed, and did not."""
        due_ms, free_ms = self._delays_end_ms
        if group.assignment_epoch < group.group_epoch and now_ms > due_ms and now_ms >= free_ms:
            yield "streams-delays", f"no target is computed for epoch {group.group_epoch}, and nothing waits"

    def _late(self, group: StreamsGroup | None, now_ms: int) -> None:
        """Report members that should have been removed, and a first target that should be there."""
        failed_ms = self._log_failed_ms
        if group is None or self._log_failures or (failed_ms is not None and now_ms < failed_ms + _LATE_MS):
            return
        session_ms = self.world.config.group_streams_session_timeout_ms
        for member_id in group.members:
            heard_ms = now_ms - self._heard_ms.get(member_id, now_ms)
            if heard_ms > session_ms + _LATE_MS:
                self.report(
                    "streams-sessions", f"{member_id} is a member {heard_ms} ms after its last heartbeat"
                )
                self._heard_ms[member_id] = now_ms
            revokes_ms = now_ms - self._revoking_ms.get(member_id, now_ms)
            if revokes_ms > group.members[member_id].rebalance_timeout_ms + _LATE_MS:
                self.report("streams-sessions", f"{member_id} has not confirmed for {revokes_ms} ms")
                self._revoking_ms[member_id] = now_ms
        if 0 <= self._delays_end_ms[0] < now_ms - _LATE_MS:
            if group.members and group.assignment_epoch < group.group_epoch:  # else all have left meanwhile
                self.report("streams-delays", "the group waits for its first members after the initial delay")
            self._waiting_ms = None

    # -- the journal ----------------------------------------------------------------------------------------

    def _replay(self, coordinator: GroupCoordinator) -> None:
        """Compare the group with its journal, and what is derived and soft with the group."""
        group_id = self.world.scenario.group.id
        group = coordinator.streams.groups.get(group_id)
        as_it_is = (JournalVersion.AS_IT_IS,)
        make = partial(GroupCoordinator, self.world.config)
        self.report_all(check_replays(make, self.world.cluster.journal, coordinator, as_it_is))
        if group is None:
            return
        members = set(group.members)
        soft = coordinator.streams.soft
        timed: dict[str, set[MemberId]] = {}
        for key in soft.timers:
            if key.group_id != group_id:
                continue
            timed.setdefault(key.kind, set()).add(key.member_id)
        revoking = {one for one, member in group.members.items() if member.pending_revocation}
        for what, kept, right in (
            ("members heard", set(soft.groups[group_id].contacts), members),
            ("targets", set(group.targets) - members, set()),
            ("session timers", timed.get("session", set()), members),
            ("rebalance timers", timed.get("rebalance", set()), revoking),
        ):
            if kept != right:
                self.report("streams-bookkeeping", f"{what}: {sorted(kept ^ right)} are kept, or missing")
        if group.owners.as_dict() != holders(group.members):
            self.report("streams-bookkeeping", "the map of processes is not what members hold")


_Endpoint = tuple[str, int, list[tuple[str, int]], list[tuple[str, int]]]


def _shown_endpoint(one: streams.EndpointPartitions) -> _Endpoint:
    active, standby = (
        sorted((each.topic, number) for each in role for number in each.partitions)
        for role in (one.active, one.standby)
    )
    return one.endpoint.host, one.endpoint.port, active, standby


def endpoints(group: StreamsGroup) -> Iterator[_Endpoint]:
    """Yield what each member with an endpoint has: the partitions of its active and of its standby tasks."""
    assert group.topology is not None
    sources = {one.subtopology_id: one.source_topics for one in group.topology.subtopologies}
    for member in group.members.values():
        if member.user_endpoint is not None:
            active, standby = (
                sorted((topic, n) for one, numbers in role.items() for topic in sources[one] for n in numbers)
                for role in (member.assigned.active, member.assigned.standby)
            )
            yield member.user_endpoint.host, member.user_endpoint.port, active, standby


def _is_heartbeat(event: Any) -> bool:
    return isinstance(event, streams.StreamsGroupHeartbeatRequest)


def _is_late_word(member: StreamsGroupMember, request: streams.StreamsGroupHeartbeatRequest) -> bool:
    """Return true if the response that moved the member on may have been lost: it shows none of it."""
    owned = request.owned
    if request.member_epoch != member.previous_member_epoch or owned is None:
        return False
    return not minus(parts_of(owned), parts_of(member.assigned))


def state_of(group: StreamsGroup) -> StreamsGroupState:
    """Return the state that a group must have."""
    if not group.members:
        return StreamsGroupState.EMPTY
    if group.topology is None or group.topology.epoch != group.validated_topology_epoch:
        return StreamsGroupState.NOT_READY
    if group.group_epoch > group.assignment_epoch:
        return StreamsGroupState.ASSIGNING
    settled = all(
        member.member_epoch == group.assignment_epoch and member.state is StreamsGroupMemberState.STABLE
        for member in group.members.values()
    )
    return StreamsGroupState.STABLE if settled else StreamsGroupState.RECONCILING


_SAID: Final = (
    "rack_id",
    "client_id",
    "client_host",
    "rebalance_timeout_ms",
    "topology_epoch",
    "process_id",
    "user_endpoint",
    "client_tags",
)
"""Fields of a member that the member states itself."""


def epochs(known: KnownStreamsGroup | None, group: StreamsGroup) -> Iterator[Finding]:
    """Yield epochs that change without a reason, in the wrong direction, or not at all."""
    before = 1 if known is None else known.group_epoch
    causes = list(_causes(known, group))
    raised = group.group_epoch - before
    if raised != bool(causes):
        said = ", ".join(causes) or "no cause"
        yield "streams-epochs", f"the group epoch changes from {before} to {group.group_epoch} for {said}"
    new = known is not None and bool(group.members) and group.assignment_epoch != known.assignment_epoch
    if new and known is not None and not known.assignment_epoch < group.assignment_epoch == group.group_epoch:
        yield (
            "streams-epochs",
            f"a target of epoch {group.assignment_epoch} comes at group epoch {group.group_epoch}",
        )


def _causes(known: KnownStreamsGroup | None, group: StreamsGroup) -> Iterator[str]:
    if known is None:
        yield "the first member"
        return
    if known.members.keys() != group.members.keys():
        yield "members"
    for member_id, member in group.members.items():
        old = known.members.get(member_id)
        if old is None or old is member:
            continue
        if any(getattr(old, name) != getattr(member, name) for name in _SAID):
            yield member_id
    if known.metadata_hash != group.metadata_hash:
        yield "topics"
    if known.validated_topology_epoch != group.validated_topology_epoch:
        yield "the topology"
    if known.configs != group.last_assignment_configs:
        yield "standby tasks"


def holders(members: Mapping[MemberId, StreamsGroupMember]) -> dict[str, Any]:
    """Return the processes that hold each task by role, as the coordinator has them."""
    active: dict[tuple[str, int], str] = {}
    passive: tuple[dict[tuple[str, int], set[str]], ...] = {}, {}
    for member in members.values():
        for tasks in (member.assigned, member.pending_revocation):
            for one, numbers in tasks.active.items():
                active.update(((one, number), member.process_id) for number in numbers)
            for role, found in zip((tasks.standby, tasks.warmup), passive, strict=True):
                for one, numbers in role.items():
                    for number in numbers:
                        found.setdefault((one, number), set()).add(member.process_id)
    standby, warmup = ({task: sorted(each) for task, each in sorted(role.items())} for role in passive)
    return {"active": dict(sorted(active.items())), "standby": standby, "warmup": warmup}
