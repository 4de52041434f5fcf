"""Addresses of objects that differ between runs: a program that depends on them shows it in a repeat."""

from __future__ import annotations

import random
from typing import Any, Final

_OBJECTS: Final = 20_000
_kept: list[Any] = []
"""Memory that shifts the addresses of later objects."""
_seeds: list[int] = [0]


def shake(seed: int) -> None:
    """Take memory here and there, so that later objects have other addresses than with another seed."""
    draws = random.Random(seed)
    taken = [bytearray(draws.randrange(8, 512)) for _ in range(_OBJECTS)]
    draws.shuffle(taken)
    del taken[draws.randrange(len(taken)) :]
    _kept[:] = [taken, [object() for _ in range(draws.randrange(_OBJECTS))]]
    _seeds[:] = [seed]


def shaken_by() -> int:
    """Return the seed with which this process was shaken last; 0 if it never was."""
    return _seeds[-1]
