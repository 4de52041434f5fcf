"""The control API as an ASGI application: it reads requests, runs operations, and writes documents."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.control.documents import WrongDocument, read_arguments, shown
from fencepost.simulation.control.openapi import ControlRefusal, Health, NewScope, OpenScope, document
from fencepost.simulation.control.operations import MAX_DIGITS, PLACES, Operation, operations, places_of
from fencepost.simulation.embedded.controls import BlockingControls
from fencepost.simulation.embedded.endpoint import EmbeddedEndpoint
from fencepost.simulation.embedded.fault_controls import Fault, FaultControls
from fencepost.simulation.embedded.groups import AsyncGroup
from fencepost.simulation.embedded.scopes import KafkaScope
from fencepost.simulation.embedded.settings import whole
from fencepost.simulation.embedded.thread import LoopThread
from fencepost.simulation.report.page import POLICY
from fencepost.simulation.report.render import live_document
from fencepost.simulation.trace.schema import Row

MAX_BODY_BYTES: Final = 32 << 20
"""The limit on bytes of a request's body."""
_NEVER_PUBLIC: Final = (".home.arpa", ".internal", ".local", ".localhost", ".test")
"""The ends of names that no public name server has."""
_MANY: Final = 1_000
"""Number of elements from which on a result is written in another thread."""
_EVENTS_AT_ONCE: Final = 500
_EVENTS_EVERY_S: Final = 0.1
"""Time between two looks for new events, in seconds."""
_HEALTHY_S: Final = 5.0
"""Time within which brokers that serve do something else, in seconds."""
_QUIET_LOOKS: Final = 100
"""Number of looks without an event after which the client is sent a comment, which shows if it is there."""


class ServedKafka(BlockingControls[AsyncGroup]):
    """A Kafka that runs on a loop of its own, for the control API."""

    def __init__(self, thread: LoopThread, endpoint: EmbeddedEndpoint) -> None:
        super().__init__(thread, AsyncGroup)
        self._endpoint = endpoint


class ControlApp:
    """The application. It runs on another loop than the brokers, so that no client of it can slow them.

    With a `token`, requests need it. Pages of other origins are refused. Only a Kafka of our own has scopes,
    metrics and a page; another server has faults.
    """

    def __init__(self, kafka: FaultControls[Any], token: str | None = None) -> None:
        self._kafka: Any = kafka
        self._token = token
        self._is_own = isinstance(kafka, ServedKafka)
        self._operations = tuple(operations(PLACES if self._is_own else places_of(type(kafka))))
        self._scopes: dict[str, tuple[KafkaScope[AsyncGroup], OpenScope]] = {}
        self.is_closing = False
        """True if streams of events are to end."""
        routes: list[Route] = [
            Route("/openapi.json", self._openapi),
            Route("/health", self._health),
        ]
        if self._is_own:
            routes += [
                Route("/", self._page),
                Route("/metrics", self._metrics),
                Route("/scopes", self._all_scopes, methods=["GET", "POST"]),
            ]
        for each in self._operations:
            path = each.path.replace("{group}", "{group:path}")
            endpoint = self._endpoint_of(each)
            befores = ("/scopes/{scope}", "") if self._is_own else ("",)
            routes += [Route(f"{before}{path}", endpoint, methods=[each.verb]) for before in befores]
        if self._is_own:
            routes.append(Route("/scopes/{scope}", self._close_scope, methods=["DELETE"]))
        self._app = Starlette(
            routes=routes,
            exception_handlers={
                HTTPException: self._not_found,
                WrongDocument: self._wrong,
                FencepostError: _refusing(409),
                TimeoutError: _refusing(504),
            },
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request of ASGI."""
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        has_begun = False

        async def sending(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await (self._app if refusal is None else refusal)(scope, receive, sending)
        except asyncio.CancelledError:
            if not self.is_closing:
                raise
            if not has_begun:
                await _refused(503, "this server has stopped")(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request that may not control this server."""
        if request.url.path == "/":
            return None  # the page has nothing of this server in it
        headers = request.headers
        host = headers.get("host", "")
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        if origin is not None and origin.partition("://")[2] != host:
            return _refused(403, f"a page of {origin} sent this request: only pages of this server may")
        if site not in ("none", "same-origin") or ((origin or site != "none") and not _is_address(host)):
            return _refused(403, "a page sent this request: only pages at this server's address may")
        if self._token is None and _is_public(host):
            return _refused(
                403,
                f"any page could use the name {host}: use this server's address, or start it with a token in "
                "FENCEPOST_CONTROL_TOKEN",
            )
        if self._token is not None and request.url.path != "/health":
            scheme, _, given = headers.get("authorization", "").partition(" ")
            wanted = os.fsencode(self._token)
            if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode("latin-1"), wanted):
                return _refused(
                    401, "expected the header `Authorization: Bearer TOKEN` with this server's token"
                )
        return None

    def _wrong(self, request: Request, error: Exception) -> Response:
        return _refused(400, f"{request.method} {request.url.path}: {error}")

    def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 405:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            return _refused(405, f"{request.method} {path}: expected {allowed}", {"Allow": allowed})
        if error.status_code != 404:
            return _refused(error.status_code, error.detail)
        paths = [each.path for each in self._operations]
        hint = suggestion(path.rpartition("/")[2], [each.name for each in self._operations], "")
        near = [each for each in paths if each.rpartition("/")[2] in hint] if hint else []
        told = f"did you mean {' or '.join(near)}?" if near else "GET /openapi.json describes all paths"
        return _refused(404, f"there is nothing at {path}; {told}")

    # -- operations -------------------------------------------------------------------------------------

    def _endpoint_of(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            given = dict(request.query_params) if operation.verb == "GET" else await _body(request)
            arguments = read_arguments(operation.arguments, given)
            kafka = self._kafka_of(request)
            if operation.name == "events" and "text/event-stream" in request.headers.get("accept", ""):
                since = request.headers.get("last-event-id", "")
                is_number = since.isdecimal() and len(since) <= MAX_DIGITS
                wants = kafka._wanted_rows(steady=arguments["steady"], group_id=arguments["group_id"])
                return self._stream(kafka, int(since) if is_number else arguments["since"], wants)
            key = request.path_params.get(operation.place.key, "")
            result = await self._run(operation, operation.place.of(kafka, key), arguments)
            if operation.name == "timeline":
                return HTMLResponse(result)
            return await _document(result or operation.empty)

        return endpoint

    def _kafka_of(self, request: Request) -> Any:
        name = request.path_params.get("scope")
        return self._kafka if name is None else self._scope(name)[0]

    async def _run(self, operation: Operation, target: Any, arguments: Mapping[str, Any]) -> Any:
        """Run the body of a method: on the brokers' loop if it belongs there, and never blocking this one."""
        by_place, by_name = operation.of_document(arguments)
        code = operation.method
        if not hasattr(code, "__wrapped__"):
            if inspect.iscoroutinefunction(code):
                return await code(target, *by_place, **by_name)
            return await asyncio.to_thread(code, target, *by_place, **by_name)
        code = inspect.unwrap(code)
        return await self._on_brokers(lambda: code(target, *by_place, **by_name))

    async def _on_brokers(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            found = call()
            found = await found if inspect.isawaitable(found) else found
            return found._state() if isinstance(found, Fault) else found

        future = self._kafka.thread.submit(run())
        try:
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    # -- events -----------------------------------------------------------------------------------------

    def _stream(
        self, kafka: BlockingControls[AsyncGroup], since: int, wants: Callable[[Row], bool]
    ) -> Response:
        whole("since", since, 0, None)
        headers = {"Cache-Control": "no-store"}
        sent = self._sent(kafka, since, wants)
        return StreamingResponse(sent, media_type="text/event-stream", headers=headers)

    async def _sent(
        self, kafka: BlockingControls[AsyncGroup], seq: int, wants: Callable[[Row], bool] = bool
    ) -> AsyncIterator[bytes]:
        """Yield events as they happen. A client that reads slowly is behind, and holds nothing up."""

        def newer() -> tuple[list[Row], list[Row]]:
            rows = kafka.endpoint.observer.rows_since(seq, _EVENTS_AT_ONCE)
            return rows, list(filter(wants, rows))

        quiet = 0
        while not self.is_closing:
            rows, own = await self._on_brokers(newer)
            if rows and rows[0].seq > seq + 1 > 1:
                yield f": the rows {seq + 1} to {rows[0].seq - 1} are no longer kept\n\n".encode()
            quiet = 0 if own else quiet + 1
            if own:
                yield b"".join(map(_event, own))
            elif quiet % _QUIET_LOOKS == 0:
                yield b": nothing new\n\n"
            if rows:
                seq = rows[-1].seq
            if len(rows) < _EVENTS_AT_ONCE:
                await asyncio.sleep(_EVENTS_EVERY_S)

    # -- scopes and the server itself -------------------------------------------------------------------

    def _scope(self, name: str) -> tuple[KafkaScope[AsyncGroup], OpenScope]:
        if name not in self._scopes:
            raise FencepostError(
                f"there is no scope {name!r}: POST /scopes opens one, and DELETE /scopes/NAME closes it"
            )
        return self._scopes[name]

    async def _all_scopes(self, request: Request) -> Response:
        if request.method != "POST":
            return await _document([told for _, told in self._scopes.values()])
        wanted = NewScope(**read_arguments(NewScope, await _body(request)))
        scope = await asyncio.to_thread(self._kafka.scope, wanted.name, topics=wanted.topics)
        name = scope.prefix.removesuffix("-")
        told = OpenScope(name, scope.prefix, {each: scope.name(each) for each in wanted.topics})
        self._scopes[name] = scope, told
        return await _document(told)

    async def _close_scope(self, request: Request) -> Response:
        name = request.path_params["scope"]
        scope, _ = self._scope(name)
        await self._on_brokers(lambda: inspect.unwrap(KafkaScope.close)(scope))
        self._scopes.pop(name, None)
        return await _document(None)

    async def _page(self, request: Request) -> Response:
        policy = f"{POLICY}; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return HTMLResponse(live_document(has_token=self._token is not None), headers=headers)

    async def _openapi(self, request: Request) -> Response:
        described = document(self._operations, has_token=self._token is not None, has_scopes=self._is_own)
        return Response(msgspec.json.encode(described), media_type="application/json")

    async def _health(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_HEALTHY_S):
                servers = await self._on_brokers(lambda: self._kafka.bootstrap_servers)
        except (TimeoutError, FencepostError):
            return _refused(503, "the brokers do not serve")
        return await _document(Health("ok", servers))

    async def _metrics(self, request: Request) -> Response:
        from fencepost.simulation.control.metrics import exposition, samples_of

        wanted = frozenset(request.query_params.getlist("name[]"))
        samples = await self._on_brokers(lambda: samples_of(self._kafka.endpoint, wanted))
        written, media_type = await asyncio.to_thread(exposition, samples, request.headers.get("accept", ""))
        return Response(written, headers={"Content-Type": media_type})


def _is_address(host: str) -> bool:
    """Return true for a host that no foreign name server can point here."""
    name = _without_port(host)
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_public(host: str) -> bool:
    """Return true for a name that a foreign name server can point here.

    A browser does not mark reads by a page at such a name.
    """
    name = _without_port(host).rstrip(".").lower()
    return "." in name and not _is_address(host) and not name.endswith(_NEVER_PUBLIC)


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is too long: expected {MAX_BODY_BYTES} bytes at most")
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None
    return bytes(body)


async def _document(result: Any) -> Response:
    def encoded() -> bytes:
        return msgspec.json.encode(shown(result))

    is_long = isinstance(result, list) and len(result) > _MANY
    content = await asyncio.to_thread(encoded) if is_long else encoded()
    return Response(content, media_type="application/json")


def _event(row: Row) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row.seq, row.kind.encode(), msgspec.json.encode(shown(row)))


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    content = msgspec.json.encode(ControlRefusal(text))
    return Response(content, status, dict(headers or {}), media_type="application/json")


def _refusing(status: int) -> Callable[[Request, Exception], Response]:
    return lambda request, error: _refused(status, str(error))
