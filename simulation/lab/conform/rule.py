"""What a rule is: a name, a sentence, and a predicate that says which requests put it to the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fencepost.simulation.lab.conform.exchange import ConformExchange

Predicate: TypeAlias = Callable[[ConformExchange], bool]


class ConformRule(NamedTuple):
    """A rule of the protocol. A request whose answers are equal and that exercises it passes it."""

    name: str
    about: str
    when: Predicate
