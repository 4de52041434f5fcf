"""A failed seed of a user's test: made small, kept as a file, and reported as text and as a timeline."""

from __future__ import annotations

import re
import time
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
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest, run_world

TRIES: Final = 150
"""Maximum number of runs that make a failure smaller."""
LONGEST_S: Final = 45.0
"""Maximum number of seconds for which this process computes to make a failure smaller."""
FOLDER: Final = "world-failures"


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
    function: WorldTest, settings: WorldSettings, result: WorldResult, *, command: str, folder: Path
) -> FailureReport:
    """Make a failure smaller, write its file and its timeline, and return the report."""
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

    tries = 1 if result.invariant == f"{RAISED}{OutsideWorld.__name__}" else TRIES
    small, made = shrink_plan(failure, run, tries=tries)
    last = run_world(function, settings, small.seed, plan=small.plan, keep_rows=True)
    stem = re.sub(r"\W+", "-", f"{small.test}-{small.seed}").strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / f"{stem}.json"
    document.write_text(small.to_json())
    verdict = "; ".join(f"{each.invariant}: {each.message}" for each in last.violations) or "nothing failed"
    pages = write_timelines(last.rows, folder, stem, verdict, last.names, taken={})
    lines = [f"seed {small.seed} fails: {verdict}", ""]
    count = len(small.plan.entries)
    if count:
        lines.append(
            f"With these {count} faults, of {len(failure.plan.entries)} that the seed drew ({made} runs):"
            if count > 1
            else f"With this one fault, of {len(failure.plan.entries)} that the seed drew ({made} runs):"
        )
        lines += [f"  {_told(entry)}" for entry in small.plan.entries]
    else:
        lines.append(
            f"Without any fault: none of the {len(failure.plan.entries)} that the seed drew is needed."
        )
    lines += ["", f"timeline: {', '.join(map(str, pages))}"]
    lines.append(f"run it again: FENCEPOST_FAILURE={document} {command}")
    lines.append(f"all faults of the seed: FENCEPOST_SEED={small.seed} {command}")
    lines.append(f"always run this seed: @fencepost.simulated(..., always=[{small.seed}])")
    if last.trouble:
        lines += ["", last.trouble.rstrip()]
    return FailureReport(seed=small.seed, text="\n".join(lines))


def _told(entry: DrawnEvent) -> str:
    parts = [f"{duration(entry.at_us / 1e6)}: {entry.kind}"]
    if entry.lasts_us:
        parts.append(f"for {duration(entry.lasts_us / 1e6)}")
    if entry.name:
        parts.append(entry.name)
    return " ".join(parts)
