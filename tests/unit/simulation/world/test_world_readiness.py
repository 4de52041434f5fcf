"""Looks with a timeout of 0 whether sockets are ready: as on the machine, and as httpx does."""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from aiohttp import web

import fencepost
from fencepost import SimulatedWorld, run_simulated
from fencepost.simulation.kernel.loop import OutsideWorld
from tests.unit.simulation.world.test_world_network import virtually

Look = Callable[[socket.socket], Any]


def _by_poll(sock: socket.socket) -> int:
    poll = select.poll()
    poll.register(sock, 0)
    poll.modify(sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))


def _by_epoll(sock: socket.socket) -> int:
    with select.epoll() as epoll:
        epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
        return sum(events for _, events in epoll.poll(0))


def _by_select(sock: socket.socket) -> list[bool]:
    return [bool(ready) for ready in select.select([sock], [sock.fileno()], [sock], 0)]


def _by_selector(sock: socket.socket) -> int:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        return sum(events for _, events in selector.select(0))


async def _life(look: Look) -> dict[str, Any]:
    """What a look sees in the life of sockets."""
    loop = asyncio.get_running_loop()
    seen: dict[str, Any] = {}

    def make() -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        return sock

    async def note(when: str, sock: socket.socket) -> None:
        await asyncio.sleep(0.05)  # until all that was sent has arrived
        seen[when] = look(sock)

    with make() as free:
        free.bind(("127.0.0.1", 0))
        closed_port = free.getsockname()
    with make() as listening, make() as client, make() as refused:
        await note("new", client)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        await note("listening", listening)
        await loop.sock_connect(client, listening.getsockname())
        await note("a connection to accept", listening)
        other, _ = await loop.sock_accept(listening)
        await note("connected", client)
        await loop.sock_sendall(other, b"x")
        await note("received", client)
        await loop.sock_recv(client, 1)
        await note("read", client)
        other.shutdown(socket.SHUT_WR)
        await note("half closed", client)
        client.shutdown(socket.SHUT_WR)
        await note("closed", client)
        other.close()
        with contextlib.suppress(BlockingIOError):
            refused.connect(closed_port)
        await note("refused", refused)
    for unread in (True, False):
        with make() as listening, make() as client:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            await loop.sock_connect(client, listening.getsockname())
            other, _ = await loop.sock_accept(listening)
            if unread:
                await loop.sock_sendall(client, b"x")
                await asyncio.sleep(0.05)
            other.close()
            await note("reset" if unread else "closed by the other side", client)
    return seen


@pytest.mark.parametrize("look", [_by_poll, _by_epoll, _by_select, _by_selector])
def test_look_sees_what_it_sees_on_the_machine(look: Look) -> None:
    assert virtually(lambda: _life(look)) == asyncio.run(_life(look))


def _polls(sock: socket.socket | int, timeout: float | None) -> None:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll(timeout)


def _epolls(sock: socket.socket | int, timeout: float | None) -> None:
    epoll = select.epoll()
    epoll.register(sock, select.EPOLLIN)
    epoll.poll(timeout)


def _selects(sock: socket.socket | int, timeout: float | None) -> None:
    select.select([sock], [], [], timeout)


@pytest.mark.parametrize("wait", [_polls, _epolls, _selects])
def test_wait_and_descriptor_of_the_machine_are_refused(wait: Callable[..., None]) -> None:
    async def main() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            wait(sock, 0)
            for timeout in (0.1, None):
                with pytest.raises(OutsideWorld, match=r"would block the only thread .* a timeout of 0"):
                    wait(sock, timeout)
        with pytest.raises(OutsideWorld, match="0 is no virtual socket"):
            wait(0, 0)

    virtually(main)


# -- httpx ----------------------------------------------------------------------------------------------


async def _serves() -> None:
    """Answer with the number of the connection, and close each one after half a second without a request."""
    peers: dict[Any, int] = {}

    async def number(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query.get("after", "0")))
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        return web.json_response(peers.setdefault(peer, len(peers) + 1))

    app = web.Application()
    app.router.add_get("/", number)
    runner = web.AppRunner(app, keepalive_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 80).start()
    await asyncio.Event().wait()


def test_httpx_keeps_connections_until_the_server_closes_them() -> None:
    seen: list[Any] = []

    async def client() -> None:
        await asyncio.sleep(1)
        async with httpx.AsyncClient(base_url="http://web/", timeout=1) as session:

            async def ask(after: float = 0) -> None:
                seen.append((await session.get("/", params={"after": after})).json())

            await ask()
            await ask()
            await asyncio.sleep(2)
            await ask()
            await asyncio.gather(ask(0.1), ask(0.1))
            with pytest.raises(httpx.ReadTimeout):
                await ask(5)
            await ask()

    async def test(world: SimulatedWorld) -> None:
        world.process("web", _serves)
        program = world.process("client", client)
        await program.ended()
        assert program.error is None, program.error

    result = run_simulated(test, brokers=1, faults=())
    assert result.violations == []
    assert seen[:3] == [1, 1, 2]
    assert sorted(seen[3:5]) == [2, 3]
    assert seen[5] == 4  # after a second without an answer, the server had closed the others


@pytest.mark.processes
@fencepost.simulated(seeds=2, topics={"orders": 1}, brokers=1, duration=15, processes=1)
async def test_httpx_is_answered_under_faults(world: SimulatedWorld) -> None:
    answered: list[int] = []

    async def client() -> None:
        async with httpx.AsyncClient(timeout=2) as session:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answered.append((await session.get("http://web/")).status_code)
                await asyncio.sleep(0.3)

    world.process("web", _serves)
    world.process("client", client)
    await world.faults_over.wait()
    before = len(answered)
    world.eventually(lambda: len(answered) > before, "answered")
    await world.settled()
    assert set(answered) == {200}
