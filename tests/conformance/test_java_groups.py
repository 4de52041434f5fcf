"""RabbitMQ's Java client in groups of single active consumers: at our node the same happens as at a RabbitMQ.

What members do is drawn by a seed. Where a client decides for itself what comes first, nothing is drawn: two
consumers of one client in one group come back in any order when its connections break.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import rstream

from fencepost import EmbeddedRabbitStream
from tests.conformance.java_programs import JavaProcess
from tests.conformance.rabbit_place import RABBIT_SECONDS, RabbitPlace

pytestmark = pytest.mark.real

RABBITMQ: Final = Path(__file__).parents[2] / ".ci" / "rabbitmq"
STEPS: Final = 25
PARTITIONS: Final = 3
QUIET_S: Final = 0.1
"""Nobody has anything to say any more after that."""
AWAY_S: Final = 0.5
"""So long it takes clients to come back, or to let go of a stream that has gone."""
LATE_S: Final = 30.0
"""How long one node may take to say what the other has said."""
ADDED: Final = """
    {{ok, _}} = rabbit_stream_manager:create(<<"/">>, <<"{name}-{index}">>, #{{}}, <<"guest">>),
    ok = rabbit_binding:add({{binding, rabbit_misc:r(<<"/">>, exchange, <<"{name}">>), <<"{index}">>,
        rabbit_misc:r(<<"/">>, queue, <<"{name}-{index}">>),
        [{{<<"x-stream-partition-order">>, long, {index}}}]}}, fun(_, _) -> ok end, <<"guest">>).
"""
"""As an operator does it by declaring a queue and binding it, for which AMQP's port would have to be open."""

FIRST: Final = rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST)
PLAIN: Final = "s-a"
STREAMS: Final = (PLAIN, *(f"s-{number}" for number in range(PARTITIONS)))

Step = tuple[str, ...]


def script(seed: int) -> Iterator[Step]:
    """What happens, one after the other, to a stream and to a super stream `s`."""
    rng = random.Random(seed)
    members: dict[str, tuple[str, str, str]] = {}
    for number in range(STEPS):
        kind = rng.choices(["publish", "join", "close", "lose", "slow", "delete"], [8, 6, 2, 1, 1, 0.5])[0]
        client, name, target = rng.choice("ABC"), rng.choice("xxy"), rng.choice([PLAIN, "s", "s"])
        member = client, name, target
        match kind:
            case "publish":
                yield "publish", rng.choice(STREAMS), f"{number}"
            case "join" | "slow" if member not in members.values():
                held = [one for one, (_, *group) in members.items() if group == [name, target]]
                held = [rng.choice(held)] if held and kind == "slow" else []
                for one in held:
                    yield "hold", one
                way, new = rng.choice(["start", "start", "store"]), f"k{number}"
                members[new] = member
                yield way, new, client, "super" if target == "s" else "stream", target, name
                for one in held:
                    for stream in STREAMS:
                        yield "publish", stream, f"{number}-while-{one}-is-held"
                    yield "release", one
            case "close" if members:
                left = rng.choice([*members])
                del members[left]
                yield "close", left
            case "lose":
                yield "lose", client
            case "delete":
                members = {one: each for one, each in members.items() if each[2] != PLAIN}
                yield "delete", PLAIN
                yield "create", PLAIN


class Scene:
    """A node with streams, and the members of groups, who are told what to do."""

    def __init__(self, place: RabbitPlace, members: JavaProcess) -> None:
        self.place = place
        self.members = members
        self._published: dict[str, int] = defaultdict(int)

    async def open(self) -> None:
        self.name = await self.place.super_stream(PARTITIONS)
        self._producer = await self.place.producer()
        self._memory = self.place.consumer()
        await self._memory.start()
        await self.do("create", PLAIN)

    def named(self, stream: str) -> str:
        return self.name + stream.removeprefix("s")

    async def do(self, kind: str, *words: str) -> None:
        match kind, *words:
            case "publish", stream, value:
                message = rstream.AMQPMessage(body=value.encode())
                await self._producer.send_wait(self.named(stream), message)
                self._published[stream] += 1
            case "create", stream:
                await self._producer.create_stream(self.named(stream))
            case "delete", stream:
                await self._producer.delete_stream(self.named(stream))
                self._published[stream] = 0
            case (("start" | "store"), who, client, what, target, name):
                await self._told(f"{kind} {who} {client} {what} {self.named(target)} {name}", who)
            case "close", who:
                await self._told(f"close {who}", who)
            case _:
                self.members.tell(" ".join((kind, *words)))

    async def _told(self, order: str, who: str) -> None:
        self.members.tell(order)
        done = "closed" if order.startswith("close") else "started"
        answers = f"{who} {done}", f"{who} failed"
        async with asyncio.timeout(RABBIT_SECONDS):
            while not any(line.startswith(answers) for line in self.members.said):
                await asyncio.to_thread(self.members.listen, 0.01)

    async def heard(self, quiet_s: float) -> dict[str, list[str]]:
        """What each consumer has told of each stream, in its order."""
        await asyncio.to_thread(self.members.listen, quiet_s)
        found = defaultdict(list)
        for line in self.members.said:
            who, stream, *rest = line.replace(self.name, "s").split()
            found[f"{who} {stream}"] += rest
        return found

    async def until(self, expected: dict[str, str]) -> None:
        """Wait until consumers have told just that."""
        async with asyncio.timeout(RABBIT_SECONDS):
            told: dict[str, str] = {}
            while told != expected:
                heard = await self.heard(QUIET_S)
                told = {one: " ".join(heard[one]) for one in expected}

    async def add_partition(self) -> None:
        """One more partition of the super stream."""
        if self.place.ours is not None:
            self.place.ours.add_partition(self.name)
            return
        if (await operate("ping")).returncode:
            pytest.skip("another RabbitMQ than .ci/rabbitmq's: nobody here can add a partition")
        (await operate("eval", ADDED.format(name=self.name, index=PARTITIONS))).check_returncode()

    async def stored(self) -> dict[str, bytes]:
        """The message whose offset is stored last, of each stream and name."""
        found = {}
        for stream, count in self._published.items():
            values = dict(await self.place.read(self.named(stream), count, offset_specification=FIRST))
            for name in "xy":
                with contextlib.suppress(rstream.OffsetNotFound):
                    offset = await self._memory.query_offset(self.named(stream), name)
                    found[f"{stream} {name}"] = values[offset]
        return found


async def operate(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Have the operator of `.ci/rabbitmq` do something."""
    command = [RABBITMQ, "run", "rabbitmqctl", *words]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=60)


Start = Callable[[RabbitPlace], Awaitable[Scene]]


@pytest.fixture
def scene(java_programs: Any, rabbit_jars: list[Path], java_process: Any) -> Start:
    """Starts a scene at a place."""

    async def start(place: RabbitPlace) -> Scene:
        command = java_programs.command("GroupMembers", *rabbit_jars)
        members = java_process([*command, place.settings["host"], str(place.settings["port"])])
        made = Scene(place, members)
        await made.open()
        return made

    return start


@pytest.mark.parametrize("seed", [0, pytest.param(2, marks=pytest.mark.long)])
async def test_the_same_happens_as_at_a_rabbitmq(
    seed: int, scene: Start, real_rabbitmq: tuple[str, int]
) -> None:
    async with (
        EmbeddedRabbitStream() as rabbit,
        contextlib.aclosing(RabbitPlace(rabbit.host, rabbit.port, rabbit)) as here,
        contextlib.aclosing(RabbitPlace(*real_rabbitmq)) as there,
    ):
        ours, theirs = await scene(here), await scene(there)
        done = []
        for step in script(seed):
            done.append(step)
            await asyncio.gather(ours.do(*step), theirs.do(*step))
            quiet_s = AWAY_S if step[0] in ("lose", "delete") else QUIET_S
            end = time.monotonic() + LATE_S
            while True:
                heard = await asyncio.gather(ours.heard(quiet_s), theirs.heard(quiet_s))
                if heard[0] == heard[1] or time.monotonic() > end:
                    break
            assert heard[0] == heard[1], done
        stored = await asyncio.gather(ours.stored(), theirs.stored())
        assert stored[0] == stored[1], done


@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.long)])
async def test_groups_settle_whatever_members_do(seed: int, scene: Start) -> None:
    """Nobody waits here until a step is over, so that steps meet in any order."""
    rng = random.Random(seed)
    async with (
        EmbeddedRabbitStream() as rabbit,
        contextlib.aclosing(RabbitPlace(rabbit.host, rabbit.port, rabbit)) as place,
    ):
        here = await scene(place)
        started: list[asyncio.Task[None]] = []
        for step in script(seed):
            if step[0] in ("start", "store"):
                started.append(asyncio.create_task(here.do(*step)))
            else:
                if step[0] == "close":
                    await asyncio.gather(*started)
                await here.do(*step)
            # Of a stream that is made anew in no time the client passes over offsets that it has read before.
            await asyncio.sleep(AWAY_S if step[0] == "delete" else rng.choice([0, 0.02, 0.1]))
        await asyncio.gather(*started)
        groups = [rabbit.group(here.named(stream), name) for stream in STREAMS for name in "xy"]
        end = time.monotonic() + 3 * LATE_S
        for number in itertools.count():  # a client that was cut off may come back between any two steps
            await here.heard(AWAY_S)
            there = [group for group in groups if group.consumers()]
            for group in there:
                await group.wait_settled()
            last = f"last-{number}"
            for stream in STREAMS:
                await here.do("publish", stream, last)
            wanted = Counter(group.stream.replace(here.name, "s") for group in there)
            heard = await here.heard(AWAY_S)
            got = Counter(who.split()[1] for who, told in heard.items() if told and told[-1] == last)
            if got == wanted or time.monotonic() > end:
                break
        assert wanted
        assert got == wanted


async def test_a_partition_that_is_added_is_for_who_comes_later(place: RabbitPlace, scene: Start) -> None:
    here = await scene(place)
    await here.do("start", "one", "A", "super", "s", "x")
    await here.do("start", "two", "B", "super", "s", "x")
    await here.until({"one s-0": "active", "one s-1": "active idle", "two s-1": "active"})
    await here.add_partition()
    await here.do("publish", "s-3", "new")
    await here.do("publish", "s-1", "old")
    await here.until({"two s-1": "active old"})

    # In old partitions there are three now: each is for the one whose number is its own. The new one has one.
    await here.do("start", "three", "C", "super", "s", "x")
    await here.until({"one s-2": "active idle", "three s-2": "active", "three s-3": "active new"})
    await here.do("close", "two")
    await here.until({"three s-1": "active old"})
    await here.do("start", "four", "B", "super", "s", "x")
    await here.until({"three s-3": "active new idle", "four s-3": "active new"})
    assert {"one s-3", "two s-3"}.isdisjoint(await here.heard(QUIET_S))
