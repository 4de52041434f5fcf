"""What the applications of both clients have in common: how slow they are, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kafka.member import CallbackRaised
from fencepost.simulation.kernel.rng import Samples, Streams
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.scenarios.values import Span


class Offset(Protocol):
    """A record of any client."""

    @property
    def offset(self) -> int:
        """Its place in its partition."""


R = TypeVar("R", bound=Offset)
Run = tuple[TopicPartition, Sequence[R]]


class Behaviour:
    """How long things take in one process, as its seed draws."""

    def __init__(self, terms: m.CommonTerms) -> None:
        streams = Streams(terms.seed)
        name = f"{terms.name}/{terms.process}"
        self._callbacks: Samples = streams.samples(f"callbacks/{name}", Span(*terms.callback).quantiles)
        self._processing: Samples = streams.samples(f"processing/{name}", Span(*terms.processing).quantiles)
        self._flaw = terms.flaw
        self.stall_us = 0
        """How much longer the next callback takes."""
        self.raises = False
        """True if the next callback raises."""

    def callback_us(self) -> int:
        """How long the callback takes that begins now."""
        stall, self.stall_us = self.stall_us, 0
        return self._callbacks.draw() + stall

    def raise_if_told(self) -> None:
        """End a callback.

        :raises CallbackRaised: if that is what it was told to do.
        """
        if self.raises:
            self.raises = False
            raise CallbackRaised("the callback raised")

    def processing_us(self, records: int) -> int:
        """How long so many records take."""
        return records * self._processing.draw()

    def flawed(self, handed: list[Run[R]]) -> list[Run[R]]:
        """What is processed of what was handed over: all of it, unless the application has a flaw."""
        return FLAWS[self._flaw](handed)


def runs(records: Sequence[R]) -> Iterator[Sequence[R]]:
    """Records of a partition, cut where offsets are missing."""
    begin = 0
    for index in range(1, len(records)):
        if records[index].offset != records[index - 1].offset + 1:
            yield records[begin:index]
            begin = index
    if records:
        yield records[begin:]


def one_expression(topics: Sequence[str], pattern: str) -> str:
    """An expression for the pattern and for topics by name: a consumer takes one or the other.

    It is POSIX's as well, if the pattern is: librdkafka takes no others.
    """
    return "|".join((f"({pattern})", *(re.escape(topic) for topic in topics)))


def _skip(handed: list[Run[R]]) -> list[Run[R]]:
    return [(partition, run[1:]) for partition, run in handed if len(run) > 1]


def _twice(handed: list[Run[R]]) -> list[Run[R]]:
    return [*handed, *handed]


FLAWS: dict[str, Callable[[list[Run[R]]], list[Run[R]]]] = {
    "": lambda handed: handed,
    "skip": _skip,
    "twice": _twice,
}
"""Wrongs that an application can do, to see whether the checkers are awake."""
