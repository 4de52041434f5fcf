"""The common part of both clients' applications: how slow they are, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kafka.member import CallbackRaised
from fencepost.simulation.kernel.rng import Draws, Samples
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
    """The behaviour of one process, as its seed draws it: the time that things take, and what fails."""

    def __init__(self, terms: m.CommonTerms) -> None:
        draws = Draws(terms.seed)
        name = f"{terms.name}/{terms.process}"
        self._callbacks: Samples = draws.samples(f"callbacks/{name}", Span(*terms.callback).quantiles)
        self._processing: Samples = draws.samples(f"processing/{name}", Span(*terms.processing).quantiles)
        self._flaw = terms.flaw
        self.stall_us = 0
        """Additional time of the next callback, in microseconds."""
        self.raises = False
        """True if the next callback raises."""

    def callback_us(self) -> int:
        """Return the time of the callback that begins now, in microseconds."""
        stall, self.stall_us = self.stall_us, 0
        return self._callbacks.draw() + stall

    def raise_if_told(self) -> None:
        """Raise at the end of a callback, if an order says so.

        :raises CallbackRaised: if an order says so.
        """
        if self.raises:
            self.raises = False
            raise CallbackRaised("the callback raised")

    def processing_us(self, records: int) -> int:
        """Return the time that this number of records takes, in microseconds."""
        return records * self._processing.draw()

    def flawed(self, handed: list[Run[R]]) -> list[Run[R]]:
        """Return the delivered records that are processed: all of them, unless the application has a flaw."""
        return FLAWS[self._flaw](handed)


def runs(records: Sequence[R]) -> Iterator[Sequence[R]]:
    """Yield the records of a partition, cut where offsets are missing."""
    begin = 0
    for index in range(1, len(records)):
        if records[index].offset != records[index - 1].offset + 1:
            yield records[begin:index]
            begin = index
    if records:
        yield records[begin:]


def one_expression(topics: Sequence[str], pattern: str) -> str:
    """Return an expression for the pattern and for topics by name: a consumer takes one or the other.

    It is a POSIX expression as well, if the pattern is one: librdkafka takes no others.
    """
    return "|".join((f"({pattern})", *(re.escape(topic) for topic in topics)))


FLAWS: dict[str, Callable[[list[Run[R]]], list[Run[R]]]] = {
    "": lambda handed: handed,
    "skip": lambda handed: [(partition, run[1:]) for partition, run in handed if len(run) > 1],
    "twice": lambda handed: [*handed, *handed],
}
"""Flaws that an application can have, to test whether the judges notice."""
