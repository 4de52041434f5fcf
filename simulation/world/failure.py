"""A failed seed of a user's test: made small, kept as a file, and reported as text and as a timeline."""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file, visible
from fencepost.simulation.embedded.timeline import write_timelines
from fencepost.simulation.failures.shrink import shrink_plan
from fencepost.simulation.faults.plan import FaultPlan, PlannedEvent
from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.report.model import duration
from fencepost.simulation.world.apart import run_apart
from fencepost.simulation.world.crashes import crash_count, crash_lines
from fencepost.simulation.world.repeats import RUNS, repeats, why_not_repeatable
from fencepost.simulation.world.run import WorldResult, WorldSettings, WorldTest
from fencepost.simulation.world.standstill import StandsStill
from fencepost.simulation.world.telling import held_lines, session_lines

TRIES: Final = 150
"""Maximum number of runs that make a failure smaller."""
LONGEST_S: Final = 45.0
"""Maximum number of seconds for which this process computes to make a failure smaller."""
FOLDER: Final = "world-failures"
_TRIED_ONCE: Final = frozenset(f"{RAISED}{each.__name__}" for each in (OutsideWorld, StandsStill))
"""Failures that seldom depend on faults, or whose runs take long."""
_SUBTITLE: Final = "A failed test in a simulated world"


class WorldFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seed, and the faults with which a test fails."""

    test: str
    """The name of the test function."""
    module: str = ""
    file: str = ""
    """The file of that module, relative to the working directory if it is below."""
    name: str = ""
    """The qualified name of the test function in its module."""
    seed: int
    invariant: str
    where: str = ""
    """The line of the test file that raised, if the test ended by an exception."""
    happened: int = 0
    """The number of faults that happened in the whole seed."""
    versions: dict[str, str] = {}
    """The versions of Python and of the libraries that were loaded."""
    plan: FaultPlan

    def to_json(self) -> str:
        """The document, as `read_world_failure` takes it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on a failed seed."""

    seed: int
    text: str
    document: str = ""
    """The file of the failure; empty if the program is not repeatable."""
    is_whole: bool = True
    """True if no fault can be left out any more; False if the time or the runs were not enough to know."""


def read_world_failure(path: str) -> WorldFailure:
    """Return a failure from its file.

    :raises FencepostError: if the file can't be read, or holds no failure.
    """
    try:
        return msgspec.json.decode(read_file(Path(path)), type=WorldFailure)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FencepostError(f"{path}: no failure of a simulated test: {error}") from None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are loaded, by their names."""
    found = {"python": platform.python_version()}
    for name in sorted({each.partition(".")[0] for each in tuple(sys.modules)} - sys.stdlib_module_names):
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
            found[name] = metadata.version(name)
    return found


def gone_text(path: str, kept: WorldFailure) -> str:
    """Return the text about a failure that no longer fails, with what has changed since it was written."""
    now = versions()
    names = [each for each in kept.versions if each in now and now[each] != kept.versions[each]]
    changed = ", ".join(f"{each} {kept.versions[each]} (now {now[each]})" for each in names)
    since = f"It was written with {changed}. " if changed else ""
    return (
        f"{path} no longer fails: with its faults, {kept.test} passes. {since}"
        f"The test has run nothing else: run it without FENCEPOST_FAILURE, too"
    )


def explain(
    function: WorldTest,
    settings: WorldSettings,
    result: WorldResult,
    *,
    command: str,
    folder: Path,
    stem: str = "",
    kept: WorldFailure | None = None,
    happened: int | None = None,
    tries: int = TRIES,
    longest_s: float = LONGEST_S,
) -> FailureReport:
    """Make a failure smaller, write its file and its timeline, and return the report.

    A `kept` failure was made smaller before. Nothing runs again, so that a debugger stops once only.
    A program that is not repeatable gets the reasons for that in place of a small failure.
    """
    failure = _failure_of(function, settings, result, happened)
    stem = stem or re.sub(r"\W+", "-", f"{function.__module__}-{failure.test}-{failure.seed}").strip("-")
    verdict = _verdict(result)
    commands = [
        f"all faults of the seed: PYTHONHASHSEED=0 FENCEPOST_SEED={result.seed} {command}",
        f"always run this seed: @fencepost.simulated(..., always=[{result.seed}])",
    ]
    small = None
    if kept is not None:
        small, last, effort, is_whole = replace(failure, happened=kept.happened), result, "", True
    elif failure.invariant in _TRIED_ONCE:
        again = run_apart(function, settings, result.seed, plan=result.plan, keep_rows=True)
        small, last, effort, is_whole = failure, again if again.failed else result, "", True
    else:
        further = repeats(function, settings, result)
        if len(further) == 1:
            small, last, effort, is_whole = _small(
                function, settings, failure, further[0], tries=tries, longest_s=longest_s
            )
            verdict = _verdict(last)
        if small is None:
            further += repeats(function, settings, result, runs=RUNS - len(further))
            last = next((each for each in further if each.failed), further[0])
    lines = [f"seed {result.seed} fails: {verdict}", ""]
    if small is None:
        lines += why_not_repeatable(result, further)
    else:
        lines += _fault_lines(last, small.happened, effort)
    lines += _happened(last)
    kept_at = ""
    try:
        pages = write_timelines(last.rows, folder, stem, verdict, last.names, taken={}, subtitle=_SUBTITLE)
        lines += ["", f"timeline: {', '.join(map(str, pages))}"]
        document = folder / f"{stem}.json"
        if small is not None:
            if kept is None or not document.exists():  # the versions are those of the first failure
                document.write_text(small.to_json())
            kept_at = str(document)
            commands.insert(0, f"run it again: PYTHONHASHSEED=0 FENCEPOST_FAILURE={document} {command}")
    except (OSError, FencepostError) as error:  # the report itself is worth more than its files
        lines += ["", f"the failure could not be kept in {folder.resolve()}: {error}"]
    lines += commands
    if last.trouble:
        lines += ["", last.trouble.rstrip()]
    return FailureReport(
        seed=result.seed,
        text=visible("\n".join(lines)),
        document=kept_at,
        is_whole=small is None or is_whole,
    )


def _cpu_s() -> float:
    """Return the CPU seconds of this process, and of those that it has forked."""
    return sum(os.times()[:4])


def _failure_of(
    function: WorldTest, settings: WorldSettings, result: WorldResult, happened: int | None
) -> WorldFailure:
    assert result.invariant is not None
    file = os.path.relpath(inspect.getfile(function))
    return WorldFailure(
        test=settings.scenario.name,
        module=function.__module__,
        file=str(Path(file).resolve()) if file.startswith("..") else file,
        name=function.__qualname__,
        seed=result.seed,
        invariant=result.invariant,
        where=result.where,
        happened=len(result.hits) if happened is None else happened,
        versions=versions(),
        plan=result.plan,
    )


def _happened(last: WorldResult) -> list[str]:
    """Return lines about what happened to the programs of a run."""
    lines = []
    for title, told in (
        (
            f"{crash_count([last.crashes])}, and they were started again:",
            crash_lines({last.seed: last.crashes}),
        ),
        (
            "Programs that each process imports anew, so that a restart takes longer:",
            [f"  {name}: {why}" for name, why in last.imported_anew.items()],
        ),
        ("Callbacks held event loops:", held_lines(last.held)),
        ("Sessions of running programs ended:", session_lines(last.rows, last.names, last.held)),
        ("Programs waited when the run failed:", last.waits),
    ):
        if told:
            lines += ["", title, *told]
    return lines


def _verdict(result: WorldResult) -> str:
    return "; ".join(f"{each.invariant}: {each.message}" for each in result.violations)


def _small(
    function: WorldTest,
    settings: WorldSettings,
    failure: WorldFailure,
    whole: WorldResult,
    *,
    tries: int,
    longest_s: float,
) -> tuple[WorldFailure | None, WorldResult, str, bool]:
    """Return a smaller failure, its run with the trace, the number of runs in words, and if it is the
    smallest. The failure is None if it does not occur again."""
    begin = _cpu_s()
    made, is_over = 1, False  # the run that has shown that it is repeatable

    def run(candidate: WorldFailure, _: int | None = None) -> WorldResult | None:
        nonlocal made, is_over
        if _cpu_s() - begin > longest_s:
            is_over = True
            return None  # what was found so far is small enough
        made += 1
        found = run_apart(function, settings, candidate.seed, plan=candidate.plan, until=candidate.invariant)
        if candidate.invariant.startswith(RAISED) and found.where != candidate.where:
            return None  # another failure of the same kind
        return found if any(each.invariant == candidate.invariant for each in found.violations) else None

    hit = _only_hits(failure, whole)
    if hit != failure:
        failure = failure if run(hit) is None else hit
    small, _ = shrink_plan(failure, run, tries=tries - made)
    last = run_apart(function, settings, small.seed, plan=small.plan, keep_rows=True)
    if last.failed and (hit := _only_hits(small, last)) != small and run(hit) is not None:
        small = hit
    more = f", within {longest_s:g} s: fencepost shrink may find fewer" if is_over else ""
    effort = f" ({made} run{'' if made == 1 else 's'}{more})"
    return (small if last.failed else None), last, effort, not is_over and made < tries


def _only_hits(failure: WorldFailure, result: WorldResult) -> WorldFailure:
    """Return a failure without the faults that had no target in its run."""
    entries = tuple(each for number, each in enumerate(result.plan.entries) if number in result.hits)
    return replace(failure, plan=replace(failure.plan, entries=entries))


def _fault_lines(last: WorldResult, happened: int, effort: str) -> list[str]:
    """Return the lines about the faults that are left, each with the program or broker that it affected."""
    faults = [(last.plan.entries[number], target) for number, target in sorted(last.hits.items())]
    if not faults:
        if not happened:
            return ["Without any fault: none happened with this seed."]
        return [f"Without any fault: none of the {happened} that happened with this seed is needed."]
    these = f"these {len(faults)} faults" if len(faults) > 1 else "this one fault"
    return [
        f"With {these}, of {happened} that happened with this seed{effort}:",
        *(f"  {_told(*each)}" for each in faults),
    ]


def _told(entry: PlannedEvent, target: str) -> str:
    parts = [f"{duration(entry.at_us / 1e6)}: {entry.kind}", target]
    if entry.lasts_us:
        parts.append(f"for {duration(entry.lasts_us / 1e6)}")
    return " ".join(filter(None, parts))
