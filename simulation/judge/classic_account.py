"""A second account of one classic group: the effects of each request, and of each timeout.

It follows from requests, responses and times alone, by the rules of Kafka's group membership protocol
(KIP-62, KIP-134, KIP-345, KIP-394, KIP-814). If Kafka leaves a choice, such as the leader in place of one
that left, the account follows the choice that was made, if it was open.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import (
    MalformedConsumerProtocol,
    read_subscribed_topics,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.records import GroupMetadataMember, GroupMetadataValue
from fencepost.simulation.judge.classic_expected import (
    EMPTY,
    ID_GIVEN_FIRST,
    JOINING,
    STABLE,
    SYNCING,
    Answer,
    Deadline,
    Expected,
    ExpectedMember,
    Offered,
    holder_of,
    member_error,
    nothing,
    offers_of,
    undone,
)

if TYPE_CHECKING:
    from fencepost.coordinator.config import GroupCoordinatorConfig
    from fencepost.coordinator.timers import Timers

_E = ErrorCode
_FIRST_JOIN_MS: Final = 300_000
"""Longest time that a new member may wait in its first join, in ms: after that it may not know its id."""
_RETRY_MS: Final = 100
"""The least time between two ends of a round that nobody has joined."""
_MAY_SKIP: Final = 9
"""First version of JoinGroup in which a response can make a leader keep the assignment (KIP-814)."""


class ExpectedGroup:
    """One classic group. Times are in milliseconds of the coordinator.

    `begin` starts each event; the methods named after events then work out the effects, in `now`.
    """

    def __init__(self, group_id: str, config: GroupCoordinatorConfig) -> None:
        self.group_id = group_id
        self._config = config
        self.phase: ClassicGroupState = EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: MemberId | None = None
        """None while any member may become the leader."""
        self.members: dict[MemberId, ExpectedMember] = {}
        self.given_ids: set[MemberId] = set()
        """Ids that were given to members that have not joined with them yet."""
        self.unsynced: set[MemberId] = set()
        """Members that have not requested their assignment in this generation."""
        self.topics: frozenset[str] | None = None
        """The topics that the members of this generation subscribe to; None before the first one, and if not
        all of them can be read."""
        self._joining, self._syncing = Deadline("join", group_id), Deadline("sync", group_id)
        self.deadlines: dict[Deadline, int] = {}
        self._gathering: tuple[int, int] | None = None
        """While the first members gather: the current delay, and the time that is left for more, in ms."""
        self._newcomers = False
        """True if a member joined in that time."""
        self.is_written = True
        """False if the last record of the group could not be written."""
        self.look_ms = 0
        """Before this time no deadline passes."""
        self.now = Expected()
        self._now_ms = 0
        self._seen: Mapping[classic.Token, Answer] = {}
        self._kept = True

    @classmethod
    def of_record(
        cls, group_id: str, value: GroupMetadataValue, config: GroupCoordinatorConfig, now_ms: int
    ) -> ExpectedGroup:
        """Return a group that was just loaded: sessions begin, and a group that is too large joins again."""
        group = cls(group_id, config)
        group.begin(now_ms, {})
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        for one in value.members:
            offers = ((value.protocol or "", one.subscription),)
            member = ExpectedMember(
                member_id=one.member_id,
                instance_id=one.instance_id,
                session_ms=one.session_timeout_ms,
                rebalance_ms=one.rebalance_timeout_ms,
                offers=offers,
                assignment=one.assignment,
            )
            group.members[one.member_id] = member
            group._heard(member)
        group._read_topics()
        if group.members:
            group.phase = STABLE
            if len(group.members) > config.group_max_size:
                group.start()
        return group

    def begin(self, now_ms: int, seen: Mapping[classic.Token, Answer], *, kept: bool = True) -> None:
        """Begin an event. `seen` are the responses that were sent: they show which choice was made.

        `kept` is true if a member that came back was accepted without a rebalance, when both are allowed.
        """
        self.now = Expected()
        self._now_ms = now_ms
        self._seen = seen
        self._kept = kept

    # -- members and leaders ------------------------------------------------------------------------------

    def _error_in(self, member_id: MemberId, instance_id: str | None, generation: int) -> ErrorCode:
        error = member_error(self.members, member_id, instance_id)
        if error is _E.NONE and generation != self.generation:
            return _E.ILLEGAL_GENERATION
        return error

    def common(self) -> set[str]:
        """Return the protocols that all members offer."""
        # Hundreds of members offer the same few lists of protocols.
        lists = {tuple([name for name, _ in member.offers]) for member in self.members.values()}
        return set.intersection(*map(set, lists)) if lists else set()

    def choices(self) -> set[str]:
        """Return the protocols that most members prefer, of those that all offer."""
        common = self.common()
        votes = Counter(
            next(name for name, _ in member.offers if name in common)
            for member in self.members.values()
            if common
        )
        most = max(votes.values(), default=0)
        return {name for name, count in votes.items() if count == most}

    @property
    def _rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    @property
    def _all_joined(self) -> bool:
        return not self.given_ids and all(member.join is not None for member in self.members.values())

    # -- times --------------------------------------------------------------------------------------------

    def session_of(self, member_id: MemberId) -> Deadline:
        """Return the key of that id's session."""
        return Deadline("session", self.group_id, member_id)

    def _set(self, deadline: Deadline, length_ms: int) -> None:
        self.deadlines.pop(deadline, None)  # equal ones run in the order in which they were set
        self.deadlines[deadline] = at_ms = self._now_ms + length_ms
        self.look_ms = min(self.look_ms, at_ms)

    def _heard(self, member: ExpectedMember) -> None:
        self._set(self.session_of(member.member_id), member.session_ms)

    def _end(self, deadline: Deadline) -> None:
        self.deadlines.pop(deadline, None)

    def adopt(self, timers: Timers[Any]) -> None:
        """Take the deadlines of a group that was just loaded from a coordinator with another clock."""
        at_ms = {each: timers.deadline_of(each) for each in self.deadlines}
        self.deadlines.update({each: at for each, at in at_ms.items() if at is not None})
        self.looked()

    def due(self, now_ms: int) -> Iterator[tuple[int, Deadline]]:
        """Yield the deadlines that have passed by then."""
        for deadline, at_ms in self.deadlines.items():
            if at_ms <= now_ms:
                yield at_ms, deadline

    def gathers_again(self, at_ms: int, deadline: Deadline, now_ms: int) -> bool:
        """Return true if this timer, once it has run, is armed again for the same time."""
        if deadline != self._joining or self._gathering is None or not self._newcomers:
            return False
        more_ms = self._gathering[1]
        return more_ms > 0 and now_ms + min(self._config.group_initial_rebalance_delay_ms, more_ms) == at_ms

    def looked(self) -> None:
        """Note that all deadlines up to now were checked."""
        self.look_ms = min(self.deadlines.values(), default=1 << 62)

    # -- requests -----------------------------------------------------------------------------------------

    def joins(self, request: classic.JoinGroupRequest) -> None:
        """Take in a JoinGroup to a group that exists, or was just made."""
        error = self._join(request)
        if error is not None:
            self._answer(request.token, classic.JoinGroupResponse(error_code=error))

    def _join(self, request: classic.JoinGroupRequest) -> ErrorCode | None:
        member_id, instance_id = request.member_id, request.instance_id
        offers = offers_of(request)
        if not self._has_room(member_id):
            if member_id in self.members:
                self._remove(member_id)
            self.given_ids.discard(member_id)
            self._end(self.session_of(member_id))
            return _E.GROUP_MAX_SIZE_REACHED
        if not self._supports(request.protocol_type, offers):
            return _E.INCONSISTENT_GROUP_PROTOCOL
        if not member_id:
            holder = holder_of(self.members, instance_id)
            if holder is not None:
                self._replace(request, holder, offers)
            elif instance_id is None and request.api_version >= ID_GIVEN_FIRST:
                self._give_id(request)
            else:
                self._add(request, self._new_id(request), offers)
            return None
        if member_id in self.given_ids and instance_id is None:
            self._add(request, member_id, offers)
            return None
        error = member_error(self.members, member_id, instance_id)
        if error is not _E.NONE:
            return error
        member = self.members[member_id]
        leads = member_id == self.leader
        if self.phase is JOINING or member.offers != offers or (leads and self.phase is STABLE):
            self._update(request, member, offers)
            self._start_or_complete()
        else:
            self._answer(request.token, self._in_generation(member_id, leads=leads))
        return None

    def _has_room(self, member_id: MemberId) -> bool:
        most = self._config.group_max_size
        if self.phase is EMPTY:
            return True
        if self.phase is JOINING:
            waiting = [each.member_id for each in self.members.values() if each.join is not None]
            return member_id in waiting or len(waiting) < most
        return member_id in self.members or len(self.members) < most

    def _supports(self, protocol_type: str, offers: Offered) -> bool:
        if self.phase is EMPTY:
            return bool(protocol_type and offers)
        names = {name for name, _ in offers}
        return protocol_type == self.protocol_type and bool(self.common() & names if self.members else names)

    def _new_id(self, request: classic.JoinGroupRequest) -> MemberId:
        return f"{request.instance_id or request.client_id}-{request.new_member_suffix}"

    def _give_id(self, request: classic.JoinGroupRequest) -> None:
        member_id = self._new_id(request)
        self.given_ids.add(member_id)
        self._set(self.session_of(member_id), request.session_timeout_ms)
        self._answer(
            request.token, classic.JoinGroupResponse(error_code=_E.MEMBER_ID_REQUIRED, member_id=member_id)
        )

    def _add(self, request: classic.JoinGroupRequest, member_id: MemberId, offers: Offered) -> None:
        member = ExpectedMember(
            member_id=member_id,
            instance_id=request.instance_id,
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms,
            offers=offers,
            join=request.token,
            is_new=True,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
            self.leader = member_id
        self._newcomers = self._newcomers or self._gathering is not None
        self.members[member_id] = member
        self.given_ids.discard(member_id)
        self._set(self.session_of(member_id), _FIRST_JOIN_MS)
        self._start_or_complete()

    def _update(self, request: classic.JoinGroupRequest, member: ExpectedMember, offers: Offered) -> None:
        if member.join is not None:
            self._answer(member.join, classic.JoinGroupResponse(error_code=_E.REBALANCE_IN_PROGRESS))
        member.offers = offers
        member.rebalance_ms = request.rebalance_timeout_ms
        member.session_ms = request.session_timeout_ms
        member.join = request.token

    def _replace(self, request: classic.JoinGroupRequest, member: ExpectedMember, offers: Offered) -> None:
        """A static member came back without its id: it gets a new one, and the old one is fenced."""
        old_id, new_id, was_leader = member.member_id, self._new_id(request), self.leader or ""
        before = member.offers, member.rebalance_ms, member.session_ms
        if member.join is not None:
            self._answer(member.join, classic.JoinGroupResponse(error_code=_E.FENCED_INSTANCE_ID))
            member.join = None
        if member.sync is not None:
            self._answer(member.sync, classic.SyncGroupResponse(error_code=_E.FENCED_INSTANCE_ID))
            member.sync = None
        self._rename(old_id, new_id)
        self._update(request, member, offers)
        self._heard(member)
        if self.phase is STABLE and self._keeps_protocol():
            member.join = None
            leads = new_id == self.leader
            if request.api_version >= _MAY_SKIP:
                told = self._in_generation(new_id, leads=leads, skip=leads)
            else:  # an old client would assign again if the response made it the leader
                told = self._in_generation(new_id, leads=False, leader=was_leader)
            self._answer(request.token, told)

            def undo(code: ErrorCode) -> None:
                self.now.answers[request.token] = classic.JoinGroupResponse(error_code=code)
                self._rename(new_id, old_id)
                member.offers, member.rebalance_ms, member.session_ms = before
                self._heard(member)

            self._write(undo=undo)
        elif self.phase is JOINING:
            self._complete_if_all_joined()
        else:
            self.start()

    def _keeps_protocol(self) -> bool:
        """Return true if the chosen protocol is still chosen, though the member may offer others now."""
        choices = self.choices()
        return self.protocol in choices and (len(choices) == 1 or self._kept)

    def _rename(self, old_id: MemberId, new_id: MemberId) -> None:
        self.members = {new_id if each == old_id else each: m for each, m in self.members.items()}
        self.members[new_id].member_id = new_id
        self._end(self.session_of(old_id))
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)

    def syncs(self, request: classic.SyncGroupRequest) -> None:
        """Take in a SyncGroup: the leader brings the assignment, the others receive theirs."""
        error = self._error_in(request.member_id, request.instance_id, request.generation)
        if error is _E.NONE and not (
            request.protocol_type in (None, self.protocol_type)
            and request.protocol_name in (None, self.protocol)
        ):
            error = _E.INCONSISTENT_GROUP_PROTOCOL
        if error is _E.NONE and self.phase is JOINING:
            error = _E.REBALANCE_IN_PROGRESS
        if error is not _E.NONE:
            self._answer(request.token, classic.SyncGroupResponse(error_code=error))
            return
        member = self.members[request.member_id]
        self.unsynced.discard(member.member_id)
        if not self.unsynced:
            self._end(self._syncing)
        if self.phase is STABLE:
            self._answer(request.token, self._assignment(member.assignment))
            return
        if member.sync is not None:
            self._answer(member.sync, classic.SyncGroupResponse(error_code=_E.REBALANCE_IN_PROGRESS))
        member.sync = request.token
        if member.member_id == self.leader:
            self._assign(request, member)

    def _assign(self, request: classic.SyncGroupRequest, leader: ExpectedMember) -> None:
        waiting = [member for member in self.members.values() if member.sync is not None]
        given = request.assignments
        for member in waiting:
            assert member.sync is not None
            self._answer(member.sync, self._assignment(given.get(member.member_id, b"")))

        def written() -> None:
            for member in self.members.values():
                member.assignment = given.get(member.member_id, b"")
            for member in waiting:
                member.sync = None
                self._heard(member)
            self.phase = STABLE

        def undo(code: ErrorCode) -> None:
            leader.sync = None
            self._fail_syncs(code)
            self._answer(request.token, classic.SyncGroupResponse(error_code=code))
            self.start()

        self._write(given, later=written, undo=undo)

    def beats(self, request: classic.HeartbeatRequest) -> ErrorCode:
        """Return the error of the response to a Heartbeat."""
        error = self._error_in(request.member_id, request.instance_id, request.generation)
        if error is _E.NONE:
            self._heard(self.members[request.member_id])
            if self.phase is JOINING:
                return _E.REBALANCE_IN_PROGRESS
        return error

    def commits(self, request: OffsetCommitRequest) -> ErrorCode:
        """Return the error of an OffsetCommit by its member and generation."""
        if request.member_epoch < 0 and self.phase is EMPTY:
            return _E.NONE
        error = self._error_in(request.member_id, request.instance_id, request.member_epoch)
        if error is _E.NONE:
            self.hears(request.member_id)
            if self.phase is SYNCING:
                return _E.REBALANCE_IN_PROGRESS
        return error

    def hears(self, member_id: MemberId) -> None:
        """Note that a member is known to be alive."""
        if member_id in self.members and self.phase in (STABLE, JOINING):
            self._heard(self.members[member_id])

    def leaves(self, requests: Collection[LeaveGroupRequest]) -> None:
        """Take in a LeaveGroup: all named members that are known leave, and the others rebalance once."""
        codes = []
        for request in requests:
            member_id = request.member_id
            if not member_id:
                holder = holder_of(self.members, request.instance_id)
                member_id = "" if holder is None else holder.member_id
            if member_id and request.member_id in self.given_ids:
                self.given_ids.remove(member_id)
                self._end(self.session_of(member_id))
                codes.append(_E.NONE)
                continue
            error = member_error(self.members, member_id, request.instance_id)
            if error is _E.NONE:
                self._remove(member_id)
            codes.append(error)
        self.now.codes = tuple(codes)
        if _E.NONE in codes and self.phase is not EMPTY:
            self._start_or_complete()

    def rebalances(self) -> None:
        """Take in a request that the members join again."""
        if self.members:
            self._start_or_complete()

    def ends(self, code: ErrorCode) -> None:
        """End the group, which has become one of another kind, or was deleted: waiting members receive this
        error."""
        for member in self.members.values():
            if member.join is not None:
                self._answer(member.join, classic.JoinGroupResponse(error_code=code))
            if member.sync is not None:
                self._answer(member.sync, classic.SyncGroupResponse(error_code=code))

    # -- deadlines ----------------------------------------------------------------------------------------

    def is_over(self, deadline: Deadline, *, by_time: bool = True) -> None:
        """End a session, or the time of a phase: `by_time`, or at the request of a client."""
        if by_time:
            self._end(deadline)
        before = set(self.members)
        if deadline.kind == "session":
            self._session_over(deadline.member_id)
        elif deadline == self._joining:
            self._join_over()
        elif late := [each for each in self.members if each in self.unsynced]:
            for member_id in late:
                self._remove(member_id)
            self.start()
        self.now.fenced = before - set(self.members)

    def _session_over(self, member_id: MemberId) -> None:
        if member_id in self.given_ids:
            self.given_ids.remove(member_id)
            self._complete_if_all_joined()
            return
        member = self.members.get(member_id)
        if member is not None and (member.is_new or (member.join is None and member.sync is None)):
            self._remove(member_id)
            self._start_or_complete()

    def _join_over(self) -> None:
        if self._gathering is not None and self._newcomers:
            gathered_ms, more_ms = self._gathering
            if more_ms:
                next_ms = min(self._config.group_initial_rebalance_delay_ms, more_ms)
                self._gather(next_ms, max(more_ms - gathered_ms, 0))
                return
        self._complete()

    # -- rounds -------------------------------------------------------------------------------------------

    def _start_or_complete(self) -> None:
        if self.phase is JOINING:
            self._complete_if_all_joined()
        else:
            self.start()

    def _complete_if_all_joined(self) -> None:
        if self.phase is JOINING and self._gathering is None and self._all_joined:
            self._complete()

    def start(self) -> None:
        """Start a round."""
        was = self.phase
        if was is SYNCING:
            self._fail_syncs(_E.REBALANCE_IN_PROGRESS)
        self.unsynced.clear()
        self._end(self._syncing)
        self.phase = JOINING
        if was is EMPTY:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._gather(delay_ms, max(self._rebalance_ms - delay_ms, 0))
        elif self._all_joined:
            self._complete()
        else:
            self._set(self._joining, self._rebalance_ms)

    def _gather(self, length_ms: int, more_ms: int) -> None:
        self._newcomers = False
        self._gathering = length_ms, more_ms
        self._set(self._joining, length_ms)

    def _complete(self) -> None:
        """End the round with the members that joined, and with static members, whose sessions decide about
        them."""
        self._end(self._joining)
        for member in [*self.members.values()]:
            if member.join is None and member.instance_id is None:
                self._remove(member.member_id)
        joined = {each.member_id: each for each in self.members.values() if each.join is not None}
        if self.members and not joined:
            self._set(self._joining, max(self._rebalance_ms, _RETRY_MS))
            return
        self.generation += 1
        self._gathering = None
        if not self.members:
            self.phase, self.protocol, self.leader = EMPTY, None, None
            self._read_topics()
            self._write()
            return
        self.phase = SYNCING
        self._choose(joined)
        self._read_topics()
        for member in self.members.values():
            if member.join is not None:
                self._answer(
                    member.join,
                    self._in_generation(member.member_id, leads=member.member_id == self.leader),
                )
                member.join = None
            member.is_new = False
            self._heard(member)
            self.unsynced.add(member.member_id)
        self._set(self._syncing, self._rebalance_ms)

    def _choose(self, joined: Mapping[MemberId, ExpectedMember]) -> None:
        """Choose the leader and the protocol: the leader stays if it has joined, else any other member; the
        protocol is one of the most preferred."""
        seen = next(
            (
                told
                for each in joined.values()
                if isinstance(told := self._seen.get(each.join or 0), classic.JoinGroupResponse)
            ),
            None,
        )
        if self.leader not in joined:
            self.leader = seen.leader if seen is not None and seen.leader in joined else next(iter(joined))
        choices = self.choices()
        if seen is not None and seen.protocol_name in choices:
            self.protocol = seen.protocol_name
        else:
            self.protocol = min(choices, default=None)

    def _read_topics(self) -> None:
        self.topics = None
        if self.protocol_type != classic.CONSUMER_PROTOCOL_TYPE:
            return
        said = [member.metadata(self.protocol) for member in self.members.values()]
        with contextlib.suppress(MalformedConsumerProtocol):
            self.topics = frozenset(topic for data in said for topic in read_subscribed_topics(data))

    def _fail_syncs(self, code: ErrorCode) -> None:
        for member in self.members.values():
            member.assignment = b""
            if member.sync is not None:
                self._answer(member.sync, classic.SyncGroupResponse(error_code=code))
                member.sync = None
                self._heard(member)

    def _remove(self, member_id: MemberId) -> None:
        member = self.members.pop(member_id)
        if member.join is not None:
            self._answer(member.join, classic.JoinGroupResponse(error_code=_E.UNKNOWN_MEMBER_ID))
        if member.sync is not None:
            self._answer(member.sync, classic.SyncGroupResponse(error_code=_E.UNKNOWN_MEMBER_ID))
        self.given_ids.discard(member_id)
        self.unsynced.discard(member_id)
        self._end(self.session_of(member_id))
        if self.leader == member_id:
            self.leader = None

    # -- responses and records ----------------------------------------------------------------------------

    def _answer(self, token: classic.Token, answer: Answer) -> None:
        self.now.answers[token] = answer

    def _in_generation(
        self, member_id: MemberId, *, leads: bool, skip: bool = False, leader: MemberId | None = None
    ) -> classic.JoinGroupResponse:
        return classic.JoinGroupResponse(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=(self.leader or "") if leader is None else leader,
            skip_assignment=skip,
            member_id=member_id,
            members=self._roster() if leads else (),
        )

    def _roster(self) -> tuple[classic.JoinGroupMember, ...]:
        return tuple(
            classic.JoinGroupMember(
                member_id=each.member_id,
                instance_id=each.instance_id,
                metadata=each.metadata(self.protocol),
            )
            for each in self.members.values()
        )

    def _assignment(self, assignment: bytes) -> classic.SyncGroupResponse:
        return classic.SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=assignment
        )

    def _write(
        self,
        given: Mapping[MemberId, bytes] | None = None,
        *,
        later: Callable[[], None] = nothing,
        undo: Callable[[ErrorCode], None] = undone,
    ) -> None:
        self.now.value = self.value(given)
        self.now.later = later
        self.now.undo = undo

    def value(self, given: Mapping[MemberId, bytes] | None = None) -> GroupMetadataValue:
        """Return the record of the group, with these assignments or with those that members have."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            members=tuple(
                GroupMetadataMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id="",
                    client_host="",
                    rebalance_timeout_ms=each.rebalance_ms,
                    session_timeout_ms=each.session_ms,
                    subscription=each.metadata(self.protocol),
                    assignment=each.assignment if given is None else given.get(each.member_id, b""),
                )
                for each in self.members.values()
            ),
        )
