"""Lookups that are retried until they succeed: the group's coordinator, and the names of topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import filterfalse

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.member.base import actions
from fencepost.member.base.backoff import Backoff

REDISCOVER = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Errors after which the coordinator is looked up again."""


class CoordinatorLookup:
    """The lookup of the coordinator.

    The first lookup after a coordinator that responded is sent at once, the next ones back off. So a member
    does not spin if a cluster keeps naming a broker that refuses (KAFKA-20253).
    """

    __slots__ = ("_answered", "_last", "_tokens", "backoff", "in_flight", "known", "retry_at_ms")

    def __init__(self, backoff: Backoff, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self._last = 0
        """The token of the last lookup: requests with a greater one were sent to the coordinator it found."""
        self._answered = True
        self.backoff = backoff
        self.known = False
        self.in_flight: int | None = None
        self.retry_at_ms = 0

    @property
    def responds(self) -> bool:
        """True if the coordinator is known, and has responded since it was found."""
        return self.known and self._answered

    def lost(self, now_ms: int) -> None:
        """Note that the coordinator moved, or the connection to it broke."""
        if self.known:
            self.known = False
            self.retry_at_ms = now_ms if self._answered else now_ms + self.backoff.next_ms()
            self._answered = False

    def answered(self) -> None:
        """Note that the coordinator that was found does its work."""
        self._answered = True
        self.backoff.reset()

    def note(self, code: ErrorCode, now_ms: int) -> None:
        """Learn about the coordinator from the response to a commit, a fetch or a leave."""
        if code in REDISCOVER:
            self.lost(now_ms)
        elif not code:
            self.answered()

    def note_unwanted(self, token: int, codes: Iterable[ErrorCode], now_ms: int) -> None:
        """Learn that the coordinator moved from the response to a request that nobody waits for any more."""
        if token > self._last and any(code in REDISCOVER for code in codes):
            self.lost(now_ms)

    def request(self, now_ms: int) -> actions.SendFindCoordinator | None:
        """Return the lookup, if one is due."""
        if self.known or self.in_flight is not None or now_ms < self.retry_at_ms:
            return None
        action = actions.SendFindCoordinator(next(self._tokens))
        self.in_flight = self._last = action.token
        return action

    def found(self, token: int) -> bool:
        """Take in that the lookup succeeded. Return true if it is the one in flight."""
        if token != self.in_flight:
            return False
        self.in_flight = None
        self.known = True
        return True

    def failed(self, token: int, now_ms: int) -> bool:
        """Take in that the lookup failed; the next one waits. Return true if it is the one in flight."""
        if token != self.in_flight:
            return False
        self.in_flight = None
        self.retry_at_ms = now_ms + self.backoff.next_ms()
        return True

    def retry_ms(self) -> int | None:
        """Return the time at which to look the coordinator up (again)."""
        return self.retry_at_ms if not self.known and self.in_flight is None else None


class ResolvedTopicNames:
    """Names by topic id, as far as they are known; the others are looked up again and again."""

    __slots__ = ("_asked", "_asking", "_tokens", "backoff", "in_flight", "known", "retry_at_ms")

    def __init__(self, backoff: Backoff, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self._asking: tuple[TopicId, ...] = ()
        self._asked: dict[TopicId, None] = {}
        self.backoff = backoff
        self.known: dict[TopicId, str] = {}
        self.in_flight: int | None = None
        self.retry_at_ms = 0

    def forget(self) -> None:
        """Empty the cache, as a member that joins does."""
        self.known = {}
        self._asked = {}
        self.in_flight = None
        self.retry_at_ms = 0
        self.backoff.reset()

    def unknown(self, topic_ids: Iterable[TopicId]) -> tuple[TopicId, ...]:
        """Return those without a name, in the given order."""
        return tuple(filterfalse(self.known.__contains__, topic_ids))

    def never_answered(self, topic_ids: Iterable[TopicId]) -> bool:
        """Return true if no lookup for any of these has ended yet; its name may be known soon."""
        return any(topic_id not in self._asked for topic_id in topic_ids)

    def request(self, topic_ids: tuple[TopicId, ...], now_ms: int) -> actions.ResolveTopicNames | None:
        """Return the lookup of these ids, if one is due. Ids that were never looked up do not wait."""
        if not topic_ids or self.in_flight is not None:
            return None
        if now_ms < self.retry_at_ms and not self.never_answered(topic_ids):
            return None
        action = actions.ResolveTopicNames(next(self._tokens), topic_ids)
        self.in_flight = action.token
        self._asking = topic_ids
        return action

    def answered(self, token: int, names: Mapping[TopicId, str], now_ms: int) -> bool:
        """Keep the names; no names at all stand for a lookup that failed. Return true if it is the one in
        flight."""
        if token != self.in_flight:
            return False
        self.in_flight = None
        for topic_id in self._asking:
            self._asked[topic_id] = None
            if topic_id in names:
                self.known[topic_id] = names[topic_id]
        if self.unknown(self._asking):
            self.retry_at_ms = now_ms + self.backoff.next_ms()
        else:
            self.backoff.reset()
        return True
