"""HTTP servers of a world, whose responses a test gives: they stand for services that are not tested.

Their faults are those of HTTP between services: a request or a response is lost, a response is late, or a
proxy sends a request again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.settings import whole
from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.network import VirtualNetwork
from fencepost.simulation.world.processes import outside
from fencepost.simulation.world.programs import check_name

LOSE_REQUEST: Final = "lose-request"
LOSE_RESPONSE: Final = "lose-response"
DELAY: Final = "delay"
REPEAT: Final = "repeat"


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to an HTTP stub."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """The headers, with names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Return the body, decoded from JSON.

        :raises ValueError: if it is no JSON.
        """
        return json.loads(self.body)


Handler = Callable[[HttpRequest], Any]


class HttpStub:
    """An HTTP server on a host of its own.

    `requests` has each request that the handler got, also if the response was lost.
    """

    def __init__(self, name: str, handler: Handler, fail: Callable[[BaseException], object]) -> None:
        self.name = name
        self.requests: list[HttpRequest] = []
        self._handler = handler
        self._fail = fail
        self._faults: list[tuple[str, int]] = []

    def disturb(self, what: str, lasts_us: int) -> None:
        """Let a fault hit the next request. A delay is in microseconds."""
        self._faults.append((what, lasts_us))

    def calm(self) -> None:
        """Forget the faults that have hit no request."""
        self._faults.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to the requests of one connection."""
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError, ValueError):
                while (request := await _read(reader)) is not None and await self._respond(request, writer):
                    pass
        finally:
            writer.close()

    async def _respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Respond to one request; false if the connection ends."""
        what, lasts_us = self._faults.pop(0) if self._faults else ("", 0)
        if what == LOSE_REQUEST:
            return False
        try:
            response = _encoded(await self._handled(request))
            if what == REPEAT:
                response = _encoded(await self._handled(request))
        except Exception as error:  # of the test's function
            self._fail(error)
            return False
        if what == LOSE_RESPONSE:
            return False
        if what == DELAY:
            await asyncio.sleep(lasts_us / 1e6)
        writer.write(response)
        await writer.drain()
        return request.headers.get("connection", "").lower() != "close"

    async def _handled(self, request: HttpRequest) -> Any:
        self.requests.append(request)
        result = self._handler(request)
        return await result if inspect.isawaitable(result) else result


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Return the next request of a connection; None at its end.

    :raises ValueError: if it is no HTTP.
    """
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode("latin-1").split()
    headers = {}
    while field := (await reader.readline()).decode("latin-1").strip():
        name, _, value = field.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    parts = urlsplit(target)
    return HttpRequest(
        method=method,
        path=parts.path,
        query=dict(parse_qsl(parts.query, keep_blank_values=True)),
        headers=headers,
        body=body,
    )


def _encoded(result: Any) -> bytes:
    """Return the bytes of a response.

    :raises FencepostError: if a handler returned something else.
    """
    status, content = result if isinstance(result, tuple) and len(result) == 2 else (200, result)
    kind = "application/json"
    if content is None:
        body, status = b"", 204 if status == 200 else status
    elif isinstance(content, bytes | str):
        body = content if isinstance(content, bytes) else content.encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "text/plain; charset=utf-8"
    elif isinstance(content, dict | list):
        body = json.dumps(content).encode()
    else:
        raise FencepostError(
            f"a handler of world.http() returned {result!r}; expected None, text, bytes, a dict, a list, or "
            'a tuple of a status and one of these, such as (503, "busy")'
        )
    number = whole("status", status, 100, 599)
    phrase = next((each.phrase for each in HTTPStatus if each == number), "")
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class ServesHttp:
    """The part of a world with HTTP stubs."""

    loop: WorldLoop
    network: VirtualNetwork
    stubs: dict[str, HttpStub]
    fail: Callable[[BaseException], object]

    def http(self, name: str, handler: Handler, *, port: int | None = None) -> HttpStub:
        """Start an HTTP server on a host of that name, on ports 80 and 443 or on the one that is given.

        `handler` gets an `HttpRequest`. It returns the body of the response (None, text, bytes, or a dict or
        list for JSON), or a tuple of a status and a body. It may be a coroutine function.

        :raises FencepostError: if the handler can't be called, or a host has that name already.
        """
        check_name(name, self.network.has_name)
        if not callable(handler):
            raise FencepostError(f"http({name!r}, {handler!r}): expected a function of a request")
        ports = (80, 443) if port is None else (whole("port", port, 1, 65_535),)
        host = self.network.add_host(name)
        stub = self.stubs[name] = HttpStub(name, handler, self.fail)
        for each in ports:
            server = asyncio.start_server(stub.serve, host.address, each)
            outside().run(self.loop.create_task, server)
        return stub
