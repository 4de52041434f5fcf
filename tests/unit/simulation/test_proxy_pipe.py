"""One direction of a connection in virtual time: what leaves it when."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from fencepost.coordinator.codec.framing import FrameBuffer, RequestHeader
from fencepost.simulation.kernel.rng import Draws
from fencepost.simulation.kernel.rules import Damage, Matching, stalling
from fencepost.simulation.lab.proxy.exchange import ObservedTopicNames, ProxyExchange
from fencepost.simulation.lab.proxy.pipe import Parcel, Pipe, spoiled, with_length

EXCHANGE = ProxyExchange(
    RequestHeader(3, 0, 1, "m1", 12), "m1", bytes(12), "/127.0.0.1", ObservedTopicNames()
)
RULE = Matching(stalling)


class Wire:
    """A pipe, and a transport that notes when which bytes were written to it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.written: list[tuple[float, bytes]] = []
        self.told: list[tuple[float, Any]] = []
        self.in_force = True
        self.pipe = Pipe(
            self.loop,
            is_in_force=lambda rule: rule is RULE and self.in_force,
            on_sent=lambda parcel: self.note(parcel.frame),
            on_lifted=lambda: self.note("lifted"),
            on_drained=lambda: self.note("drained"),
        )
        self.pipe.transport = cast("asyncio.Transport", self)

    def write(self, data: bytes) -> None:
        self.written.append((round(self.loop.time() - self.began, 3), bytes(data)))

    def note(self, what: Any) -> None:
        self.told.append((round(self.loop.time() - self.began, 3), what))

    def put(self, frame: bytes, **how: Any) -> None:
        if "delay_s" in how:
            how["ready_s"] = self.loop.time() + how.pop("delay_s")
        self.pipe.put(Parcel(frame, EXCHANGE, **how))


@pytest.fixture
async def wire() -> Wire:
    return Wire()


async def test_what_nothing_holds_goes_at_once(wire):
    wire.put(b"one")
    wire.put(b"x" * 100_000)
    assert b"".join(data for _, data in wire.written) == with_length(b"one") + with_length(b"x" * 100_000)
    assert wire.told == [(0, b"one"), (0, b"x" * 100_000)]


async def test_what_follows_a_delayed_message_waits_for_it(wire):
    wire.put(b"late", delay_s=2)
    wire.put(b"next")
    wire.put(b"later", delay_s=1)
    await asyncio.sleep(1.9)
    assert wire.written == []
    assert wire.pipe.size == 13
    await asyncio.sleep(3)
    assert wire.told == [(2, b"late"), (2, b"next"), (2, b"later")]
    assert wire.pipe.size == 0


async def test_a_throttled_message_trickles(wire):
    wire.put(bytes(996), bytes_per_second=1_000)
    wire.put(b"next")
    await asyncio.sleep(5)
    assert wire.told == [(1, bytes(996)), (1, b"next")]
    assert [at for at, _ in wire.written[:3]] == [0, 0.05, 0.1]
    assert b"".join(data for _, data in wire.written) == with_length(bytes(996)) + with_length(b"next")


async def test_a_rate_below_a_byte_a_slice_is_kept(wire):
    wire.put(b"abcdef", bytes_per_second=1)
    await asyncio.sleep(60)
    assert wire.told == [(10, b"abcdef")]


async def test_a_stall_lasts_until_its_rule_is_gone(wire):
    wire.put(b"held", held_by=RULE)
    assert wire.pipe.stalled
    await asyncio.sleep(100)
    assert wire.written == []
    wire.in_force = False
    await asyncio.sleep(1)
    (at, frame), (_, lifted) = wire.told
    assert (frame, lifted) == (b"held", "lifted")
    assert 100 <= at <= 100.05
    assert not wire.pipe.stalled


async def test_nothing_goes_before_there_is_a_transport(wire):
    transport, wire.pipe.transport = wire.pipe.transport, None
    wire.put(b"early")
    wire.pipe.finish()
    await asyncio.sleep(1)
    assert wire.told == []
    wire.pipe.transport = transport
    wire.pipe.pump()
    assert wire.told == [(1, b"early"), (1, "drained")]


async def test_a_finished_pipe_is_drained_once_when_the_last_message_went(wire):
    wire.put(b"late", delay_s=1)
    wire.pipe.finish()
    wire.pipe.finish()
    await asyncio.sleep(2)
    assert wire.told == [(1, b"late"), (1, "drained")]
    assert not wire.pipe.open


async def test_a_cleared_pipe_names_what_is_lost_and_sends_nothing(wire):
    wire.put(b"late", delay_s=1)
    wire.put(b"slow", bytes_per_second=1)
    assert wire.pipe.clear() == [EXCHANGE, EXCHANGE]
    await asyncio.sleep(20)
    assert wire.written == []
    assert wire.pipe.clear() == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("frame", [b"x", bytes(range(200)), bytes(5_000)], ids=len)
def test_damage_is_what_it_says(seed, frame):
    rng = Draws(seed).random("damage")
    flipped = spoiled(frame, Damage.FLIP, rng)
    assert len(flipped) == len(frame) + 4
    assert flipped[:4] == with_length(frame)[:4]
    changed = sum((a ^ b).bit_count() for a, b in zip(flipped[4:], frame, strict=True))
    assert 1 <= changed <= 4
    short = FrameBuffer()
    short.feed(spoiled(frame, Damage.TRUNCATE, rng))
    left = short.next_frame()
    assert left is not None
    assert len(left) < len(frame)
    assert frame.startswith(left)
    assert short.buffered == 0
    wrong = spoiled(frame, Damage.LENGTH, rng)
    assert wrong[4:] == frame
    assert wrong[:4] != with_length(frame)[:4]
    again = Draws(seed).random("damage")
    assert [spoiled(frame, damage, again) for damage in Damage] == [flipped, with_length(left), wrong]
