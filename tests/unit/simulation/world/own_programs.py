"""Programs as services have them: modules with globals, which a world runs in processes of their own."""

# ruff: noqa: ASYNC110, ASYNC230, ASYNC240, ASYNC251  # as services are written

from __future__ import annotations

import asyncio
import contextlib
import ctypes.util
import logging
import os
import platform
import random
import selectors
import signal
import socket
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer

from tests.unit.simulation.world.programs_of_users import consumer

log = logging.getLogger(__name__)
SEEN: set[bytes] = set()
"""A bug: numbers of orders that have an invoice, which a crash forgets."""
COUNTS: list[int] = []


async def tell(*values: object) -> None:
    """Write what a test is to see to the topic `told`."""
    async with AIOKafkaProducer(bootstrap_servers="kafka:9092") as producer:
        await producer.send_and_wait("told", " ".join(map(str, values)).encode())


async def invoices(remembers: bool = False) -> None:
    """Write an invoice for each order, once, if no crash comes between the invoice and the commit."""
    producer = AIOKafkaProducer(bootstrap_servers="kafka:9092", enable_idempotence=True)
    written = Path("written")
    if remembers and written.exists():
        SEEN.update(written.read_bytes().split())
    async with consumer("orders") as reading, producer:
        async for record in reading:
            if record.key not in SEEN:
                if remembers:
                    with written.open("ab") as file:
                        file.write(record.key + b"\n")
                SEEN.add(record.key)
                await producer.send_and_wait("invoices", b"invoice", key=record.key)
            await asyncio.sleep(0.5)
            await reading.commit()


async def counts_starts() -> None:
    COUNTS.append(1)
    await tell(len(COUNTS))
    await asyncio.Event().wait()


def plain() -> None:
    """A main function without arguments."""
    asyncio.run(tell("plain", __name__))


async def facts() -> None:
    await tell(
        socket.gethostname(),
        os.getpid(),
        Path.cwd().name,
        Path.home() == Path.cwd(),
        Path(tempfile.gettempdir()).parent == Path.cwd(),
        round(time.time()) - 1_767_225_600,
        random.random(),
        uuid.uuid4(),
    )


async def counts_in_a_file() -> None:
    path = Path("count")
    number = int(path.read_text()) if path.exists() else 0
    path.write_text(str(number + 1))
    await tell(number)
    await asyncio.Event().wait()


async def fails() -> None:
    await asyncio.sleep(1)
    raise LookupError("no such order")


def exits(status: int) -> None:
    time.sleep(1)
    sys.exit(status)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def spins() -> None:
    event = asyncio.Event()
    while not event.is_set():
        await asyncio.sleep(0)


def never_returns() -> None:
    while True:
        pass


async def never_returns_in_a_thread() -> None:
    await asyncio.to_thread(never_returns)


async def sleeps(seconds: float) -> None:
    time.sleep(seconds)
    await tell(time.monotonic())


async def sleeps_in_a_thread() -> None:
    begin = time.monotonic()
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 3) for _ in range(3)), asyncio.sleep(1))
    await tell(round(time.monotonic() - begin, 3))


async def cancels_all_tasks() -> None:
    """End as many services do: at SIGTERM, all tasks are cancelled."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(2)
        await tell("stopped")


def stops_by_a_flag() -> None:
    """End by a handler of `signal.signal`."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))

    async def work() -> None:
        while not stopped:
            await asyncio.sleep(0.25)
        await tell("stopped by", stopped[0])

    asyncio.run(work())


async def counts_early_timers() -> None:
    loop = asyncio.get_running_loop()
    early = 0

    def fires(fired: asyncio.Future[float]) -> None:
        fired.set_result(loop.time())

    for number in range(300):
        fired: asyncio.Future[float] = loop.create_future()
        when = loop.time() + 0.01 + number / 3e7
        loop.call_at(when, fires, fired)
        early += await fired < when
    await tell(early)


def sees_its_machine() -> None:
    """Use what services use, and their debuggers."""
    breakpoint()
    begin = time.monotonic()
    selectors.DefaultSelector().select(5)
    waited_s = time.monotonic() - begin
    with contextlib.suppress(ValueError):
        socket.socket().connect(("kafka", "port"))
        waited_s = 0
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(tell(sys.argv, repr(sys.stdin.read()), waited_s))


def asks_about_its_machine() -> None:
    """Do what libraries such as trio do when they are imported: other programs of the machine answer."""
    method: Any = socket.socket.accept
    with contextlib.closing(socket.create_server(("", 7000))) as server:
        server.settimeout(2)
        with contextlib.suppress(TimeoutError):
            method(server)
    asyncio.run(tell(ctypes.util.find_library("c"), platform.processor(), method.__doc__, time.monotonic()))


def sleeps_on() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    time.sleep(5)
    asyncio.run(tell(time.monotonic() >= 5))


def exits_at_once(status: int) -> None:
    os._exit(status)


def closes_its_output() -> None:
    sys.stdout.close()
    raise LookupError("no such order")


def pauses() -> None:
    signal.pause()


def ends_its_group() -> None:
    os.killpg(0, signal.SIGTERM)


class Thing:
    """Hashes by its address."""


async def sends_in_the_order_of_addresses() -> None:
    things = [Thing() for _ in range(200)]
    _, writer = await asyncio.open_connection("kafka", 9092)
    for thing in set(things):
        writer.write(b"x" * (1 + things.index(thing)))
        await asyncio.sleep(0.01)


async def web(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application without a framework."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})


DONE: list[str] = []


async def shop(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application with a lifespan. Its response is the port of the client's connection."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await tell("up")
            await send({"type": "lifespan.startup.complete"})
        await tell("down after", *DONE)
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(3)
    DONE.append(scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(scope["client"][1]).encode()})


async def buys(host: str) -> None:
    """Use one client for several requests: uvicorn keeps its connection for five seconds."""
    async with httpx.AsyncClient(base_url=f"http://{host}:8000") as client:
        await asyncio.sleep(1)
        ports = [(await client.get("/")).text for _ in range(3)]
        await asyncio.sleep(3)
        ports.append((await client.get("/")).text)
        await asyncio.sleep(7)
        ports.append((await client.get("/slow")).text)
        with contextlib.suppress(httpx.TransportError):
            ports.append((await client.get("/")).text)
    numbers = list(dict.fromkeys(ports))
    await tell(*(numbers.index(each) for each in ports), f"{time.monotonic():.0f}")


async def asks_the_web(host: str) -> None:
    async with httpx.AsyncClient() as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                await tell((await client.get(f"http://{host}:8080/")).text)
                return
            await asyncio.sleep(0.2)


async def idle() -> None:
    await asyncio.Event().wait()


async def echoes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "0.0.0.0", 7000) as server:
        await server.serve_forever()


async def asks(host: str) -> None:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            reader, writer = await asyncio.open_connection(host, 7000)
            break
        await asyncio.sleep(0.1)
    writer.write(b"hello\n")
    found = await reader.readline()
    writer.close()
    await tell(found.decode().strip())


def asks_and_blocks(host: str) -> None:
    """Ask with a socket that blocks, as libraries without asyncio do."""
    time.sleep(1)
    with socket.create_connection((host, 7000), timeout=5) as sock:
        sock.sendall(b"blocking\n")
        found = sock.recv(100)
    asyncio.run(tell(found.decode().strip(), found == b"blocking\n"))


class Application:
    """No function, and no application of a known kind."""


application: Any = Application()


def asks_by_urllib(host: str) -> None:
    time.sleep(1)
    with urllib.request.urlopen(f"http://{host}:8080/orders", timeout=5) as response:
        found = response.read().decode()
    asyncio.run(tell(found))


def waits_for_the_machine() -> None:
    """Wait for a pipe that no process writes to."""
    reading, _ = os.pipe()
    os.read(reading, 1)


def naps() -> None:
    """Look at the clock every 2 ms."""
    while time.monotonic() < 2:
        time.sleep(0.002)
