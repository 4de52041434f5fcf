"""The proxy frame by frame, between raw clients and brokers that answer anything. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from typing import Any

import pytest

from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.kernel.rules import (
    Corrupt,
    Damage,
    Delay,
    Direction,
    Fate,
    Throttle,
    cutting,
    dropping,
    stalling,
)
from fencepost.simulation.lab.proxy import exchange
from fencepost.simulation.lab.proxy.exchange import UnreadFrame
from fencepost.simulation.lab.proxy.proxy import Proxy

pytestmark = pytest.mark.real

LIST_OFFSETS = 2
PATIENCE_S = 10.0


async def test_without_rules_everything_crosses_in_order(stage):
    client = await stage.client("client-7")
    for number in range(50):
        client.send(b"|%d" % number)
    assert [await client.body() for _ in range(50)] == [b"|%d" % number for number in range(50)]
    big = b"|" + bytes(3_000_000)
    assert await client.ask(big) == big
    requests = [what for what in stage.ledger.told if what[0] == "request"]
    assert requests[-1][1:4] == (
        "payments",
        "broker-1",
        UnreadFrame(LIST_OFFSETS, 1, "client-7", len(big) + 18),
    )
    assert len(requests) == 51
    assert stage.ledger.kinds.count("response") == 51
    times = [what[-1] for what in stage.ledger.told]
    assert times == sorted(times)


async def test_bytes_may_come_one_by_one(stage):
    client = await stage.client()
    frame = struct.pack(">ihhih", 12, LIST_OFFSETS, 1, 9, 0) + b"|x"
    for index in range(len(frame)):
        client.raw(frame[index : index + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.body() == b"|x"


@pytest.mark.parametrize("version", [1, 5, 8, 9, 12, 13])
async def test_metadata_tells_of_the_proxy(stage, version):
    client = await stage.client()
    client.raw(request_frame(ApiKey.METADATA, version, 1, "m1", cluster.MetadataRequest()))
    _, metadata = read_response(ApiKey.METADATA, version, await client.frame())
    assert {node.node_id: (node.host, node.port) for node in metadata.brokers} == {
        node: stage.proxy.address(node) for node in stage.brokers
    }
    assert {port for _, port in map(stage.proxy.address, stage.brokers)}.isdisjoint(
        broker.port for broker in stage.brokers.values()
    )


@pytest.mark.parametrize("version", range(7))
async def test_each_node_has_an_address_that_leads_to_it(stage, version):
    client = await stage.client()
    asked = cluster.FindCoordinatorRequest(keys=("g",))
    client.raw(request_frame(ApiKey.FIND_COORDINATOR, version, 1, "m1", asked))
    _, answer = read_response(ApiKey.FIND_COORDINATOR, version, await client.frame())
    found = answer.coordinators[0].node
    assert (found.host, found.port) == stage.proxy.address(2)
    await (await stage.client(node=2)).ask(b"|here")
    assert stage.brokers[2].bodies == [b"|here"]


async def test_a_node_that_the_proxy_does_not_know_is_nowhere(stage):
    with pytest.raises(ConnectionRefusedError):
        await stage.client(node=99)


async def test_a_lost_request_and_what_follows_never_arrive(stage):
    rule = stage.rule(dropping, direction=Direction.REQUEST, condition=lambda m: m.member == "m1", limit=1)
    first = await stage.client()
    first.send(b"|lost")
    first.send(b"|behind")
    other = await stage.client("m2")
    assert await other.ask(b"|fine") == b"|fine"
    assert await first.hears_nothing()
    assert stage.brokers[1].bodies == [b"|fine"]
    assert rule.spent
    assert stage.ledger.kinds.count("lost request") == 2
    again = await stage.client()
    assert await again.ask(b"|again") == b"|again"
    first.writer.close()
    await stage.until(lambda: len(stage.proxy._connections) == 2)


async def test_a_lost_response_leaves_the_broker_with_the_request(stage):
    stage.rule(dropping, direction=Direction.RESPONSE, limit=1)
    client = await stage.client()
    client.send(b"|heard")
    await stage.until(lambda: stage.ledger.kinds == ["request", "lost response"])
    assert stage.brokers[1].bodies == [b"|heard"]
    client.send(b"|behind")
    assert await client.hears_nothing()
    assert stage.brokers[1].bodies == [b"|heard"]
    assert stage.ledger.kinds == ["request", "lost response", "lost request"]


@pytest.mark.parametrize("direction", Direction)
async def test_a_cut_resets_the_connection(stage, direction):
    stage.rule(cutting, direction=direction, limit=1)
    client = await stage.client()
    client.send(b"|cut")
    assert await client.is_reset()
    assert stage.brokers[1].bodies == ([] if direction is Direction.REQUEST else [b"|cut"])
    assert stage.ledger.kinds[-1] == f"lost {direction}"
    again = await stage.client()
    assert await again.ask(b"|again") == b"|again"


@pytest.mark.parametrize("direction", Direction)
async def test_a_delay_holds_what_follows_too(stage, direction):
    stage.rule(Delay(200_000), direction=direction, limit=1)
    client, loop = await stage.client(), asyncio.get_running_loop()
    began = loop.time()
    for body in (b"|late", b"|next", b"|last"):
        client.send(body)
    assert [await client.body() for _ in range(3)] == [b"|late", b"|next", b"|last"]
    assert loop.time() - began >= 0.2
    assert stage.brokers[1].bodies == [b"|late", b"|next", b"|last"]


@pytest.mark.parametrize("direction", Direction)
async def test_a_stall_ends_with_its_rule(stage, direction):
    rule = stage.rule(stalling, direction=direction, members={"m1"}, limit=1)
    client, other = await stage.client(), await stage.client("m2")
    client.send(b"|held")
    client.send(b"|behind")
    assert await other.ask(b"|other") == b"|other"
    assert await client.hears_nothing()
    assert stage.brokers[1].bodies.count(b"|held") == (direction is Direction.RESPONSE)
    stage.proxy.rules.remove(rule)
    assert [await client.body(), await client.body()] == [b"|held", b"|behind"]
    assert "lost request" not in stage.ledger.kinds


@pytest.mark.parametrize("name", ["m1", "broker-1"])
async def test_a_member_or_a_broker_can_be_stalled(stage, name):
    client, elsewhere = await stage.client(), await stage.client("m2", node=2)
    assert await client.ask(b"|before") == b"|before"
    stage.proxy.stall(name)
    stage.proxy.stall(name)
    client.send(b"|held")
    new = await stage.client()
    new.send(b"|held too")
    assert await elsewhere.ask(b"|elsewhere") == b"|elsewhere"
    assert await client.hears_nothing()
    assert stage.brokers[1].bodies == [b"|before"]
    stage.proxy.resume(name)
    assert stage.proxy.rules == []
    assert await client.body() == b"|held"
    assert await new.body() == b"|held too"


async def test_what_waited_in_a_stall_is_judged_when_it_ends(stage):
    rule = stage.rule(stalling, direction=Direction.REQUEST)
    stage.rule(cutting, direction=Direction.REQUEST)
    client = await stage.client()
    client.send(b"|held")
    client.send(b"|cut then")
    assert await client.hears_nothing()
    stage.proxy.rules.remove(rule)
    assert await client.is_reset()
    await stage.until(lambda: stage.brokers[1].bodies in ([], [b"|held"]))
    assert stage.ledger.kinds == ["request", "lost request", "lost response"]


async def test_a_throttle_gives_bytes_their_time(stage):
    stage.rule(Throttle(100_000), direction=Direction.RESPONSE, limit=1)
    client, loop = await stage.client(), asyncio.get_running_loop()
    began = loop.time()
    client.send(b"|" + bytes(20_000))
    await asyncio.wait_for(client.reader.readexactly(1_000), PATIENCE_S)
    first = loop.time() - began
    await asyncio.wait_for(client.reader.readexactly(19_013), PATIENCE_S)
    assert loop.time() - began >= 0.19
    assert first < loop.time() - began


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("damage", Damage)
async def test_what_is_spoiled_differs_and_a_new_connection_is_fine(stage, direction, damage):
    stage.rule(Corrupt(damage), direction=direction, limit=1)
    client = await stage.client()
    body = b"|" + bytes(60)
    right = struct.pack(">hhih", LIST_OFFSETS, 1, 1, 2) + b"m1" + body
    client.send(body)
    await stage.until(lambda: stage.ledger.kinds[-1:] == [f"lost {direction}"])
    if direction is Direction.RESPONSE:
        arrived = await asyncio.wait_for(client.reader.read(1_000), PATIENCE_S)
        assert arrived != struct.pack(">i", len(right) - 4) + right[4:]
    assert stage.brokers[1].frames.count(right) == (direction is Direction.RESPONSE)
    assert stage.ledger.kinds == ["request"] * (direction is Direction.RESPONSE) + [f"lost {direction}"]
    again = await stage.client()
    assert await again.ask(b"|again") == b"|again"


GARBAGE = {
    "no frame": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "negative length": b"\xff\xff\xff\xff",
    "no header": struct.pack(">i", 3) + b"abc",
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 500),
    "client id that is no UTF-8": struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe",
    "Produce that ends": struct.pack(">ihhih", 10, 0, 9, 1, -1),
    "metadata of the future": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "SASL without frames": struct.pack(">ihhih", 10, 17, 0, 1, -1),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_closes_its_own_connection_only(stage, garbage):
    fine = await stage.client()
    assert await fine.ask(b"|before") == b"|before"
    bad = await stage.client()
    bad.raw(garbage)
    assert await bad.is_closed()
    assert await fine.ask(b"|after") == b"|after"
    await stage.until(lambda: len(stage.proxy._connections) == 1)
    assert len(stage.brokers[1].frames) == 2


@pytest.mark.parametrize(
    "answer",
    [
        lambda frame: b"\0\0\0\x63" + frame[8:],
        lambda frame: b"\0",
        lambda frame: frame[4:8] + b"\xff" * 30,
    ],
    ids=["another number", "no header", "unreadable"],
)
async def test_a_broker_that_answers_garbage_is_left(stage, answer):
    stage.brokers[1].answer = answer
    client = await stage.client()
    client.raw(request_frame(ApiKey.METADATA, 12, 1, "m1", cluster.MetadataRequest()))
    assert await client.is_closed()
    assert stage.ledger.kinds == ["request", "lost response"]


async def test_a_broker_that_speaks_unasked_is_left(stage):
    client = await stage.client()
    await client.ask(b"|x")
    stage.brokers[1].writers[0].write(struct.pack(">ii", 4, 1))
    assert await client.is_closed()


async def test_a_broker_that_is_down_resets_and_one_that_is_back_serves(stage):
    client = await stage.client()
    assert await client.ask(b"|up") == b"|up"
    await stage.brokers[1].stop()
    assert await client.is_closed()
    down = await stage.client()
    assert await down.is_closed()
    back = await stage.start(1)
    again = await stage.client()
    assert await again.ask(b"|back") == b"|back"
    assert back.bodies == [b"|back"]


async def test_requests_of_a_broker_that_dies_are_lost(stage):
    stage.brokers[1].answer = lambda frame: None
    client = await stage.client()
    client.send(b"|unanswered")
    await stage.until(lambda: stage.brokers[1].bodies == [b"|unanswered"])
    await stage.brokers[1].stop()
    assert await client.is_closed()
    assert stage.ledger.kinds == ["request", "lost response"]


@pytest.mark.parametrize("name", ["m1", "broker-1", "m2"])
async def test_all_connections_of_somebody_can_be_cut(stage, name):
    clients = [await stage.client("m1"), await stage.client("m1"), await stage.client("m2", node=2)]
    for client in clients:
        await client.ask(b"|x")
    cut = [client for client in clients if client.name == name or (name, client.name) == ("broker-1", "m1")]
    assert stage.proxy.cut_all(name) == len(cut)
    for client in clients:
        if client in cut:
            assert await client.is_reset()
        else:
            assert await client.ask(b"|y") == b"|y"
    assert stage.proxy.cut_all("nobody") == 0


async def test_what_a_client_sent_before_it_left_still_arrives(stage):
    stage.rule(Delay(100_000), direction=Direction.REQUEST)
    client = await stage.client()
    client.send(b"|farewell")
    client.send(b"|really")
    client.writer.close()
    await stage.until(lambda: stage.brokers[1].bodies == [b"|farewell", b"|really"])
    await stage.until(lambda: not stage.proxy._connections)
    assert sorted(stage.ledger.kinds) == ["lost response"] * 2 + ["request"] * 2


async def test_a_client_that_leaves_as_the_broker_is_reached_leaves_no_connection(stage):
    def reached():
        return [each for each in stage.proxy._connections if each._connecting and each._connecting.done()]

    coming = asyncio.ensure_future(stage.client())
    async with asyncio.timeout(PATIENCE_S):
        while not (found := reached()):  # noqa: ASYNC110
            await asyncio.sleep(0)  # the next turn may be too late
    (connection,) = found
    connection.client.transport.abort()
    connection.client.connection_lost(None)
    await stage.until(lambda: not stage.proxy._connections)
    assert await (await coming).is_closed()


async def test_what_a_broker_answered_before_it_left_still_arrives(stage):
    stage.rule(Delay(100_000), direction=Direction.RESPONSE)
    client = await stage.client()
    client.send(b"|last words")
    await stage.until(lambda: stage.brokers[1].bodies == [b"|last words"])
    stage.brokers[1].writers[0].close()
    assert await client.body() == b"|last words"
    assert await client.is_closed()


async def test_a_produce_without_acknowledgements_disturbs_no_numbers(stage):
    stage.brokers[1].answer = lambda frame: None if frame[:2] == b"\0\0" else frame[4:]
    client = await stage.client()
    for _ in range(5):
        client.send(struct.pack(">hhi", -1, 0, 1_000) + b"|records", key=0, version=8)
        assert await client.ask(b"|answered") == b"|answered"
    assert stage.ledger.kinds.count("request") == 10
    assert stage.ledger.kinds.count("response") == 5


async def test_rules_match_by_api(stage):
    stage.rule(cutting, api_keys={LIST_OFFSETS})
    client = await stage.client()
    client.send(b"|other", key=23)
    assert await client.body() == b"|other"
    client.send(b"|this")
    assert await client.is_reset()


async def test_nothing_is_decoded_that_no_rule_asks_for(stage, monkeypatch):
    def unwanted(*_: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(exchange, "read_member_request", unwanted)
    monkeypatch.setattr(exchange, "read_member_answer", unwanted)
    stage.proxy._surroundings.observer = None
    stage.rule(cutting, members={"somebody else"}, kinds=(str,))
    stage.rule(cutting, api_keys={0}, kinds=(str,))
    stage.rule(cutting, brokers={"broker-2"}, kinds=(str,))
    client = await stage.client()
    assert await client.ask(b"|heartbeat", key=ApiKey.CONSUMER_GROUP_HEARTBEAT) == b"|heartbeat"


async def test_a_client_that_is_held_up_is_not_read_without_end(stage):
    stage.proxy.stall("m1")
    client = await stage.client()
    body = b"|" + bytes(1 << 20)

    async def flood() -> None:
        for _ in range(64):
            client.send(body)
            await client.writer.drain()

    flooding = asyncio.create_task(flood())
    (connection,) = stage.proxy._connections
    await stage.until(lambda: connection._forth.paused)
    assert await client.hears_nothing()
    assert not flooding.done()
    assert connection._forth.backlog_size < 12 << 20
    stage.proxy.resume("m1")
    await asyncio.wait_for(flooding, PATIENCE_S)
    for _ in range(64):
        assert await client.body() == body


async def test_every_request_ends_exactly_once(stage):
    """Any rules, in any order, and clients that come and go: nothing is told twice, nothing is forgotten."""
    rng = random.Random(11)
    verdicts = [Fate.PASS, Delay(3_000), Fate.CUT, Fate.DROP, Throttle(50_000), *map(Corrupt, Damage)]
    for verdict in verdicts:
        stage.rule(verdict, chance=0.03, rng=rng)

    async def one(number: int) -> None:
        client = await stage.client(f"m{number}", node=rng.choice([1, 2, 3]))
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            for _ in range(20):
                client.send(b"|%d" % rng.randrange(1000))
                if rng.random() < 0.5:
                    await asyncio.wait_for(client.reader.read(1 << 16), 0.05)
        client.writer.transport.abort()

    for _ in range(10):
        await asyncio.gather(*(one(number) for number in range(10)))
    await stage.until(lambda: not stage.proxy._connections)
    kinds = stage.ledger.kinds
    ended = {id(what[3]): what[0] for what in stage.ledger.told if what[0] != "request"}
    assert len(ended) == len(kinds) - kinds.count("request")
    asked = {id(what[3]) for what in stage.ledger.told if what[0] == "request"}
    assert len(asked) == kinds.count("request")
    assert {kind for number, kind in ended.items() if number not in asked} == {"lost request"}
    assert {kind for number, kind in ended.items() if number in asked} == {"response", "lost response"}
    assert asked <= set(ended)


async def test_mistakes_are_told(stage):
    with pytest.raises(FencepostError, match="at least one upstream"):
        Proxy({}, rng=random.Random(1))
    with pytest.raises(FencepostError, match="broker 9: the proxy has 1, 2, 3"):
        stage.proxy.set_upstream(9, ("127.0.0.1", 1))
    with pytest.raises(EnvironmentLacks, match="is not an address of this machine"):
        async with Proxy({1: ("127.0.0.1", 1)}, rng=random.Random(1), host="203.0.113.1"):
            pass


async def test_closing_takes_every_connection_along(stage):
    stage.proxy.stall("m1")
    clients = [await stage.client(f"m{number}") for number in range(4)]
    for client in clients:
        client.send(b"|x")
    await clients[3].body()
    last = await asyncio.open_connection(*stage.proxy.address(1))
    await stage.proxy.close()
    for client in clients:
        assert await client.is_closed()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(last[0].read(), PATIENCE_S) == b""
    last[1].transport.abort()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*stage.proxy.address(1))


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_the_proxy_closes_is_sent_away(stage, turns):
    """The connection is accepted some turns of the loop before, which takes more turns to be complete."""
    loop = asyncio.get_running_loop()
    assert await (await stage.client("m1")).ask(b"|x")
    with socket.create_connection(stage.proxy.address(1)) as late:
        for _ in range(turns):
            await asyncio.sleep(0)
        await stage.proxy.close()
        late.setblocking(False)
        with contextlib.suppress(ConnectionResetError):  # where it was never accepted
            assert await asyncio.wait_for(loop.sock_recv(late, 1), PATIENCE_S) == b""
