"""The time and the content of each heartbeat.

A field is sent when the member joins, when it differs from the value sent last, and in full again after any
failure. The request may not have arrived, or its response, which may have carried an assignment, may be lost
(KIP-848, Heartbeat). `TopicPartitions` is None while a reconciliation is under way, so that the coordinator
does not treat a list that is about to change as an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencepost.coordinator.protocol import consumer, ids
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption
from fencepost.member.consumer.actions import SendHeartbeat
from fencepost.member.consumer.assignment import Subscription

DEFAULT_HEARTBEAT_INTERVAL_MS = 5_000
"""The interval until a coordinator has set one (group.consumer.heartbeat.interval.ms)."""


class SentFields:
    """The last values that the coordinator has received; None if they have to be sent again."""

    __slots__ = ("assignor", "empty_regex", "full", "names", "owned", "regex", "regex_may_be_known")

    def __init__(self) -> None:
        self.regex_may_be_known = False
        """True if the coordinator may still hold a regular expression of ours; only "" removes it."""
        self.forget()

    def forget(self) -> None:
        """Make the next heartbeat full."""
        self.full = True
        self.names: tuple[str, ...] | None = None
        self.regex: str | None = None
        self.empty_regex = False
        self.assignor: str | None = None
        self.owned: tuple[int, ids.Partitions] | None = None


class HeldInstance:
    """The state of a static member's instance id, which its own process may hold when a join is refused.

    Kafka 4.3 refuses the join of a static member that it still has, even under the same member id. This
    happens after a join whose response was lost, and after a fence. The member then leaves, and joins again.
    The leave names a member id of this process, so it cannot free an instance id that another process holds:
    Kafka refuses such a leave with FENCED_INSTANCE_ID.
    """

    __slots__ = ("_config", "_member_id", "_refusals", "holders", "is_released")

    def __init__(self, member_id: ids.MemberId, config: ConsumerConfig) -> None:
        self._member_id = member_id
        self._config = config
        self.holders = config.instance_holders
        """The member ids under which this process may hold the instance id; the newest one is last."""
        self.is_released = False
        """A leave with epoch -2 is under way, to free the instance id for this member's next join."""
        self._refusals = 0

    def may_be_held(self) -> None:
        """Note that the coordinator may have this member, under its instance id."""
        member_id = self._member_id
        if self._config.group_instance_id is not None and self.holders[-1:] != (member_id,):
            self.holders = (*(each for each in self.holders if each != member_id), member_id)

    def joined(self) -> None:
        """Note that the coordinator has this member: a refusal from now on is the first one again."""
        self._refusals = 0
        self.may_be_held()

    def not_held_by_newest(self) -> None:
        """Note that the newest holder does not have the instance id."""
        self.holders = self.holders[:-1]

    def count_refusal(self) -> bool:
        """Count a join that was refused for its instance id. Return true if the settings allow a retry."""
        self._refusals += 1
        return self._refusals <= self._config.unreleased_instance_id_retries


class HeartbeatView(NamedTuple):
    """The values of a member that go into its heartbeat."""

    epoch: int
    joining: bool
    reconciling: bool
    """The owned set is about to change: leave it out unless the heartbeat has to be full."""
    subscription: Subscription
    local_epoch: int
    """Number of the last target that was worked off."""
    owned: ids.Partitions


class Heartbeats:
    """The member's heartbeats: one in flight at a time, the next one's time, and the values sent last."""

    __slots__ = (
        "_config",
        "_expected",
        "_group_id",
        "_keepalive",
        "_member_id",
        "_sent",
        "_tokens",
        "at_ms",
        "backoff",
        "in_flight",
        "interval_ms",
        "may_be_member",
        "not_before_ms",
        "urgent",
    )

    def __init__(
        self,
        group_id: str,
        member_id: ids.MemberId,
        config: ConsumerConfig,
        backoff: Backoff,
        tokens: Iterator[int],
    ) -> None:
        self._group_id = group_id
        self._member_id = member_id
        self._config = config
        self._tokens = tokens
        self._sent = SentFields()
        self._expected = False
        self._keepalive: SendHeartbeat | None = None
        self.backoff = backoff
        self.in_flight: int | None = None
        self.interval_ms = DEFAULT_HEARTBEAT_INTERVAL_MS
        self.at_ms = 0
        """Time at which the next regular heartbeat is due."""
        self.not_before_ms = 0
        """End of the back-off."""
        self.urgent = False
        """There is something to send: do not wait for the interval."""
        self.may_be_member = False
        """True if a join was sent since the member was last known to be out of the group."""

    def begin_join(self, now_ms: int) -> None:
        """Make the next heartbeat a join, at once unless a back-off runs; fields sent before do not count."""
        self.drop_expected_answer()
        self._sent.forget()
        self.urgent = False
        self.at_ms = now_ms

    def drop_expected_answer(self) -> None:
        """Ignore the response to the heartbeat in flight: it belongs to the past."""
        self._expected = False

    def joined_owning_nothing(self, local_epoch: int) -> None:
        """Note that the join itself reported that nothing is owned, as the target requires."""
        self._sent.owned = (local_epoch, ids.NO_PARTITIONS)

    def due_ms(self, now_ms: int, *, acknowledges: bool) -> int:
        """Return the time at which the next heartbeat may be sent, if none is in flight; an acknowledgement
        is sent at once."""
        due_ms = self.at_ms
        if now_ms < due_ms and (self.urgent or acknowledges):
            due_ms = now_ms
        return due_ms if due_ms > self.not_before_ms else self.not_before_ms

    def build(self, view: HeartbeatView) -> SendHeartbeat:
        """Return the next heartbeat, now in flight. Its fields count as sent."""
        self.urgent = False
        self._expected = self.may_be_member = True
        if self._says_nothing(view):
            action = self.keepalive(view.epoch)
        else:
            action = SendHeartbeat(next(self._tokens), self._request(view))
        self.in_flight = action.token
        return action

    def has_news(self, subscription: Subscription, local_epoch: int, owned: ids.Partitions) -> bool:
        """Return true if the next heartbeat of a stable member would carry anything."""
        sent = self._sent
        return (
            sent.full
            or sent.names != subscription.names
            or sent.regex != subscription.regex
            or sent.assignor != self._config.group_remote_assignor
            or sent.owned != (local_epoch, owned)
        )

    def keepalive(self, epoch: int) -> SendHeartbeat:
        """Return the heartbeat with no more than its epoch: one value as long as the epoch stays."""
        if self._keepalive is None or self._keepalive.request.member_epoch != epoch:
            request = self._bare_request(epoch, self._member_id)
            self._keepalive = SendHeartbeat(next(self._tokens), request)
        return self._keepalive

    def leave_request(self, option: CloseOption) -> consumer.ConsumerGroupHeartbeatRequest | None:
        """Return the heartbeat that leaves; None if the coordinator does not need it."""
        epoch = self._leave_epoch(option)
        if not self.may_be_member or epoch is None:
            return None
        return self._bare_request(epoch, self._member_id)

    def instance_release(self, holder: ids.MemberId) -> consumer.ConsumerGroupHeartbeatRequest:
        """Return the leave that frees the instance id, if this member id holds it."""
        return self._bare_request(ids.STATIC_LEAVE_EPOCH, holder)

    def _bare_request(self, epoch: int, member_id: ids.MemberId) -> consumer.ConsumerGroupHeartbeatRequest:
        return consumer.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=self._config.group_instance_id,
            client_id=self._config.client_id,
        )

    def _leave_epoch(self, option: CloseOption) -> int | None:
        if self._config.group_instance_id is None:
            return None if option is CloseOption.REMAIN_IN_GROUP else ids.LEAVE_EPOCH
        return ids.LEAVE_EPOCH if option is CloseOption.LEAVE_GROUP else ids.STATIC_LEAVE_EPOCH

    def _says_nothing(self, view: HeartbeatView) -> bool:
        if view.epoch <= 0:
            return False
        local_epoch, owned = view.local_epoch, view.owned
        if view.reconciling and self._sent.owned is not None:
            local_epoch, owned = self._sent.owned
        return not self.has_news(view.subscription, local_epoch, owned)

    def _request(self, view: HeartbeatView) -> consumer.ConsumerGroupHeartbeatRequest:
        sent, config = self._sent, self._config
        full = sent.full = view.joining or sent.full
        names = view.subscription.names if full or sent.names != view.subscription.names else None
        regex: str | None = None
        if view.subscription.regex is not None:
            if full or sent.regex != view.subscription.regex:
                regex = view.subscription.regex
                sent.regex_may_be_known = True
        elif sent.regex_may_be_known and (full or not sent.empty_regex):
            regex = ""
            sent.empty_regex = True
        assignor = (
            config.group_remote_assignor if full or sent.assignor != config.group_remote_assignor else None
        )
        partitions: ids.Partitions | None = None
        if view.joining:
            partitions = ids.NO_PARTITIONS
            sent.owned = None
        elif full or (not view.reconciling and sent.owned != (view.local_epoch, view.owned)):
            partitions = view.owned
            sent.owned = None if view.reconciling else (view.local_epoch, view.owned)
        sent.full = False
        sent.names, sent.regex, sent.assignor = (
            view.subscription.names,
            view.subscription.regex,
            config.group_remote_assignor,
        )
        return consumer.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=view.epoch,
            instance_id=config.group_instance_id,
            rack_id=config.client_rack if view.joining else None,
            rebalance_timeout_ms=config.max_poll_interval_ms if full else -1,
            subscribed_topic_names=names,
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=partitions,
            client_id=config.client_id,
        )

    def answered(self, token: int) -> bool:
        """Return true if this response ends the heartbeat in flight, and is still wanted."""
        if token != self.in_flight:
            return False
        self.in_flight = None
        return self._expected

    def succeeded(self, response: consumer.ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        """Note that the coordinator took the values that were sent; the interval starts."""
        if self._sent.empty_regex:
            self._sent.regex_may_be_known = self._sent.empty_regex = False
        self.backoff.reset()
        self.not_before_ms = now_ms
        if response.heartbeat_interval_ms > 0:
            self.interval_ms = response.heartbeat_interval_ms
        self.at_ms = now_ms + self.interval_ms

    def failed(self, now_ms: int, *, wait: bool = True) -> None:
        """Make the next heartbeat full; it is sent after the back-off, or at once if `wait` is false."""
        self._sent.forget()
        self.not_before_ms = now_ms + self.backoff.next_ms() if wait else now_ms
        self.at_ms = self.not_before_ms
