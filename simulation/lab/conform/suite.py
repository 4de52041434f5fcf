"""A whole comparison: scripted schedules, then random ones until enough requests were compared.

Several schedules run at a time, each with its own group. A difference counts if it appears again whenever the
schedule is repeated, and no timer ended while a request was under way: it may have ended for one side alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.simulation.brokers.connection import to_the_end
from fencepost.simulation.lab.conform.broker import ReferenceBroker
from fencepost.simulation.lab.conform.exercised import NAMES
from fencepost.simulation.lab.conform.generate import generate
from fencepost.simulation.lab.conform.generate_tables import CLASSIC, CONSUMER, MORE_MS, STREAMS
from fencepost.simulation.lab.conform.lockstep import Lockstep, LockstepDifference, LockstepResult
from fencepost.simulation.lab.conform.schedule import Schedule, Step

SHRUNK = 5
"""Maximum number of differences of one run that are made small; the others are reported as they are."""
REPEATS = 2
"""Number of reruns of a schedule that differs: on a busy machine a timer may run out in between twice."""
KINDS_EVERY = 4
"""One in this many random schedules is about the classic protocol, and one about a streams group if the
broker has those. The others are about consumer groups."""


class RuleVerdict(msgspec.Struct, frozen=True):
    """One rule: `pass`, `differ` or `untested`, and how many requests exercised it."""

    rule: str
    verdict: str
    requests: int = 0


class LeftOut(msgspec.Struct, frozen=True):
    """An API and version that the broker's ApiVersions does not list, so that requests were not sent."""

    api: str
    requests: int


class SeenDeviation(msgspec.Struct, frozen=True):
    """A known deviation that showed."""

    name: str
    times: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison."""

    requests: int
    schedules: int
    differences: list[LockstepDifference]
    rules: list[RuleVerdict]
    deviations: list[SeenDeviation]
    left_out: list[LeftOut]
    unclear: int
    """Differences that did not appear again, or only when a timer ended between two responses."""


class _Topics:
    """Topics for schedules: shared ones, and private ones for schedules that change them."""

    def __init__(self, judge: ReferenceBroker, run_id: str) -> None:
        self._judge = judge
        self._run_id = run_id
        self._shared: dict[tuple[tuple[str, int], ...], asyncio.Task[dict[str, TopicId]]] = {}

    async def of(self, schedule: Schedule, number: int) -> tuple[str, dict[str, TopicId]]:
        """Return the prefix of the schedule's topics, and their ids."""
        if schedule.changes_topics:
            prefix = f"{self._run_id}-{number}-"
            return prefix, await self._create(prefix, schedule)
        key = tuple(sorted(schedule.topics.items()))
        if key not in self._shared:
            prefix = f"{self._run_id}-s{len(self._shared)}-"
            self._shared[key] = asyncio.create_task(self._create(prefix, schedule), name=prefix)
        task = self._shared[key]
        return task.get_name(), await task

    async def _create(self, prefix: str, schedule: Schedule) -> dict[str, TopicId]:
        ids = {}
        for name, partitions in schedule.topics.items():
            created = await self._judge.create_topic(prefix + name, partitions)
            if created.error_code is not ErrorCode.NONE or created.topic_id is None:
                raise EnvironmentLacks(f"the broker does not create topics: {created.error_code.name}")
            ids[name] = created.topic_id
        return ids

    async def release(self, schedule: Schedule, prefix: str) -> None:
        """Delete private topics as soon as their schedule is done."""
        if schedule.changes_topics:
            await self._judge.delete_topics_of(prefix)


class Suite:
    """Runs schedules against one broker, `workers` at a time.

    `run_id` keeps runs on one cluster apart; `on_progress` is called with the number of further requests
    compared.
    """

    def __init__(
        self,
        judge: ReferenceBroker,
        run_id: str,
        *,
        workers: int = 4,
        on_progress: Callable[[int], None] = lambda requests: None,
    ) -> None:
        self._judge = judge
        self._run_id = run_id
        self._workers = workers
        self._on_progress = on_progress
        self._topics = _Topics(judge, run_id)
        self._numbers = itertools.count(1)
        self._requests = 0
        self._schedules = 0
        self._unclear = 0
        self._exercised: Counter[str] = Counter()
        self._deviations: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._differences: list[LockstepDifference] = []

    async def run(self, scripted: Iterable[Schedule], *, seed: int, requests: int) -> Report:
        """Run all scripted schedules, and random ones of this seed until that many requests were compared.

        :raises EnvironmentLacks: if the broker goes away.
        """
        schedules = itertools.chain(scripted, self._random(seed, requests))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work(schedules))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            await to_the_end(self._judge.delete_topics_of(self._run_id))
        return self._report()

    def _random(self, seed: int, requests: int) -> Iterator[Schedule]:
        config = self._judge.config
        speaks_streams = self._judge.speaks(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
        for number in itertools.count():
            if self._requests >= requests:
                return
            kind = number % KINDS_EVERY
            if kind == KINDS_EVERY - 1 and speaks_streams:
                yield generate(STREAMS, f"{seed}-{number}")
            elif kind == KINDS_EVERY - 2:
                first_ms = config.group_initial_rebalance_delay_ms + MORE_MS
                yield generate(CLASSIC, f"{seed}-{number}", first_ms=first_ms)
            else:
                interval_ms = config.group_consumer_assignment_interval_ms
                yield generate(CONSUMER, f"{seed}-{number}", interval_ms=interval_ms and interval_ms + 100)

    async def _work(self, schedules: Iterator[Schedule]) -> None:
        for schedule in schedules:
            found = await self.compare(schedule)
            self._schedules += 1
            self._requests += found.requests
            self._exercised += found.exercised
            self._deviations += found.passed
            self._left_out += found.left_out
            if found.deviation is not None:
                self._deviations[found.deviation.name] += 1
            if found.difference is not None:
                await self._differs(found.difference)
            self._on_progress(found.requests)

    async def _differs(self, difference: LockstepDifference) -> None:
        again = difference
        for _ in range(REPEATS):
            found = await self._repeated(difference.schedule.steps, difference)
            if found is None:
                self._unclear += 1
                return
            again = found
        if len(self._differences) < SHRUNK:
            self._differences.append(again)
            place = len(self._differences) - 1
            self._differences[place] = await self._shrunk(again)
        else:
            self._differences.append(again)

    async def _repeated(self, steps: tuple[Step, ...], like: LockstepDifference) -> LockstepDifference | None:
        schedule = msgspec.structs.replace(like.schedule, steps=steps)
        result = await self.compare(schedule)
        found = result.difference
        return found if found is not None and found.rule == like.rule and not result.raced else None

    async def _shrunk(self, difference: LockstepDifference) -> LockstepDifference:
        smallest = difference

        async def fails(steps: tuple[Step, ...]) -> bool:
            nonlocal smallest
            found = await self._repeated(steps, difference)
            if found is None:
                return False
            smallest = found
            return True

        await shrink(difference.schedule.steps[: difference.step + 1], fails)
        return smallest

    async def compare(self, schedule: Schedule) -> LockstepResult:
        """Run one schedule on both sides."""
        number = next(self._numbers)
        prefix, topic_ids = await self._topics.of(schedule, number)
        lockstep = Lockstep(
            self._judge, schedule, group_id=f"{self._run_id}-g{number}", prefix=prefix, topic_ids=topic_ids
        )
        try:
            return await lockstep.run()
        finally:
            self._on_progress(0)  # a difference is repeated many times
            await to_the_end(lockstep.close())
            await to_the_end(self._topics.release(schedule, prefix))

    def _report(self) -> Report:
        broken = {difference.rule for difference in self._differences}
        names = {**NAMES, **dict.fromkeys(sorted((broken | self._exercised.keys()) - NAMES.keys()), "")}
        return Report(
            requests=self._requests,
            schedules=self._schedules,
            differences=self._differences,
            rules=[self._verdict(name, broken) for name in names],
            deviations=[SeenDeviation(name, times) for name, times in sorted(self._deviations.items())],
            left_out=[LeftOut(api, requests) for api, requests in sorted(self._left_out.items())],
            unclear=self._unclear,
        )

    def _verdict(self, name: str, broken: set[Any]) -> RuleVerdict:
        times = self._exercised[name]
        verdict = "differ" if name in broken else "pass" if times else "untested"
        return RuleVerdict(name, verdict, times)


T = TypeVar("T")


async def shrink(
    items: Sequence[T], still_fails: Callable[[tuple[T, ...]], Awaitable[bool]], *, tries: int = 200
) -> tuple[T, ...]:
    """Return a part of the items that fails as they do, with no item to spare, as far as that many tries
    show.

    Order is kept. `items` are assumed to fail.
    """
    kept = tuple(items)
    parts = 2
    while len(kept) >= 2 and tries > 0:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            tries -= 1
            if without and await still_fails(without):
                kept, parts = without, max(parts - 1, 2)
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(kept))
    return kept
