"""HTTP stubs of a world respond as a test says, and lose, delay and repeat by faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from fencepost import HttpRequest, SimulatedWorld
from fencepost.simulation.world.http_stub import DELAY, LOSE_REQUEST, LOSE_RESPONSE, REPEAT
from tests.unit.simulation.world.programs_of_users import passes, play


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ({"paid": True}, 200, '{"paid": true}'),
        ("thanks", 200, "thanks"),
        (b"\x01", 200, "\x01"),
        (None, 204, ""),
        ((503, "busy"), 503, "busy"),
        ((529, "a status without a name"), 529, "a status without a name"),
    ],
)
def test_stub_responds_what_the_handler_returns(answer: Any, status: int, text: str) -> None:
    seen: list[Any] = []

    async def handler(request: HttpRequest) -> Any:
        await asyncio.sleep(2)
        return answer

    async def pays() -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(2):  # over one connection
                response = await client.post("http://payments/pay?order=7", json={"amount": 3})
                seen.append((response.status_code, response.text))

    async def test(world: SimulatedWorld) -> None:
        stub = world.http("payments", handler)
        await world.process("shop", pays).ended()
        assert 4 < world.loop.time() < 5
        first = stub.requests[0]
        assert (first.method, first.path, first.query, first.json()) == (
            "POST",
            "/pay",
            {"order": "7"},
            {"amount": 3},
        )
        assert first.headers["host"] == "payments"

    passes(test)
    assert seen == [(status, text)] * 2


@pytest.mark.parametrize(
    ("what", "error", "handled"),
    [
        (LOSE_REQUEST, "RemoteProtocolError", 0),
        (LOSE_RESPONSE, "RemoteProtocolError", 1),
        (DELAY, "", 1),
        (REPEAT, "", 2),
    ],
)
def test_fault_hits_one_request(what: str, error: str, handled: int) -> None:
    seen: list[str] = []

    async def pays() -> None:
        async with httpx.AsyncClient(timeout=10) as client:
            for _ in range(2):
                try:
                    await client.get("http://payments:8080/")
                    seen.append("")
                except httpx.HTTPError as raised:
                    seen.append(type(raised).__name__)

    async def test(world: SimulatedWorld) -> None:
        stub = world.http("payments", lambda _: "thanks", port=8080)
        stub.disturb(what, 5_000_000)
        await world.process("shop", pays).ended()
        assert len(stub.requests) == handled + 1
        assert (world.loop.time() > 5) == (what == DELAY)

    passes(test)
    assert seen == [error, ""]


def test_seeds_draw_faults_of_stubs_and_name_what_they_hit() -> None:
    hits: Counter[str] = Counter()

    async def pays() -> None:
        async with httpx.AsyncClient(timeout=5) as client:
            while True:
                try:
                    await client.get("http://payments/")
                except httpx.HTTPError as error:
                    hits[type(error).__name__] += 1
                await asyncio.sleep(0.5)

    async def test(world: SimulatedWorld) -> None:
        world.http("payments", lambda _: "thanks")
        world.process("shop", pays)
        await world.faults_over.wait()

    told: set[str] = set()
    for seed in range(1, 4):
        result = play(test, seed, faults={**_only_http(), "http-fault": {"every": "2s"}}, claims=())
        assert not result.trouble, result.trouble
        told |= set(result.hits.values())
    assert told >= {f"payments {each}" for each in (LOSE_REQUEST, LOSE_RESPONSE, DELAY, REPEAT)}
    assert {"RemoteProtocolError", "ReadTimeout"} <= set(hits)


def _only_http() -> dict[str, None]:
    from fencepost.simulation.world.mix import DEFAULT_MIX

    return dict.fromkeys(str(each.__struct_config__.tag) for each in DEFAULT_MIX)


def test_exception_of_a_handler_ends_the_run() -> None:
    def handler(_: HttpRequest) -> object:
        return object()

    async def pays() -> None:
        async with httpx.AsyncClient() as client:
            await client.get("http://payments/")

    async def test(world: SimulatedWorld) -> None:
        world.http("payments", handler)
        world.process("shop", pays)
        await asyncio.sleep(60)

    (violation,) = play(test).violations
    assert "a handler of world.http() returned <object object at" in violation.message
