"""Waiting until a world has settled: no fault is left, groups are stable, and nothing more happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from fencepost.simulation.world.programs import Program
    from fencepost.simulation.world.world import SimulatedWorld

SETTLE_S: Final = 400.0
"""The time that programs and groups have to settle after the last fault, unless a test says otherwise.

Clients look for topics that they have missed every five minutes (`metadata.max.age.ms`).
"""
QUIET_S: Final = 5.0
"""Work may go on after its commit: the world has settled when no record was done for that long."""
IDLE_S: Final = 60.0
"""Programs that commit nothing have settled when all is done and nothing has happened for that long.

It is also the time that a consumer has to join its group: aiokafka waits 40 s for the response to a request.
"""
TWICE_S: Final = 20.0
"""The same if a program has failed since the faults: it is started again, and may fail again."""
STUCK_S: Final = 310.0
"""The same if something is missing: a commit, a record that is not done, or what is to hold eventually.

aiokafka may use old metadata for five minutes. It may ask a broker that leads a partition no more for its
first offset, again and again. Or it may believe that a topic has no partitions, after an error for it.
"""
SETTLES: Final = "settles"


class Settling:
    """Waits for one world. `settled` says when a group has read all there is, and how long that must last."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    async def settled(self, timeout: float) -> None:  # noqa: ASYNC109  # virtual time
        """Wait as `SimulatedWorld.settled` does."""
        world = self._world
        await world.faults_over.wait()
        begin = world.loop.time()
        world.has_settled = False
        seen, since = self._progress(), begin
        while True:
            await asyncio.sleep(0.25)
            now, progress = world.loop.time(), self._progress()
            if progress != seen:
                seen, since = progress, now  # also when a program has failed once more
            quiet_s = now - since
            if quiet_s > QUIET_S and quiet_s > self._patience_s() and not self._unstable():
                break
            if now - begin > timeout:
                world.report(SETTLES, f"{timeout:g} s after the last fault: {self._why_not()}")
                break
        world.has_settled = True
        world.judge_end()

    def _patience_s(self) -> float:
        """Return for how long nothing must happen before the world has settled."""
        if not self._world.holds_eventually():
            return STUCK_S
        if self._world.failures:  # perhaps a program fails again and again
            return IDLE_S if self._world.failures > 1 else TWICE_S
        if self._has_settled():
            return IDLE_S if any(map(self._is_joining, self._world.programs.values())) else QUIET_S
        return STUCK_S if any(map(self._is_behind, self._world.group_ids())) else IDLE_S

    def _is_joining(self, program: Program) -> bool:
        """Return true if a consumer of the program is no member of its group: its request may be lost."""
        wanted = () if program.process is None else program.process.group_ids
        return bool(wanted) and not set(wanted).issubset(self._world.groups_of(program.name))

    def _is_behind(self, group_id: str) -> bool:
        """Return true if a group has not read all: if it commits, by its commits, else by what was done."""
        waiting = self._uncommitted(group_id)
        if self._world.offsets_of(group_id):
            return any(waiting)
        done = self._world.record_judge.done
        return any(offset not in done.get(partition, ()) for partition, offset in waiting)

    def _progress(self) -> tuple[int, ...]:
        world = self._world
        done = sum(len(each) for each in world.record_judge.done.values())
        committed = sum(sum(world.offsets_of(each).values()) for each in world.group_ids())
        return world.failures, done, committed, world.written()

    def _unstable(self) -> list[str]:
        down = [each.name for each in self._world.programs.values() if each.wanted and not each.is_running]
        groups = [self._world.group(each) for each in self._world.group_ids()]
        return down + [each.group_id for each in groups if each.state not in ("Stable", "Empty", "Dead")]

    def _has_settled(self) -> bool:
        behind = (any(self._uncommitted(each)) for each in self._world.group_ids())
        return not self._unstable() and not any(behind)

    def _uncommitted(self, group_id: str) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the places of records that the members of a group have not committed."""
        offsets = self._world.offsets_of(group_id)
        read = {topic for topic, _ in offsets}
        for member in self._world.group(group_id).members():
            read.update(member.topics)
        for partition, (first, end) in self._world.ends().items():
            committed = offsets.get(partition, first)
            if partition.topic in read and committed < end:
                for offset in self._world.readable(partition, committed, end):
                    yield partition, offset

    def _why_not(self) -> str:
        parts = [f"{each} is not stable, or down" for each in self._unstable()]
        parts += [
            f"group {each} has not committed {lag} records"
            for each in self._world.group_ids()
            if (lag := sum(1 for _ in self._uncommitted(each)))
        ]
        ended = [each for each in self._world.programs.values() if each.error is not None]
        errors = [f"{each.name}: {each.error!r}" for each in ended]
        return "; ".join(parts + errors) or "nothing is missing now"
