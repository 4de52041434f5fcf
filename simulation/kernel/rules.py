"""Faults of the network as rules: each rule sees one message and decides its fate.

A message goes through the rules of a network in order; the first rule that does not let it pass decides.
Rules work in the simulated network and in the proxy in front of real brokers. Only in the proxy messages are
bytes, so only the proxy has stalls, throttles and damage.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from fencepost.simulation.kernel.rng import Samples


class Direction(enum.StrEnum):
    """The direction of a message."""

    REQUEST = "request"
    RESPONSE = "response"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message under way between a member's host and a broker's host."""

    member: str
    broker: str
    direction: Direction
    request: object
    """The request; for a response, the request that it belongs to."""
    response: object = None
    api_key: int | None = None
    """Kafka's number of the request's API, if messages are bytes."""


class Delay(NamedTuple):
    """Delays the message by this many microseconds, and everything after it on its connection."""

    us: int


class Throttle(NamedTuple):
    """Delays the message by the time that its bytes need at this rate; everything after it waits."""

    bytes_per_second: int


class Damage(enum.Enum):
    """Ways to damage a message's bytes."""

    FLIP = "flip"
    """A few bits are flipped."""
    TRUNCATE = "truncate"
    """The end is missing, and the length says so."""
    LENGTH = "length"
    """The length is wrong: the receiver looks for the next message in the wrong place."""


class Corrupt(NamedTuple):
    """Delivers the message damaged."""

    damage: Damage


class Fate(enum.Enum):
    """Further fates of a message."""

    PASS = "pass"
    DROP = "drop"
    """It is lost, and nothing after it on its connection arrives: the member's side times out."""
    CUT = "cut"
    """It is lost because the connection breaks; the member's side notices soon."""
    STALL = "stall"
    """It waits until the rule is removed, and so does everything after it in its direction."""


Verdict: TypeAlias = Delay | Throttle | Corrupt | Fate
PASS = Fate.PASS
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


class NetworkRule(Protocol):
    """A rule that decides about messages."""

    def concerns(self, member: str, broker: str, direction: Direction, api_key: int | None = None) -> bool:
        """Return true if the rule may judge such a message, whatever its content. If no rule does, no message
        is made."""

    def judge(self, message: Message) -> Verdict:
        """Decide about a message that it concerns; `Fate.PASS` leaves it to the next rule."""


class Matching:
    """A rule for messages of some members, brokers, directions or kinds; None stands for all of them.

    `kinds` are classes of requests, `api_keys` numbers of APIs. `condition` sees the messages that the other
    filters let through. `chance`, with `rng`, picks some of these at random. After `limit` verdicts the rule
    lets everything pass, and `spent` is true.
    """

    def __init__(
        self,
        verdict: Callable[[Message], Verdict],
        *,
        members: Collection[str] | None = None,
        brokers: Collection[str] | None = None,
        direction: Direction | None = None,
        kinds: tuple[type, ...] | None = None,
        api_keys: Collection[int] | None = None,
        condition: Callable[[Message], bool] | None = None,
        chance: float = 1.0,
        rng: random.Random | None = None,
        limit: int | None = None,
    ) -> None:
        self._verdict = verdict
        self._members = members
        self._brokers = brokers
        self._direction = direction
        self._kinds = kinds
        self._api_keys = api_keys
        self._condition = condition
        self._chance = chance
        self._rng = rng
        self._left = limit

    @property
    def spent(self) -> bool:
        """True if the limit is used up."""
        return self._left == 0

    def judge(self, message: Message) -> Verdict:
        """Decide about a message that the rule concerns."""
        if self._kinds is not None and not isinstance(message.request, self._kinds):
            return PASS
        if self._condition is not None and not self._condition(message):
            return PASS
        if self._rng is not None and self._rng.random() >= self._chance:
            return PASS
        verdict = self._verdict(message)
        if self._left is not None and verdict is not PASS:
            self._left -= 1
        return verdict

    def concerns(self, member: str, broker: str, direction: Direction, api_key: int | None = None) -> bool:
        """Return true if the rule may judge such a message, whatever it says."""
        return (
            self._left != 0
            and (self._direction is None or direction is self._direction)
            and (self._members is None or member in self._members)
            and (self._brokers is None or broker in self._brokers)
            and (self._api_keys is None or api_key in self._api_keys)
        )


def dropping(_: Message) -> Verdict:
    """Lose the message silently."""
    return Fate.DROP


def cutting(_: Message) -> Verdict:
    """Lose the message with its connection."""
    return Fate.CUT


def stalling(_: Message) -> Verdict:
    """Hold the message until the rule is removed."""
    return Fate.STALL


def delaying(samples: Samples) -> Callable[[Message], Verdict]:
    """Slow each message down by a draw, in microseconds."""

    def delay(_: Message) -> Verdict:
        return Delay(samples.draw())

    return delay
