"""Spoils messages as bad wires, bad memory and bad software do."""

from __future__ import annotations

import random

from fencepost.simulation.kernel.rules import Damage
from fencepost.simulation.lab.proxy.pipe import with_length

_MOST_FLIPS = 4


def spoiled(frame: bytes, damage: Damage, rng: random.Random) -> bytes:
    """The bytes that go over the wire in place of the frame and its length."""
    match damage:
        case Damage.FLIP:
            data = bytearray(frame)
            for _ in range(rng.randint(1, _MOST_FLIPS) if data else 0):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            # An even number of flips may have met in one bit.
            return with_length(bytes(data) if data != frame else frame[:-1] + bytes((frame[-1] ^ 1,)))
        case Damage.TRUNCATE:
            return with_length(frame[: rng.randrange(len(frame))])
        case Damage.LENGTH:
            size = len(frame)
            wrong = rng.choice((-1, 0, size - 1, size + 1, size * 2 + 8, 0x7FFFFFFF))
            return wrong.to_bytes(4, "big", signed=True) + frame
