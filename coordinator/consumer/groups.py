"""All consumer groups of a coordinator: what records say of them, what runs in memory, and their timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from fencepost.coordinator.assign.registry import configured_assignors
from fencepost.coordinator.assign.spec import Assignor
from fencepost.coordinator.config import (
    GroupConfig,
    GroupCoordinatorConfig,
    GroupSettings,
    ReleaseVersion,
    SettingsByGroup,
)
from fencepost.coordinator.consumer import leaving, regular_expressions
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.heartbeat import ConsumerHeartbeatContext, heartbeat
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.records import apply_to_groups
from fencepost.coordinator.consumer.soft import (
    ConsumerGroupSoftState,
    ConsumerSoftState,
    ConsumerTimerKey,
    ConsumerTimerKind,
    MemberContact,
)
from fencepost.coordinator.consumer.validation import check_request
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    MemberFenced,
    Outcome,
    RegularExpressionsResolved,
)
from fencepost.coordinator.protocol.records import ConsumerGroupCurrentMemberAssignmentKey, Record
from fencepost.coordinator.protocol.topics import TopicsImage

_CONSUMER_PROTOCOL = "consumer"
V4_3 = ReleaseVersion.V4_3
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


class Migration(Protocol):
    """What makes a classic group a consumer group, and the other way round."""

    def upgrade(
        self, request: ConsumerGroupHeartbeatRequest, member_id: MemberId, now_ms: int
    ) -> Outcome | None:
        """A member that joins a classic group with the newer protocol; None if there is no such group.

        :raises ProtocolError: GROUP_ID_NOT_FOUND if the group stays a classic one.
        """

    def removal(
        self, group: ConsumerGroup, gone: Sequence[ConsumerGroupMember], image: TopicsImage, now_ms: int
    ) -> tuple[Record, ...]:
        """The records that remove members for good, or turn what is left into a classic group."""


class ConsumerGroups:
    """Takes events about consumer groups, and the records that they led to.

    `assignors` are a user's own, by name; `config.group_consumer_assignors` says which ones are offered.

    :raises FencepostError: on construction, if the configuration names an assignor that does not exist.
    """

    __slots__ = (
        "_groups",
        "_newest_topics",
        "_settings",
        "assignors",
        "config",
        "groups",
        "image",
        "migration",
        "replay",
        "soft",
    )

    def __init__(
        self, config: GroupCoordinatorConfig, assignors: Mapping[str, Assignor] | None = None
    ) -> None:
        self.config = config
        self.assignors = configured_assignors(config.group_consumer_assignors, assignors)
        self._groups: dict[str, ConsumerGroup] = {}
        self.groups: Mapping[str, ConsumerGroup] = MappingProxyType(self._groups)
        self.replay: Callable[[Any, Any], None] = partial(apply_to_groups, self._groups)
        """Makes a record of a journal true, or raises InconsistentRecord; `rebuild` ends a load."""
        self.soft = ConsumerSoftState(self._session_timeout_ms)
        self.image = TopicsImage()
        """The cluster's topics, as of the last TopicsChanged."""
        self.migration: Migration
        """Set by the coordinator: it knows groups of both kinds."""
        self._newest_topics = -1
        self._settings = SettingsByGroup(lambda own: own.settings(config))

    # Records

    def apply(self, key: Any, value: Any) -> None:
        """Make a record true, at the time of the event that was handled last.

        :raises InconsistentRecord: if it cannot follow the records before it.
        """
        self.replay(key, value)
        self.soft.follow(key, value, self._groups.get(key.group_id))

    def rebuild(self, now_ms: int) -> None:
        """Start all timers with their full length."""
        self.soft.rebuild(self._groups, now_ms)

    # Configuration

    def set_group_config(self, group_id: str, config: GroupConfig | None) -> None:
        """Give a group a configuration of its own, or take it away. Configuration is in no record."""
        self._settings.configure(group_id, config)
        self.soft.restart_sessions((group_id,))

    def settings(self, group_id: str) -> GroupSettings:
        """The session length, heartbeat interval and assignment interval that hold for a group."""
        return self._settings.of(group_id)

    def _session_timeout_ms(self, group_id: str) -> int:
        return self.settings(group_id).session_timeout_ms

    # Heartbeats

    def answer_again(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome | None:
        """The answer to a heartbeat like the member's last, if nothing happened that it depends on."""
        soft = self.soft.groups.get(request.group_id)
        if soft is not None:
            contact = soft.contacts.get(request.member_id)
            if (
                contact is not None
                and contact.version == soft.version
                and now_ms < contact.until_ms
                and contact.request == request
            ):
                contact.last_ms = now_ms
                return contact.answer
        return None

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        """ConsumerGroupHeartbeat."""
        try:
            return self._checked_heartbeat(request, now_ms)
        except ProtocolError as error:
            reply = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            return Outcome(reply=reply)

    def _checked_heartbeat(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        if _CONSUMER_PROTOCOL not in self.config.group_coordinator_rebalance_protocols:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is disabled.")
        check_request(request, self.assignors)
        group_id = request.group_id
        member_id = request.member_id or request.generated_member_id
        if not member_id and request.member_epoch == JOIN_EPOCH:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
        group = self._groups.get(group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            upgraded = self.migration.upgrade(request, member_id, now_ms)
            if upgraded is not None:
                return upgraded
            group = ConsumerGroup(group_id)
        if request.member_epoch < JOIN_EPOCH:
            return leaving.leave(group, request, self.removal(now_ms))
        soft = self.soft.of(group_id)
        outcome = heartbeat(group, soft, request, member_id, self.surroundings(group_id, now_ms))
        if outcome.effects:
            self.soft.resolving[group_id] = None
        contact = soft.contacts.get(member_id)
        if contact is not None:
            contact.last_ms = now_ms
            contact.awaited_epoch = None
            if not outcome.effects and member_id == request.member_id:
                self._keep(request, outcome, group, soft, contact)
        return outcome

    def _keep(
        self,
        request: ConsumerGroupHeartbeatRequest,
        outcome: Outcome,
        group: ConsumerGroup,
        soft: ConsumerGroupSoftState,
        contact: MemberContact,
    ) -> None:
        """Keep what is to be answered again, if the heartbeat that comes next can be foretold."""
        reply: Any = outcome.reply
        if not outcome.records:
            # A member that waits for partitions is looked at each time: others' records decide for it.
            if not group.settled_for(request.member_id):
                return
            contact.version = soft.version
        elif _moves_an_epoch(outcome):
            # What the member owns it tells once.
            request = msgspec.structs.replace(request, member_epoch=reply.member_epoch, topic_partitions=None)
            outcome = Outcome(reply=reply)
            contact.version, contact.awaited_epoch = -1, reply.member_epoch
        else:
            return
        refresh_ms = self.config.group_consumer_regex_refresh_interval_ms
        until_ms = regular_expressions.next_check_ms(group, refresh_ms, contact.last_ms)
        contact.request, contact.answer = request, outcome
        contact.until_ms = min(until_ms, soft.refresh_deadline_ms)

    def surroundings(self, group_id: str, now_ms: int) -> ConsumerHeartbeatContext:
        """What a heartbeat of a member of that group depends on beside the group."""
        return ConsumerHeartbeatContext(
            image=self.image,
            newest_topics=self._newest_topics,
            settings=self._settings.of(group_id),
            assignors=self.assignors,
            max_size=self.config.group_consumer_max_size,
            regex_refresh_interval_ms=self.config.group_consumer_regex_refresh_interval_ms,
            resolving=group_id in self.soft.resolving,
            preference_raises_epoch=self.config.release_version is not V4_3,
            now_ms=now_ms,
        )

    def removal(self, now_ms: int) -> leaving.Removal:
        """How members are removed at that time."""
        return partial(self._removal, now_ms)

    def _removal(
        self, now_ms: int, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]
    ) -> tuple[Record, ...]:
        return self.migration.removal(group, members, self.image, now_ms)

    # What happens without a request

    def heard(self, group_id: str, member_id: MemberId, now_ms: int) -> bool:
        """A member is alive, as the shell knows. False if there is no such member here."""
        soft = self.soft.groups.get(group_id)
        if soft is None or member_id not in soft.contacts:
            return False
        soft.contacts[member_id].last_ms = now_ms
        return True

    def session_ended(self, group_id: str, member_id: MemberId, now_ms: int) -> Outcome | None:
        """A member is gone, as the shell knows. None if there is no such member here."""
        group = self._groups.get(group_id)
        if group is None or member_id not in group.members:
            return None
        return self._fence(ConsumerTimerKey(ConsumerTimerKind.SESSION, group_id, member_id), now_ms)

    def rebalance(self, group_id: str) -> Outcome | None:
        """A new group epoch for its own sake. None if there is no such group with members here."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return None
        nobody = ()
        return Outcome(
            records=leaving.removal_records(group, nobody, self.image, self.config.release_version)
        )

    def topics_changed(self, before: TopicsImage, after: TopicsImage, changed: Iterable[str]) -> None:
        """The cluster's topics are others; `changed` are the names of those that differ."""
        self.image = after
        if self._newest_topics < 0 or any(topic_id not in before.by_id for topic_id in after.by_id):
            self._newest_topics = after.version
        names = tuple(changed)
        for group_id, group in self._groups.items():
            soft = self.soft.groups[group_id]
            soft.version += 1
            if any(group.is_subscribed_to(name) for name in names):
                soft.request_metadata_refresh()

    def regular_expressions_resolved(self, event: RegularExpressionsResolved, now_ms: int) -> Outcome:
        """The topics that match a group's regular expressions were looked up."""
        self.resolution_ended(event.group_id)
        group = self._groups.get(event.group_id)
        if group is None or not event.topics:
            return NOTHING
        records, epoch = regular_expressions.resolution_records(group, event, self.image, now_ms)
        if epoch > group.group_epoch:
            self.soft.of(event.group_id).metadata_refreshed(epoch, now_ms)
        return Outcome(records=records)

    def resolution_ended(self, group_id: str) -> None:
        """The group waits for its regular expressions no more."""
        self.soft.resolving.pop(group_id, None)
        self.soft.of(group_id).version += 1

    def deadline_reached(self, now_ms: int) -> Outcome | None:
        """Run the most overdue timer that ends something; None if there is none."""
        while (key := self.soft.timers.pop_due(now_ms)) is not None:
            if key.kind is ConsumerTimerKind.SESSION:
                if self.soft.session_is_over(key, now_ms):
                    return self._fence(key, now_ms)
                continue
            group = self._groups.get(key.group_id)
            if group is not None and key.member_id in group.members:
                self.soft.retry_later(key, now_ms)
                return self._fence(key, now_ms)
        return None

    def _fence(self, key: ConsumerTimerKey, now_ms: int) -> Outcome:
        group = self._groups[key.group_id]
        records = self._removal(now_ms, group, (group.members[key.member_id],))
        fenced = MemberFenced(group_id=key.group_id, member_id=key.member_id, reason=key.kind.value)
        return Outcome(records=records, effects=(fenced,))


def _moves_an_epoch(outcome: Outcome) -> bool:
    """Whether a heartbeat moves its member to another epoch, and tells it of nothing else."""
    reply: Any = outcome.reply
    return (
        len(outcome.records) == 1
        and type(outcome.records[0].key) is ConsumerGroupCurrentMemberAssignmentKey
        and reply.assignment is None
    )
