"""aiokafka's fetcher with partitions that come and go in place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from unittest import mock

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from fencepost.coordinator.codec.conversation import CallVersions
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.member.kafka.client import KafkaClient
from fencepost.member.kafka.connections import AiokafkaRequest, Fetching
from tests.batches import batch
from tests.waiting import until

A, B, C = ("orders", 0), ("orders", 1), ("orders", 2)


def stored(base: int, count: int) -> bytes:
    """Records from an offset on, as a broker has them."""
    values = (b"%d" % offset for offset in range(base, base + count))
    return base.to_bytes(8, "big") + batch(*values)[8:]


class Cluster:
    """One broker whose partitions hold a hundred records each, served ten at a time."""

    records = 100

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._metadata_max_age_ms = 300_000
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda partition: 1, broker_metadata=lambda node_id: None
        )
        self.fetched: list[tuple[int, int]] = []
        self.held = asyncio.Event()
        self.held.set()
        self.fails: Exception | None = None
        self.misleads = False
        """Whether the next answer is about a partition that nobody asked for."""
        self.refuses: dict[int, int] = {}
        """Error codes of partitions."""
        self.renewals = 0
        self._conns: dict[object, object] = {}

    def force_metadata_update(self):
        self.renewals += 1
        return self._loop.create_task(asyncio.sleep(0.02))

    async def send(self, node_id, request):
        asked = [(topic, number, offset) for topic, rows in request.topics for number, offset, _ in rows]
        self.fetched += [(number, offset) for _, number, offset in asked]
        await asyncio.sleep(0.02)
        await self.held.wait()
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        if self.misleads:
            self.misleads = False
            asked = [(topic, number + 7, offset) for topic, number, offset in asked]
        return SimpleNamespace(API_VERSION=4, topics=[(topic, [self._read(n, o)]) for topic, n, o in asked])

    def _read(self, number, offset):
        if number in self.refuses:
            return (number, self.refuses[number], -1, -1, [], b"")
        if offset > self.records:
            return (number, 1, -1, -1, [], b"")
        count = min(10, self.records - offset)
        return (number, 0, self.records, self.records, [], stored(offset, count) if count else b"")


@pytest.fixture
async def brokers() -> Cluster:
    return Cluster()


@pytest.fixture
async def fetching(brokers) -> AsyncIterator[Fetching]:
    made = Fetching(brokers, fetcher_timeout=0.05)
    yield made
    await made.close()


async def buffered(fetching, *partitions):
    """Wait until these have records."""
    await until(lambda: all(partition in fetching._records for partition in partitions))


def offsets(records):
    return {partition: [record.offset for record in rows] for partition, rows in records.items()}


async def test_partitions_that_stay_keep_buffer_and_place(fetching, brokers):
    fetching.assign({A: 0, B: 50}, ())
    await buffered(fetching, A, B)
    assert fetching.take_one((A,)).offset == 0
    fetching.assign({A: 0, C: 7}, ())
    assert offsets(fetching.take_many((), None)) == {A: list(range(1, 10))}, "from the buffer, at once"
    await buffered(fetching, A, C)
    assert offsets(fetching.take_many((), None)) == {A: list(range(10, 20)), C: list(range(7, 17))}
    assert brokers.fetched.count((0, 0)) == 1
    assert fetching.partitions == {A, C}


async def test_what_is_taken_away_loses_its_records_at_once(fetching):
    fetching.assign({A: 0}, ())
    await buffered(fetching, A)
    assert fetching.take_one().offset == 0
    fetching.assign({}, ())
    assert fetching.take_one() is None
    assert fetching.take_many((), None) == {}
    assert fetching.position(A) is None
    assert fetching.handed() == {}


async def test_a_fetch_under_way_brings_nothing_of_what_was_taken_away(fetching, brokers):
    brokers.held.clear()
    fetching.assign({A: 0, B: 0}, ())
    await until(lambda: brokers.fetched)
    fetching.assign({B: 0}, ())
    brokers.held.set()
    await buffered(fetching, B)
    assert offsets(fetching.take_many((), None)) == {B: list(range(10))}
    fetching.check()


async def test_what_comes_back_is_read_from_its_new_place(fetching, brokers):
    brokers.held.clear()
    fetching.assign({A: 0}, ())
    await until(lambda: brokers.fetched)
    fetching.assign({}, ())
    fetching.assign({A: 90}, ())
    brokers.held.set()
    await buffered(fetching, A)
    assert offsets(fetching.take_many((), None)) == {A: list(range(90, 100))}


async def test_states_of_partitions_that_went_are_dropped(fetching):
    for start in range(20):
        fetching.assign({("orders", start): 0}, ())
        await buffered(fetching, ("orders", start))
    fetching.assign({}, ())
    await asyncio.sleep(0.1)
    fetching.assign({A: 0}, ())
    assert len(fetching._assignment._tp_state) <= 2


async def test_paused_partitions_keep_their_records(fetching, brokers):
    fetching.assign({A: 0, B: 0}, {B})
    await buffered(fetching, A)
    assert offsets(fetching.take_many((), None)) == {A: list(range(10))}
    fetching.resume(B)
    await buffered(fetching, B)
    assert fetching.take_one((B,)).offset == 0
    fetching.pause(B)
    assert fetching.take_one((B,)) is None
    await asyncio.sleep(0.2)
    fetching.resume(B)
    assert fetching.take_one((B,)).offset == 1
    assert brokers.fetched.count((1, 0)) == 1


async def test_seeking_drops_what_was_fetched(fetching):
    fetching.assign({A: 0}, ())
    await buffered(fetching, A)
    assert fetching.take_one().offset == 0
    fetching.seek(A, 42)
    assert fetching.take_one() is None
    await buffered(fetching, A)
    assert fetching.take_one().offset == 42
    assert fetching.handed() == {A: 43}
    assert fetching.handed() == {}
    assert fetching.take_one().offset == 43
    assert fetching.handed() == {A: 44}


async def test_at_most_so_many(fetching):
    fetching.assign({A: 0, B: 0}, ())
    await buffered(fetching, A, B)
    first = fetching.take_many((), 12)
    assert sum(map(len, first.values())) == 12
    rest = fetching.take_many((), 100)
    taken = {
        partition: offsets(first).get(partition, []) + offsets(rest).get(partition, [])
        for partition in (A, B)
    }
    assert taken == {A: list(range(10)), B: list(range(10))}


async def test_a_position_outside_of_the_log(fetching):
    outside = []
    fetching.on_out_of_range = outside.append
    fetching.assign({A: 1_000}, ())
    await buffered(fetching, A)
    assert fetching.take_one() is None
    assert outside == [A]


def not_five(raw):
    if raw == b"5":
        raise ValueError("five")
    return int(raw)


async def test_what_comes_before_a_record_that_can_not_be_read_is_not_lost(brokers):
    fetching = Fetching(brokers, fetcher_timeout=0.05, value_deserializer=not_five)
    fetching.assign({A: 20, B: 0}, ())
    await buffered(fetching, A, B)
    assert offsets(fetching.take_many((), None)) == {A: list(range(20, 30)), B: list(range(5))}
    await buffered(fetching, A, B)
    with pytest.raises(ValueError, match="five") as raised:
        fetching.take_many((), None)
    assert raised.value.__notes__ == ["offset 5 of orders-1 can't be read: seek past it to go on"]
    assert fetching.position(B) == 5
    assert offsets(fetching.take_many((A,), None)) == {A: list(range(30, 40))}, "it keeps the others"
    fetching.assign({B: 5}, ())
    await buffered(fetching, B)
    with pytest.raises(ValueError, match="five"):
        fetching.take_many((B,), None)
    fetching.seek(B, 6)
    await buffered(fetching, B)
    assert fetching.take_one((B,)).value == 6
    await fetching.close()


async def test_one_by_one_it_is_said_as_well_which_record_can_not_be_read(brokers):
    fetching = Fetching(brokers, fetcher_timeout=0.05, value_deserializer=not_five)
    fetching.assign({A: 3}, ())
    await buffered(fetching, A)
    assert [fetching.take_one().value for _ in range(2)] == [3, 4]
    for _ in range(2):
        await buffered(fetching, A)
        with pytest.raises(ValueError, match="five") as raised:
            fetching.take_one()
        assert raised.value.__notes__ == ["offset 5 of orders-0 can't be read: seek past it to go on"]
        assert fetching.take_one() is None
    await fetching.close()


async def test_an_error_that_waited_goes_with_its_partition(brokers):
    fetching = Fetching(brokers, fetcher_timeout=0.05, value_deserializer=not_five)
    fetching.assign({A: 0}, ())
    await buffered(fetching, A)
    assert offsets(fetching.take_many((), None)) == {A: list(range(5))}
    fetching.assign({B: 20}, ())
    await buffered(fetching, B)
    assert offsets(fetching.take_many((), None)) == {B: list(range(20, 30))}
    await fetching.close()


async def test_only_the_leader_says_that_a_position_is_outside_of_the_log(brokers):
    asked = []
    send = brokers.send

    async def of_node(node_id, request):
        asked.append(node_id)
        brokers.records = 40 if node_id == 2 else 100
        return await send(node_id, request)

    brokers.send = of_node
    brokers.cluster.broker_metadata = lambda node_id: node_id
    fetching = Fetching(brokers, fetcher_timeout=0.05, client_rack="near")
    outside = []
    fetching.on_out_of_range = outside.append
    fetching._fetcher._update_preferred_read_replica(A, 2)
    fetching.assign({A: 50}, ())
    await until(lambda: asked[:1] == [2] and fetching.take_one((A,)) is not None)
    assert asked[:2] == [2, 1]
    assert outside == []
    await fetching.close()


@pytest.mark.parametrize("code", [3, 6, 56, -1, 12345])
async def test_a_broker_that_refuses_is_asked_again_with_new_metadata_and_not_at_once(
    fetching, brokers, code
):
    brokers.refuses = {0: code}
    fetching.assign({A: 7, B: 100}, ())
    await asyncio.sleep(10)
    assert 50 < brokers.fetched.count((0, 7)) < 300, "an answer takes 20 ms, new metadata as long"
    assert brokers.renewals >= brokers.fetched.count((0, 7)) - 1
    brokers.refuses = {}
    await buffered(fetching, A)
    assert fetching.take_one().offset == 7


async def test_what_comes_with_a_refusal_does_not_wait_for_metadata(fetching, brokers):
    brokers.force_metadata_update = lambda: brokers._loop.create_task(asyncio.sleep(5))
    brokers.refuses = {0: 6}
    fetching.assign({A: 7, B: 0}, ())
    await buffered(fetching, B)
    assert brokers._loop.time() < 0.03
    fetching.take_many((), None)
    await asyncio.sleep(1)
    assert brokers.fetched.count((0, 7)) < 10
    assert brokers.fetched.count((1, 10)) == 1


async def test_a_replica_that_came_up_after_the_metadata_is_learned_of(brokers):
    asked, known = [], set()

    async def redirect(node_id, request):
        asked.append(node_id)
        await asyncio.sleep(0.001)
        replica, data = (-1, stored(7, 3)) if node_id == 2 else (2, b"")
        return SimpleNamespace(API_VERSION=11, topics=[("orders", [(0, 0, 100, 100, 0, [], replica, data)])])

    async def renew():
        await asyncio.sleep(0.02)
        known.add(2)

    brokers.send = redirect
    brokers.cluster.broker_metadata = lambda node_id: node_id if node_id in known else None
    brokers.force_metadata_update = lambda: brokers._loop.create_task(renew())
    fetching = Fetching(brokers, fetcher_timeout=0.05, client_rack="near")
    fetching.assign({A: 7}, ())
    await buffered(fetching, A)
    assert asked == [1, 2]
    await fetching.close()


async def test_a_former_leader_does_not_say_that_a_position_is_outside_of_the_log(brokers):
    """With a rack it answers for a follower; the metadata tells who leads now, once it is asked for."""
    asked, leader = [], 1

    async def send(node_id, request):
        version = request.prepare({1: (4, 18)}).API_VERSION
        asked.append((node_id, version))
        await asyncio.sleep(0.001)
        if node_id == 3:
            row = (0, 0, 100, 100, 0, [], *([-1] if version > 10 else []), stored(50, 3))
        else:
            row = (0, 1 if version > 10 else 6, -1, -1, 0, [], *([-1] if version > 10 else []), b"")
        return SimpleNamespace(API_VERSION=version, topics=[("orders", [row])])

    async def renew():
        nonlocal leader
        await asyncio.sleep(0.02)
        leader = 3

    brokers.send = send
    brokers.cluster.leader_for_partition = lambda partition: leader
    brokers.force_metadata_update = lambda: brokers._loop.create_task(renew())
    fetching = Fetching(brokers, fetcher_timeout=0.05, client_rack="near")
    outside = []
    fetching.on_out_of_range = outside.append
    fetching.assign({A: 50}, ())
    records = []
    await until(lambda: records.extend(fetching.take_many((), None).get(A, ())) or records)
    assert [record.offset for record in records] == [50, 51, 52]
    assert outside == []
    await until(lambda: len(asked) > 3)
    assert asked[:4] == [(1, 11), (1, 10), (3, 10), (3, 11)]
    await fetching.close()


@pytest.mark.parametrize(("rack", "version"), [(None, 10), ("near", 11)])
async def test_replicas_that_do_not_lead_are_asked_only_for_the_sake_of_a_rack(brokers, rack, version):
    requests = []
    send = brokers.send

    async def note(node_id, request):
        requests.append(request)
        return await send(node_id, request)

    brokers.send = note
    fetching = Fetching(brokers, fetcher_timeout=0.05, client_rack=rack)
    fetching.assign({A: 7}, ())
    await buffered(fetching, A)
    (request,) = requests
    assert [request.prepare({1: (4, newest)}).API_VERSION for newest in (18, 9)] == [version, 9]
    with pytest.raises(IncompatibleBrokerVersion):
        request.prepare({})
    await fetching.close()


async def test_metadata_is_asked_for_once_a_while_and_at_once_for_another_topic(monkeypatch):
    loop, asked = asyncio.get_running_loop(), []

    async def told_soon(client, cluster, topics):
        asked.append((loop.time() - start, set(topics)))
        await asyncio.sleep(0.001)
        return True

    monkeypatch.setattr(AIOKafkaClient, "_metadata_update", told_soon)
    client = KafkaClient(retry_backoff_ms=100)
    client.set_topics({"gone"})
    synchronizer = asyncio.create_task(client._md_synchronizer())
    start = loop.time()
    while loop.time() < start + 5.04:
        await client.force_metadata_update()
    assert 49 <= len(asked) <= 51
    client.set_topics({"gone", "orders"})
    await asyncio.sleep(0.2)
    when = next(at for at, topics in asked if "orders" in topics)
    assert when < 5.11
    await asyncio.sleep(60)
    count = len(asked)
    await client.force_metadata_update()
    assert asked[count][0] == pytest.approx(loop.time() - start, abs=0.01), "it has rested long enough"
    synchronizer.cancel()


async def test_a_fetch_that_fails_is_tried_again(fetching, brokers):
    brokers.fails = KafkaError("gone")
    fetching.assign({A: 0}, ())
    await buffered(fetching, A)
    assert brokers.fetched.count((0, 0)) == 2


async def test_a_fetch_whose_answer_is_damaged_is_tried_again(fetching, brokers, caplog, capsys):
    connection = mock.Mock()
    brokers._conns[1, ConnectionGroup.DEFAULT] = connection
    brokers.misleads = True
    fetching.assign({A: 0}, ())
    await buffered(fetching, A)
    fetching.check()
    connection.close.assert_called_once_with(reason=CloseReason.CONNECTION_BROKEN)
    assert brokers.fetched.count((0, 0)) == 2
    assert fetching.take_one().offset == 0
    assert "damaged fetch response node_id=1" in caplog.text
    assert capsys.readouterr().out == "", "a program's output is its own"


@pytest.mark.parametrize("after_s", [0, 0.01, 0.03, 0.06])
async def test_closing_ends_what_fails_meanwhile(brokers, after_s):
    """A fetch that has failed waits a while before it is tried again."""
    fetching = Fetching(brokers, fetcher_timeout=0.05)
    brokers.fails = KafkaError("gone")
    fetching.assign({A: 0}, ())
    await asyncio.sleep(after_s)
    await fetching.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_fetcher_that_dies_is_told_of_and_works_again(fetching, brokers):
    brokers.fails = ZeroDivisionError()
    fetching.assign({A: 0}, ())
    await until(fetching._fetcher._fetch_task.done)
    with pytest.raises(KafkaError, match="Unexpected error"):
        fetching.check()
    fetching.check()
    await buffered(fetching, A)
    assert fetching.take_one().offset == 0


async def test_waiting_ends_with_records_time_or_a_wake(fetching):
    loop = asyncio.get_running_loop()
    start = loop.time()
    await fetching.wait(0.5)
    assert loop.time() - start == pytest.approx(0.5, abs=0.01)
    loop.call_later(0.25, fetching.wake)
    await fetching.wait(None)
    assert loop.time() - start == pytest.approx(0.75, abs=0.01)
    fetching.assign({A: 0}, ())
    await fetching.wait(None)
    assert fetching.take_one().offset == 0


def test_a_call_takes_the_newest_version_that_both_speak():
    def frame(version, correlation_id, client_id):
        return b"\0\0\0\3" + f"{version}{correlation_id}{client_id}".encode()

    call = AiokafkaRequest(CallVersions(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1), frame)
    prepared = call.prepare({68: (0, 7)})
    assert call.version == 1
    assert prepared.build_request_header(7, "c").encode() + prepared.encode() == b"17c"
    for versions in ({}, {68: (2, 3)}):
        with pytest.raises(IncompatibleBrokerVersion, match="API 68"):
            call.prepare(versions)
