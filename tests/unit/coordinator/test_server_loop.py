"""The loop of programs that serve, and how it accepts: with uvloop and without, the same promises."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import uvloop

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.server import accepting, loop
from fencepost.coordinator.server.accepting import Acceptor
from fencepost.coordinator.server.brokers import Broker
from tests.waiting import SECONDS

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@pytest.fixture(params=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    if request.param == "asyncio":
        monkeypatch.setattr(loop, "find_spec", lambda _: None)
    loop._factory.cache_clear()
    with asyncio.Runner(loop_factory=loop.new_event_loop) as runner:
        assert isinstance(runner.get_loop(), uvloop.Loop) == (request.param == "uvloop")
        yield runner
    loop._factory.cache_clear()


@pytest.mark.parametrize("delay_s", [0.0004, 0.001, 0.0016])
def test_no_timer_comes_too_early(running: asyncio.Runner, delay_s: float) -> None:
    async def late_by() -> list[float]:
        turns = asyncio.get_running_loop()
        found = []
        for at in (False, True) * 15:
            done = turns.create_future()
            began = time.monotonic()
            if at:
                turns.call_at(turns.time() + delay_s, lambda done=done: done.set_result(time.monotonic()))  # type: ignore[misc]
            else:
                turns.call_later(delay_s, lambda done=done: done.set_result(time.monotonic()))  # type: ignore[misc]
            found.append(await done - began - delay_s)
        return found

    # asyncio runs what is due within its clock's resolution, which is a nanosecond.
    assert min(running.run(late_by())) > -1e-6


def test_what_never_comes_may_be_waited_for(running: asyncio.Runner) -> None:
    async def waited() -> None:
        for delay in (1e306, float("inf")):
            asyncio.get_running_loop().call_later(delay, print).cancel()

    running.run(waited())


class WithoutReaders(asyncio.SelectorEventLoop):
    """As the usual loop of Windows."""

    def add_reader(self, *_: object) -> None:
        raise RuntimeError("there are no readers")

    def remove_reader(self, *_: object) -> bool:
        raise RuntimeError("there are no readers")


def test_a_loop_without_readers_accepts_one_by_one() -> None:
    async def accepted() -> int:
        found: list[asyncio.BaseTransport] = []
        with ExitStack() as stack:
            acceptor = Acceptor(listening(), lambda: Made(found))
            await acceptor.open()
            for _ in range(3):
                come(stack, acceptor.port)
            for _ in range(1_000):
                if len(found) == 3:
                    break
                await asyncio.sleep(0)
            await acceptor.close()
            await asyncio.sleep(0)
        return len(found)

    with asyncio.Runner(loop_factory=WithoutReaders) as runner:
        assert runner.run(accepted()) == 3


def test_time_goes_on_within_a_turn(running: asyncio.Runner) -> None:
    async def measured() -> float:
        turns = asyncio.get_running_loop()
        began = turns.time()
        assert began == pytest.approx(time.monotonic(), abs=0.5)
        while turns.time() == began:
            pass
        return turns.time() - began

    assert running.run(measured()) > 0


class Made(asyncio.Protocol):
    def __init__(self, found: list[asyncio.BaseTransport]) -> None:
        self.found = found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.found.append(transport)


def listening(kind: type[socket.socket] = socket.socket) -> socket.socket:
    made = kind(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    made.listen(accepting.BACKLOG)
    return made


def come(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))


def test_all_who_wait_are_accepted_at_once(running: asyncio.Runner) -> None:
    async def accepted() -> int:
        found: list[asyncio.BaseTransport] = []
        with ExitStack() as stack:
            acceptor = Acceptor(listening(), lambda: Made(found))
            await acceptor.open()
            for _ in range(100):
                come(stack, acceptor.port)
            for _ in range(8):
                await asyncio.sleep(0)
            count = len(found)
            await acceptor.close()
        return count

    assert running.run(accepted()) == 100


def test_without_a_crowd_each_turn_accepts_one(running: asyncio.Runner) -> None:
    async def accepted() -> list[int]:
        found: list[asyncio.BaseTransport] = []
        counts = [0]
        with ExitStack() as stack:
            acceptor = Acceptor(listening(), lambda: Made(found), is_crowded=lambda: len(found) >= 5)
            await acceptor.open()
            for _ in range(40):
                come(stack, acceptor.port)
            async with asyncio.timeout(SECONDS):
                while len(found) < 40:
                    await asyncio.sleep(0)
                    counts.append(len(found))
            await acceptor.close()
        return counts

    counts = list(dict.fromkeys(running.run(accepted())))
    assert counts[:6] == [0, 1, 2, 3, 4, 5]
    assert counts[-1] - counts[-2] > 20, "a crowd comes in one turn"


@pytest.mark.parametrize("is_crowded", [False, True])
def test_who_was_accepted_is_connected_before_it_closes(running: asyncio.Runner, is_crowded: bool) -> None:
    async def accepted() -> None:
        made: list[Made] = []
        found: list[asyncio.BaseTransport] = []

        def make() -> Made:
            made.append(Made(found))
            return made[-1]

        with ExitStack() as stack:
            acceptor = Acceptor(listening(), make, is_crowded=lambda: is_crowded)
            await acceptor.open()
            port = acceptor.port
            client = come(stack, port)
            for _ in range(100):
                if acceptor._under_way or made:
                    break
                await asyncio.sleep(0)
            assert not found
            await acceptor.close()
            (transport,) = found
            assert transport.get_extra_info("peername") == client.getsockname()
            with pytest.raises(OSError, match="refused"):
                come(stack, port)

    running.run(accepted())


class Full(socket.socket):
    """Its process has no more file descriptors, twice."""

    left = 2
    refused: asyncio.Event

    def accept(self) -> tuple[socket.socket, object]:
        if self.left:
            self.left -= 1
            self.refused.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_broker_for_which_there_is_no_file_descriptor_says_so(
    running: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_server", full)
    monkeypatch.setattr(socket.socket, "dup", full)

    async def opened(broker: Broker) -> None:
        with pytest.raises(EnvironmentLacks, match="Too many open files"):
            await broker.start()
        await broker.close()

    running.run(opened(Broker()))
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: listening())
    if isinstance(running.get_loop(), uvloop.Loop):
        running.run(opened(Broker()))


@pytest.mark.parametrize("closes", [False, True])
def test_without_file_descriptors_clients_wait(
    running: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr(accepting, "_RETRY_S", 60.0 if closes else 0.01)

    async def accepted() -> int:
        found: list[asyncio.BaseTransport] = []
        made = asyncio.Event()

        class MadeAtLast(Made):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                made.set()

        with ExitStack() as stack:
            port = listening(Full)
            port.refused = asyncio.Event()  # type: ignore[attr-defined]
            acceptor = Acceptor(port, lambda: MadeAtLast(found))
            await acceptor.open()
            come(stack, acceptor.port)
            await (port.refused if closes else made).wait()  # type: ignore[attr-defined]
            await acceptor.close()
        return len(found)

    assert running.run(accepted()) == (0 if closes else 1)
