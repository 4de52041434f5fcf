from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.simulation.kernel import rng
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.kernel.network import CLOSED, Call, Network
from fencepost.simulation.kernel.rules import (
    Delay,
    Direction,
    Fate,
    Matching,
    Message,
    Verdict,
    cutting,
    dropping,
)

SECOND = 1_000_000
MS = 1_000


class Echo:
    """Answers every request with itself, and remembers the order in which they came."""

    def __init__(self, loop: VirtualLoop, name: str = "broker-1") -> None:
        self.name = name
        self.up = True
        self.received: list[object] = []
        self._loop = loop

    def receive(self, call: Call) -> None:
        self.received.append(call.request)
        call.answer(("echo", call.request), self._loop.now_us)


@pytest.fixture
async def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


@pytest.fixture
def losses() -> list[tuple[str, str, str, object]]:
    return []


@pytest.fixture
def network(loop: VirtualLoop, losses: list[tuple[str, str, str, object]]) -> Network:
    return Network(
        loop,
        rng.Draws(5),
        latency=rng.uniform(1 * MS, 50 * MS),
        detection=rng.constant(200 * MS),
        on_loss=lambda member, broker, kind, request, now_us: losses.append((member, broker, kind, request)),
    )


@pytest.fixture
def client(loop: VirtualLoop) -> Host:
    return Host("member-1", loop)


@pytest.fixture
def broker(loop: VirtualLoop) -> Echo:
    return Echo(loop)


async def test_a_request_is_answered_after_a_round_trip(network, client, broker, loop):
    connection = network.connect(client, broker)
    assert await network.send(connection, "a", SECOND) == ("echo", "a")
    assert 4 * MS <= loop.now_us <= 200 * MS  # handshake and request, two ways each


async def test_one_connection_keeps_the_order(network, client, broker):
    connection = network.connect(client, broker)
    answered: list[int] = []
    futures = []
    for number in range(100):
        future = network.send(connection, number, SECOND)
        future.add_done_callback(lambda done: answered.append(done.result()[1]))
        futures.append(future)
    await asyncio.gather(*futures)
    assert broker.received == list(range(100))
    assert answered == list(range(100))


async def test_another_connection_may_overtake(network, client, broker):
    slow = Matching(lambda _: Delay(400 * MS), condition=lambda message: message.request == "slow")
    network.rules.append(slow)
    first, second = network.connect(client, broker), network.connect(client, broker)
    await asyncio.gather(network.send(first, "slow", SECOND), network.send(second, "fast", SECOND))
    assert broker.received == ["fast", "slow"]


async def test_a_dropped_request_times_out_and_takes_its_connection_along(
    network, client, broker, loop, losses
):
    network.rules.append(Matching(dropping, direction=Direction.REQUEST, limit=1))
    connection = network.connect(client, broker)
    first = network.send(connection, "lost", SECOND)
    second = network.send(connection, "behind", 5 * SECOND)
    with pytest.raises(RequestTimedOut):
        await first
    assert loop.now_us == SECOND
    with pytest.raises(Disconnected):
        await second
    assert loop.now_us == SECOND
    assert broker.received == []
    assert connection.pipe is CLOSED
    assert losses == [("member-1", "broker-1", "request", "lost")]


async def test_a_response_can_be_lost_after_the_request_was_carried_out(network, client, broker, loop):
    network.rules.append(Matching(cutting, direction=Direction.RESPONSE, limit=1))
    connection = network.connect(client, broker)
    with pytest.raises(Disconnected):
        await network.send(connection, "a", 5 * SECOND)
    assert broker.received == ["a"]
    assert 200 * MS < loop.now_us < 500 * MS


async def test_a_cut_connection_is_noticed_late_and_carries_nothing(network, client, broker):
    connection = network.connect(client, broker)
    under_way = network.send(connection, "a", SECOND)
    network.cut(connection)
    after = network.send(connection, "b", SECOND)
    for future in (under_way, after):
        with pytest.raises(Disconnected):
            await future
    assert broker.received == []


async def test_a_late_answer_is_a_timeout_though_the_request_arrived(network, client, broker, loop):
    network.rules.append(Matching(lambda _: Delay(2 * SECOND), direction=Direction.REQUEST))
    connection = network.connect(client, broker)
    with pytest.raises(RequestTimedOut):
        await network.send(connection, "a", SECOND)
    assert broker.received == []
    loop_time = loop.now_us
    await asyncio.sleep(5)
    assert broker.received == ["a"]  # TCP delivers what was under way when the client gave up
    assert loop_time == SECOND


async def test_nobody_listens_on_a_host_that_is_down(network, client, broker, loop):
    broker.up = False
    connection = network.connect(client, broker)
    with pytest.raises(Disconnected):
        await network.send(connection, "a", 30 * SECOND)
    assert loop.now_us < SECOND


async def test_a_crash_of_either_end_breaks_its_connections(network, client, broker, loop):
    other = network.connect(Host("member-2", loop), broker)
    connection = network.connect(client, broker)
    futures = [network.send(connection, "a", SECOND), network.send(other, "b", SECOND)]
    network.cut_all("member-1")
    with pytest.raises(Disconnected):
        await futures[0]
    assert await futures[1] == ("echo", "b")


async def test_a_frozen_client_hears_answers_and_timeouts_when_it_thaws(network, client, broker, loop):
    connection = network.connect(client, broker)
    future = network.send(connection, "a", SECOND)
    client.freeze()
    await asyncio.sleep(3)
    assert broker.received == ["a"]
    assert not future.done()
    client.thaw()
    assert future.result() == ("echo", "a")


async def test_who_waits_may_be_cancelled_at_the_moment_of_the_answer(network, client, broker):
    call = network.send(network.connect(client, broker), "a", SECOND)

    async def wait():
        return await call

    task = asyncio.create_task(wait())
    call.add_done_callback(lambda _: task.cancel())
    await asyncio.sleep(3)
    assert call.done()
    assert task.cancelled()


async def test_answers_to_an_earlier_process_reach_nobody(network, client, broker):
    connection = network.connect(client, broker)
    future = network.send(connection, "a", SECOND)
    client.end()
    network.forget(client)
    await asyncio.sleep(3)
    assert broker.received == ["a"]
    assert not future.done()


def judged(rule, message):
    """As networks do it."""
    if not rule.concerns(message.member, message.broker, message.direction):
        return Fate.PASS
    return rule.judge(message)


def test_rules_filter_by_everything_they_name():
    message = Message("member-1", "broker-2", Direction.REQUEST, "x")
    matching: list[Callable[[], Matching]] = [
        lambda: Matching(dropping),
        lambda: Matching(dropping, members={"member-1"}, brokers={"broker-2"}),
        lambda: Matching(dropping, direction=Direction.REQUEST, kinds=(str,)),
        lambda: Matching(dropping, condition=lambda m: m.request == "x"),
    ]
    passing: list[Callable[[], Matching]] = [
        lambda: Matching(dropping, members={"member-2"}),
        lambda: Matching(dropping, brokers={"broker-1"}),
        lambda: Matching(dropping, direction=Direction.RESPONSE),
        lambda: Matching(dropping, kinds=(int,)),
        lambda: Matching(dropping, condition=lambda m: m.request == "y"),
        lambda: Matching(dropping, limit=0),
    ]
    assert [judged(make(), message) for make in matching] == [Fate.DROP] * len(matching)
    assert [judged(make(), message) for make in passing] == [Fate.PASS] * len(passing)


def test_a_rule_with_a_limit_is_spent_after_it():
    rule = Matching(cutting, limit=2)
    message = Message("m", "b", Direction.REQUEST, "x")
    assert [judged(rule, message) for _ in range(3)] == [Fate.CUT, Fate.CUT, Fate.PASS]
    assert rule.spent


def test_a_rule_with_a_chance_picks_some():
    rule = Matching(dropping, chance=0.25, rng=rng.Draws(1).random("x"))
    message = Message("m", "b", Direction.REQUEST, "x")
    dropped = sum(rule.judge(message) is Fate.DROP for _ in range(4000))
    assert 900 < dropped < 1100


async def test_the_first_rule_that_decides_wins(network, client, broker):
    seen = []

    def note(message: Message) -> Verdict:
        seen.append(message.direction)
        return Fate.PASS

    network.rules += [Matching(note), Matching(lambda _: Delay(1)), Matching(dropping)]
    assert await network.send(network.connect(client, broker), "a", SECOND) == ("echo", "a")
    assert seen == [Direction.REQUEST, Direction.RESPONSE]
