"""A failed seed of a user's test: made small, kept as a file, and reported as text and as a timeline."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file
from fencepost.simulation.embedded.timeline import write_timelines
from fencepost.simulation.failures.shrink import shrink_plan
from fencepost.simulation.faults.draw import Draw, DrawnEvent
from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.report.model import duration
from fencepost.simulation.trace.schema import Row, RowKind
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest, plan_of_world, run_world
from fencepost.simulation.world.standstill import StandsStill

TRIES: Final = 150
"""Maximum number of runs that make a failure smaller."""
LONGEST_S: Final = 45.0
"""Maximum number of seconds for which this process computes to make a failure smaller."""
FOLDER: Final = "world-failures"
_TRIED_ONCE: Final = frozenset(f"{RAISED}{each.__name__}" for each in (OutsideWorld, StandsStill))
"""Failures that seldom depend on faults, or whose runs take long."""
_SUBTITLE: Final = "A failed test in a simulated world"
_ROUNDING_US: Final = 1_000
"""The trace of a world has whole milliseconds."""


class WorldFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seed, and the faults with which a test fails."""

    test: str
    """The name of the test function."""
    seed: int
    invariant: str
    where: str = ""
    """The line of the test file that raised, if the test ended by an exception."""
    plan: Draw

    def to_json(self) -> str:
        """The document, as `read_world_failure` takes it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on a failed seed."""

    seed: int
    text: str


def read_world_failure(path: str) -> WorldFailure:
    """Return a failure from its file.

    :raises FencepostError: if the file can't be read, or holds no failure.
    """
    try:
        return msgspec.json.decode(read_file(Path(path)), type=WorldFailure)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FencepostError(f"{path}: no failure of a simulated test: {error}") from None


def explain(
    function: WorldTest,
    settings: WorldSettings,
    result: WorldResult,
    *,
    command: str,
    folder: Path,
    is_small: bool = False,
) -> FailureReport:
    """Make a failure smaller, write its file and its timeline, and return the report.

    A failure that `is_small` was made smaller before. Nothing runs again, so that a debugger stops once only.
    """
    failure = WorldFailure(
        test=settings.scenario.name,
        seed=result.seed,
        invariant=result.invariant,
        where=result.where,
        plan=result.plan,
    )

    begin = time.process_time()

    def run(candidate: WorldFailure, _: int | None) -> WorldResult | None:
        if time.process_time() - begin > LONGEST_S:
            return None  # what was found so far is small enough
        found = run_world(function, settings, candidate.seed, plan=candidate.plan, until=candidate.invariant)
        if candidate.invariant.startswith(RAISED) and found.where != candidate.where:
            return None  # another failure of the same kind
        return found if any(each.invariant == candidate.invariant for each in found.violations) else None

    if is_small:
        small, last, effort = failure, result, ""
    else:
        tries = 1 if result.invariant in _TRIED_ONCE else TRIES
        small, made = shrink_plan(failure, run, tries=tries)
        last = run_world(function, settings, small.seed, plan=small.plan, keep_rows=True)
        effort = f" ({made} runs)"
    stem = re.sub(r"\W+", "-", f"{function.__module__}-{small.test}-{small.seed}").strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / f"{stem}.json"
    document.write_text(small.to_json())
    verdict = "; ".join(f"{each.invariant}: {each.message}" for each in last.violations) or "nothing failed"
    pages = write_timelines(last.rows, folder, stem, verdict, last.names, taken={}, subtitle=_SUBTITLE)
    lines = [f"seed {small.seed} fails: {verdict}", ""]
    count, drawn = len(small.plan.entries), len(plan_of_world(settings, small.seed).entries)
    if count:
        these = f"these {count} faults" if count > 1 else "this one fault"
        lines.append(f"With {these}, of {drawn} that the seed drew{effort}:")
        lines += [f"  {_told(entry, last.rows)}" for entry in small.plan.entries]
    elif drawn:
        lines.append(f"Without any fault: none of the {drawn} that the seed drew is needed.")
    else:
        lines.append("Without any fault: the seed drew none.")
    lines += ["", f"timeline: {', '.join(map(str, pages))}"]
    lines.append(f"run it again: PYTHONHASHSEED=0 FENCEPOST_FAILURE={document} {command}")
    lines.append(f"all faults of the seed: PYTHONHASHSEED=0 FENCEPOST_SEED={small.seed} {command}")
    lines.append(f"always run this seed: @fencepost.simulated(..., always=[{small.seed}])")
    if last.trouble:
        lines += ["", last.trouble.rstrip()]
    return FailureReport(seed=small.seed, text="\n".join(lines))


def _told(entry: DrawnEvent, rows: Sequence[Row]) -> str:
    """Return the line about a fault, with the program or broker that it affected in the run."""
    parts = [f"{duration(entry.at_us / 1e6)}: {entry.kind}"]
    affected = (
        row.detail
        for row in rows
        if row.kind == RowKind.FAULT
        and (row.actor, row.state_to) == (entry.kind, "begin")
        and abs(row.t_us - entry.at_us) <= _ROUNDING_US
    )
    if target := next(affected, "") or entry.name:
        parts.append(target)
    if entry.lasts_us:
        parts.append(f"for {duration(entry.lasts_us / 1e6)}")
    return " ".join(parts)
