"""Faults of the network are rules: each sees one message and says what becomes of it.

The rules of a network are asked in their order; the first that does not let a message pass decides. What
they say holds in the simulated network and in the proxy before real brokers; only there messages are bytes,
so a stall, a throttle and damage are for the proxy alone.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from fencepost.simulation.kernel.rng import Samples


class Direction(enum.StrEnum):
    """Which way a message goes."""

    REQUEST = "request"
    RESPONSE = "response"


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message under way between a member's host and a broker's."""

    member: str
    broker: str
    direction: Direction
    request: object
    """The request; for a response, the one that it answers."""
    response: object = None
    api_key: int | None = None
    """Kafka's number of the request's API, where messages are bytes."""


class Delay(NamedTuple):
    """The message takes longer by so many microseconds, and what follows on its connection with it."""

    us: int


class Throttle(NamedTuple):
    """The message takes the time that its bytes need at this rate, and what follows waits for it."""

    bytes_per_second: int


class Damage(enum.Enum):
    """How a message's bytes are spoiled."""

    FLIP = "flip"
    """A few bits are not what they were."""
    TRUNCATE = "truncate"
    """The end is missing, and the length says so."""
    LENGTH = "length"
    """The length is wrong: what follows is not where the receiver looks for it."""


class Corrupt(NamedTuple):
    """The message arrives, but spoiled."""

    damage: Damage


class Fate(enum.Enum):
    """What else may become of a message."""

    PASS = "pass"
    DROP = "drop"
    """It is lost, and nothing that follows on its connection arrives: the member's side times out."""
    CUT = "cut"
    """It is lost because the connection breaks; the member's side hears of that soon."""
    STALL = "stall"
    """It waits until the rule is taken out, and what follows in its direction with it."""


Verdict: TypeAlias = Delay | Throttle | Corrupt | Fate
PASS = Fate.PASS
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


class NetworkRule(Protocol):
    """Decides about messages."""

    def concerns(self, member: str, broker: str, direction: Direction, api_key: int | None = None) -> bool:
        """Whether it may judge such a message, whatever that says: if not, nobody need make one."""

    def judge(self, message: Message) -> Verdict:
        """What becomes of a message that it concerns; `Fate.PASS` leaves it to the next rule."""


class Matching:
    """A rule for messages of some members, brokers, directions or kinds; None stands for all of them.

    `kinds` are classes of requests, `api_keys` numbers of APIs. `condition` sees what the other filters let
    through. `chance`, with `rng`, picks some of those at random. After `limit` verdicts the rule lets
    everything pass, and `spent` is true.
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
        """What becomes of a message that the rule concerns."""
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
    """Hold the message until the rule is taken out."""
    return Fate.STALL


def delaying(samples: Samples) -> Callable[[Message], Verdict]:
    """Slow each message down by a draw, in microseconds."""

    def delay(_: Message) -> Verdict:
        return Delay(samples.draw())

    return delay
