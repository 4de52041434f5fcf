"""What all connections may hold together: who is read from, and who is closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.coordinator.server import buffers as module
from fencepost.coordinator.server.buffers import Buffers
from tests.waiting import until


class Connection:
    """Notes what it is asked to do."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.unread_bytes = 0
        self.is_read = True
        self.closed = ""

    def hold(self, size: int) -> None:
        self.is_read = self.buffers.hold(self, size)

    def read_on(self) -> None:
        self.is_read = True

    def cut_off(self, reason: str) -> None:
        self.closed = reason


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Buffers]:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.001)
    buffers = Buffers(1_000)
    yield buffers
    buffers.close()


async def test_connections_beyond_their_part_wait_and_one_of_them_may_finish(buffers: Buffers) -> None:
    several = [Connection(buffers) for _ in range(3)]
    for each in several:
        each.hold(300)
    assert all(each.is_read for each in several)
    several[0].hold(500)
    assert several[0].is_read, "one may finish"
    several[1].hold(400)
    several[2].hold(350)
    assert [each.is_read for each in several] == [True, False, False]
    light = Connection(buffers)
    light.hold(20)
    assert light.is_read, "it holds little"
    several[0].hold(900)
    assert several[0].is_read
    several[0].hold(0)
    assert [each.is_read for each in several] == [True, True, True]
    assert buffers.requests == 770
    assert not any(each.closed for each in several)


async def test_the_one_that_may_finish_and_does_not_is_closed(buffers: Buffers) -> None:
    stalled = [Connection(buffers) for _ in range(5)]
    for each in stalled:
        each.hold(400)
    good = Connection(buffers)
    good.hold(300)
    assert not good.is_read
    await until(lambda: good.is_read)
    assert sum(bool(each.closed) for each in stalled) >= 3
    assert "queued.max.request.bytes" in next(each.closed for each in stalled if each.closed)
    assert buffers.requests <= 1_000 + 300
    for each in (*stalled, good):
        buffers.drop(each)
    assert buffers.requests == 0


async def test_a_large_request_for_which_nobody_waits_may_take_its_time(buffers: Buffers) -> None:
    slow = Connection(buffers)
    slow.hold(2_000)
    ticks = 0

    def ticked() -> bool:
        nonlocal ticks
        ticks += 1
        return ticks > 20

    await until(ticked)
    assert slow.is_read
    assert not slow.closed


async def test_clients_that_do_not_read_are_closed_beyond_the_limit(buffers: Buffers) -> None:
    deaf, slow, light = (Connection(buffers) for _ in range(3))
    for each, size in ((deaf, 800), (slow, 700), (light, 10)):
        each.unread_bytes = size
        buffers.unread(each)
    slow.unread_bytes = 600  # it reads
    await until(lambda: bool(deaf.closed))
    assert not slow.closed
    assert not light.closed
