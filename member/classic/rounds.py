"""The requests of a round: JoinGroup, SyncGroup, and the heartbeats between rounds. One of each at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment as GroupAssignment
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.member.base.backoff import Backoff
from fencepost.member.classic.actions import CountPartitions, SendGroupRequest
from fencepost.member.classic.assignor import Assignor, Subscriber
from fencepost.member.classic.config import ClassicConfig

_JOIN_GRACE_MS = 5_000
"""Time that JoinGroup may take on top of the rebalance timeout."""


class Rounds:
    """The round that is under way, and when the next request of it is due."""

    __slots__ = (
        "_backoff",
        "_config",
        "_group_id",
        "_tokens",
        "_topics",
        "beat_at_ms",
        "beat_in_flight",
        "counting",
        "in_flight",
        "nameless",
        "not_before_ms",
        "protocol",
        "roster",
        "sizes",
        "sizes_at_ms",
        "skips_assignment",
    )

    def __init__(self, group_id: str, config: ClassicConfig, backoff: Backoff, tokens: Iterator[int]) -> None:
        self._group_id = group_id
        self._config = config
        self._backoff = backoff
        self._tokens = tokens
        self.in_flight: int | None = None
        """The JoinGroup or SyncGroup whose response is awaited."""
        self.nameless: int | None = None
        """The first JoinGroup, if the member has left while it was in flight: the response has its member id.
        """
        self.counting: int | None = None
        """The leader's lookup of the sizes of topics."""
        self.roster: tuple[Subscriber, ...] = ()
        """All members, if this one is the leader."""
        self._topics: tuple[tuple[Subscriber, ...], tuple[str, ...]] = (), ()
        """A roster, and the topics that its members subscribe to."""
        self.sizes: dict[str, int] | None = None
        """Sizes of topics when this member, as the leader, assigned them; None for any other member."""
        self.sizes_at_ms = 0
        """Time at which a leader checks its topics for new partitions."""
        self.skips_assignment = False
        """True if the leader keeps the assignment: it is a static member that has come back (KIP-814)."""
        self.protocol = ""
        """Name of the assignor that the group has chosen."""
        self.not_before_ms = 0
        """End of the back-off."""
        self.beat_in_flight: int | None = None
        self.beat_at_ms = 0

    def abandon(self) -> None:
        """Forget everything that is in flight: it belongs to the past."""
        self.in_flight = self.counting = self.beat_in_flight = None
        self.roster = ()

    def failed(self, now_ms: int) -> None:
        """Let the next request wait."""
        self.not_before_ms = now_ms + self._backoff.next_ms()

    def succeeded(self) -> None:
        """Reset the back-off: the next failure waits as short as the first one."""
        self._backoff.reset()

    # -- requests ----------------------------------------------------------------------------------------

    def join(
        self,
        member_id: MemberId,
        generation: int,
        topics: tuple[str, ...],
        owned: Sequence[TopicPartition],
        assignors: Sequence[Assignor],
    ) -> SendGroupRequest:
        """Return the JoinGroup, now in flight."""
        partitions: dict[str, tuple[int, ...]] = {}
        for topic, number in owned:
            partitions[topic] = (*partitions.get(topic, ()), number)
        protocols = tuple(
            classic.JoinGroupProtocol(
                name=assignor.name,
                metadata=consumer_protocol.write_subscription(
                    consumer_protocol.ConsumerProtocolSubscription(
                        topics=topics,
                        user_data=assignor.user_data(),
                        owned=partitions,
                        generation=generation or classic.NO_GENERATION,
                        rack_id=self._config.client_rack,
                    )
                ),
            )
            for assignor in assignors
        )
        request = classic.JoinGroupRequest(
            group_id=self._group_id,
            member_id=member_id,
            instance_id=self._config.group_instance_id,
            protocol_type=classic.CONSUMER_PROTOCOL_TYPE,
            protocols=protocols,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            client_id=self._config.client_id,
        )
        timeout_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + _JOIN_GRACE_MS)
        return self._sent(SendGroupRequest(next(self._tokens), request, timeout_ms))

    def sync(
        self, member_id: MemberId, generation: int, assignments: dict[MemberId, bytes]
    ) -> SendGroupRequest:
        """Return the SyncGroup, now in flight."""
        request = classic.SyncGroupRequest(
            group_id=self._group_id,
            generation=generation,
            member_id=member_id,
            instance_id=self._config.group_instance_id,
            protocol_type=classic.CONSUMER_PROTOCOL_TYPE,
            protocol_name=self.protocol,
            assignments=assignments,
        )
        return self._sent(SendGroupRequest(next(self._tokens), request, self._config.request_timeout_ms))

    def _sent(self, action: SendGroupRequest) -> SendGroupRequest:
        self.in_flight = action.token
        return action

    def beat(self, member_id: MemberId, generation: int, now_ms: int) -> SendGroupRequest | None:
        """Return the heartbeat, if it is due."""
        if self.beat_in_flight is not None or now_ms < self.beat_at_ms:
            return None
        request = classic.HeartbeatRequest(
            group_id=self._group_id,
            generation=generation,
            member_id=member_id,
            instance_id=self._config.group_instance_id,
        )
        self.beat_in_flight = next(self._tokens)
        self.beat_at_ms = now_ms + self._config.heartbeat_interval_ms
        return SendGroupRequest(self.beat_in_flight, request, self._config.request_timeout_ms)

    # -- leading -----------------------------------------------------------------------------------------

    def joined(self, response: classic.JoinGroupResponse) -> None:
        """Take in that the generation has begun; the response to a leader lists the members."""
        self.succeeded()
        self.protocol = response.protocol_name or ""
        self.skips_assignment = response.skip_assignment
        leads = response.leader == response.member_id
        self.roster = tuple(
            Subscriber(each.member_id, each.instance_id, _subscription(each.metadata))
            for each in (response.members if leads else ())
        )

    def topics(self) -> tuple[str, ...]:
        """Return all topics that members of the roster subscribe to."""
        roster, topics = self._topics
        if roster is not self.roster:
            subscribed = [each.subscription.topics for each in self.roster if each.subscription]
            topics = tuple(sorted({topic for names in set(subscribed) for topic in names}))
            self._topics = self.roster, topics
        return topics

    def count(self, topics: tuple[str, ...]) -> CountPartitions:
        """Return the lookup of the sizes of these topics, now in flight."""
        self.counting = next(self._tokens)
        return CountPartitions(self.counting, topics)

    def assigned(self, assignor: Assignor, counts: dict[str, int]) -> dict[MemberId, bytes]:
        """Return the assignment that the leader's assignor computes: bytes for every member, also for one
        that gets nothing."""
        given = assignor.assign(counts, self.roster)
        nothing = GroupAssignment(partitions={})
        return {
            each.member_id: consumer_protocol.write_assignment(given.get(each.member_id, nothing))
            for each in self.roster
        }


def _subscription(metadata: bytes) -> consumer_protocol.ConsumerProtocolSubscription | None:
    try:
        return consumer_protocol.read_subscription(metadata)
    except consumer_protocol.MalformedConsumerProtocol:
        return None
