"""`fencepost replay` and `fencepost shrink`: run a failure again, and make it small."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Count, Json, writable_files
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.runs import RunFiles, length
from fencepost.simulation.cli.simulate import play, print_run, write_report
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.failures.case import pytest_case, test_name
from fencepost.simulation.failures.failure import read_failure, test_of_world
from fencepost.simulation.failures.shrink import TRIES
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.mutants.registry import with_mutant
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.whole_files import write_whole

if TYPE_CHECKING:
    from fencepost.simulation.failures.failure import Failure
    from fencepost.simulation.failures.shrink import Shrunk


def replay(
    failure: Annotated[Path, Parameter(help="A file that simulate --failure, shrink or a campaign wrote.")],
    /,
    *,
    outputs: RunFiles = RunFiles(),
    json: Json = False,
) -> int:
    """Replay a failed run exactly, with the current code. Exit code 1: it still fails."""
    found = read_failure(failure)
    writable_files({"--trace": outputs.trace, "--report": outputs.report}, read=failure)
    configure_logs()
    command = shlex.join(["fencepost", "replay", str(failure)])
    scenario = found.loaded()
    with with_mutant(found.mutant):
        result, rows = play(scenario, found.seed, outputs, progress_for(json=json), plan=found.plan)
    print_result(result, print_run, scenario, [f"Again:  {command}", *outputs.lines], json=json)
    write_report(result, rows, outputs.report, command)
    return 1 if result.violations else 0


def shrink(
    failure: Annotated[
        Path,
        Parameter(help="A file that simulate --failure, a campaign or a test in a simulated world wrote."),
    ],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="The file for the small failure. Default: NAME-small.json next to FAILURE."),
    ] = None,
    test: Annotated[
        Path | None, Parameter(help="The file for a pytest test of it. Default: test_….py next to FAILURE.")
    ] = None,
    tries: Annotated[Count, Parameter(help="The limit on runs.")] = TRIES,
    json: Json = False,
) -> int:
    """Shrink a failed run to the fewest disturbances, members and partitions that fail in the same way."""
    from fencepost.simulation.failures.shrink import shrink as make_small

    small = failure.with_name(f"{failure.stem}-small.json")
    if test_of_world(failure):
        if test is not None:
            raise FencepostError(f"--test: {failure} is a failure of a test, which runs it again by itself")
        return _shrink_world(failure, _free(out, small, "--out"), tries, json=json)
    found = read_failure(failure)
    out = _free(out, small, "--out")
    test = _free(test, failure.with_name(f"{test_name(found)}.py"), "--test")
    writable_files({"--out": out, "--test": test}, read=failure)
    configure_logs()
    with progress_for(json=json).step("shrinking", tries) as advance:
        shrunk = make_small(found, tries=tries, progress=advance)
    write_whole(out, shrunk.after.to_json() + "\n")
    write_whole(test, pytest_case(shrunk.after))
    print_result(_summary(shrunk, out, test), _print, shrunk, json=json)
    return 0


def _shrink_world(failure: Path, out: Path, tries: int, *, json: bool) -> int:
    """Make the failure of a test in a simulated world smaller."""
    from fencepost.simulation.world.smaller import make_smaller

    writable_files({"--out": out}, read=failure)
    made = make_smaller(failure, out, tries)
    before, after = (len(each.plan.entries) for each in (made.before, made.after))
    result = WorldShrinkResult(
        test=made.after.test,
        seed=made.after.seed,
        invariant=made.after.invariant,
        faults_before=before,
        faults_after=after,
        whole=made.is_whole,
        out=str(out),
    )
    lines = [f"{before} faults before, {after} now\n\n{made.text}"]
    if not made.is_whole:
        lines.append(f"\n{tries:,} runs were not enough: --tries allows more")
    print_result(result, lambda _: Terminal().say("\n".join(lines)), json=json)
    return 0


class WorldShrinkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `shrink --json` for a failure of a simulated world."""

    test: str
    seed: int
    invariant: str
    faults_before: int
    faults_after: int
    whole: bool
    """True if nothing more could be left out; false if the limit on runs was reached first."""
    out: str


def _free(chosen: Path | None, usual: Path, option: str) -> Path:
    """Return the path to write to: the chosen one, else the usual name, unless that file exists."""
    path = usual if chosen is None else chosen
    if chosen is None and path.exists():
        raise FencepostError(f"{path}: already exists: name another file with {option}, or remove it")
    return path


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a failure."""

    disturbances: int
    members: int
    partitions: int
    virtual_seconds: float


class ShrinkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `shrink --json`."""

    scenario: str
    seed: int
    invariant: str
    before: Size
    after: Size
    tries: int
    """Number of runs that it took."""
    whole: bool
    """True if nothing more could be left out; false if the limit on runs was reached first."""
    violations: list[Violation]
    out: str
    test: str


def _size(failure: Failure) -> Size:
    scenario = failure.loaded()
    return Size(
        disturbances=len(failure.plan.entries),
        members=scenario.group.members,
        partitions=scenario.partitions,
        virtual_seconds=failure.plan.end_us / 1e6,
    )


def _summary(shrunk: Shrunk, out: Path, test: Path) -> ShrinkResult:
    return ShrinkResult(
        scenario=shrunk.after.name,
        seed=shrunk.after.seed,
        invariant=shrunk.after.invariant,
        before=_size(shrunk.before),
        after=_size(shrunk.after),
        tries=shrunk.tries,
        whole=shrunk.whole,
        violations=shrunk.result.violations,
        out=str(out),
        test=str(test),
    )


def _print(result: ShrinkResult, shrunk: Shrunk) -> None:
    terminal = Terminal()
    after, before, small = shrunk.after, result.before, result.after
    terminal.say(Text(f"{after.invariant} in {after.name}, seed {after.seed}", style="bold"))
    terminal.say()
    rows = [
        (name, f"{getattr(before, name):,}", f"{getattr(small, name):,}")
        for name in ("disturbances", "members", "partitions")
    ]
    rows.append(("virtual time", length(before.virtual_seconds), length(small.virtual_seconds)))
    terminal.table(("", "before", "after"), rows)
    if after.plan.entries:
        terminal.say()
        table = [
            (
                f"{entry.at_us / 1e6:,.3f} s",
                entry.kind.value,
                f"{entry.member}" if entry.member < small.members else "one of them",
                f"{entry.lasts_us / 1e6:,.3f} s" if entry.lasts_us else "",
            )
            for entry in after.plan.entries
        ]
        terminal.table(("at", "what happens", "to member", "lasts"), table)
    violation = next(v for v in shrunk.result.violations if v.invariant == after.invariant)
    terminal.say()
    terminal.say(violation.message)
    terminal.say()
    if not shrunk.whole:
        terminal.say(Text(f"{shrunk.tries:,} runs were not enough: --tries allows more", "yellow"))
    terminal.say(f"Again:  {shlex.join(['fencepost', 'replay', result.out])}")
    terminal.say(f"Test:   {result.test}")
