"""`fencepost mutants`: puts known bugs back, or changes the cores in small ways, to test the judges."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Count, Json, given_options, only_with, writable_file
from fencepost.simulation.cli.completion import mutant_names
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.session import LOCAL
from fencepost.simulation.pipeline.tasks import parse_seeds

if TYPE_CHECKING:
    from fencepost.simulation.lab.hunt import MutantResult
    from fencepost.simulation.lab.mutation.score import MutationReport

_HUNTED = "20"
"""Seeds of known bugs."""
_SHOWN_SURVIVORS = 40


@Parameter(name="*")
@dataclass(frozen=True)
class Sampling:
    """The choice of automatic mutants to judge."""

    sample: Annotated[
        Count | None,
        Parameter(help="Number of automatic mutants of each core. Default: all, which takes hours."),
    ] = None
    salt: str = ""
    """With --sample: any text; a different text draws a different sample."""


@Parameter(name="*")
@dataclass(frozen=True)
class MatrixQuery:
    """A question to a kill matrix."""

    compare: Path | None = None
    """With --matrix: do not run; show what that file's judge misses next to this one's."""
    without: tuple[str, ...] = ()
    """With --matrix: do not run; show what is missed without rules whose names begin so."""


def mutants(
    *names: Annotated[
        str,
        Parameter(
            help="Mutants by name. Default: all. With --automatic: prefixes of module names.",
            completer=mutant_names,
        ),
    ],
    seeds: Annotated[
        str | None,
        Parameter(
            help="A number of seeds (from 0 on), a range 10..29, or a list 1,5,9. Default: 20. With "
            "--automatic: the limit on runs of each mutant. Default: 100."
        ),
    ] = None,
    whole: Annotated[
        bool, Parameter(help="Run every seed to its end. Default: stop at three seeds that show the bug.")
    ] = False,
    list_: Annotated[bool, Parameter(name="--list", help="List the mutants without running them.")] = False,
    automatic: Annotated[
        bool, Parameter(help="Change the cores in one place at a time, and count what the judges notice.")
    ] = False,
    sampling: Sampling = Sampling(),
    matrix: Annotated[
        Path | None,
        Parameter(help="Write to this file which rule reports which mutant in which runs. Takes an hour."),
    ] = None,
    query: MatrixQuery = MatrixQuery(),
    page: Annotated[
        Path | None, Parameter(help="Write the score and the survivors as Markdown to this file.")
    ] = None,
    master: Annotated[str, Parameter(help="Spark's master, for --automatic.")] = LOCAL,
    json: Json = False,
) -> int:
    """Test the judges: put known bugs back one at a time, and report which of them a judge catches.

    Every seed runs with the bug and without it, on all cores. A mutant is caught if healthy code passes, and
    if a judge that is meant to see the bug reports it in at least a tenth of the seeds.

    With --automatic, mutants are thousands of small changes to the code of the coordinator and of the
    members. A core's score is the share that a judge kills, out of the mutants that change what runs do.
    Exit code 1: a mutant was missed, a core scored below 90 %, or over a tenth of a core's mutants were
    never reached.
    """
    configure_logs()
    if matrix is not None:
        return _matrix(matrix, query, json=json)
    only_with("--matrix", *given_options(query))
    if automatic:
        only_with("no --automatic", *["--whole"] * whole)
        if sampling.sample is None:
            only_with("--sample", *given_options(sampling))
        return _automatic(names, seeds, sampling, page, master, only_list=list_, json=json)
    others = {"--page": page is not None, "--master": master != LOCAL}
    only_with("--automatic", *given_options(sampling), *(name for name, given in others.items() if given))
    return _hunt(names, seeds or _HUNTED, whole=whole, only_list=list_, json=json)


def _matrix(path: Path, query: MatrixQuery, *, json: bool) -> int:
    from fencepost.simulation.lab.mutation import matrix
    from fencepost.simulation.world.spread import child_count

    if query == MatrixQuery():
        writable_file(path, "--matrix")
        with progress_for(json=json, lines=True).step("matrix", matrix.row_count()) as advance:
            matrix.make_matrix(path, progress=advance, processes=child_count(None, matrix.row_count()))
        return 0
    rows = matrix.read_matrix(path)
    after = rows if query.compare is None else matrix.read_matrix(query.compare)
    found = list(matrix.differences(rows, matrix.without(after, query.without) if query.without else after))
    headings = ("name", "judge", "what", "before", "after", "no longer reported, or new")
    blind = {True: "of real runs", False: ""}
    cells = (
        (one.name, blind[one.blind], one.what, f"{one.before}", f"{one.after}", ", ".join(one.by))
        for one in found
    )
    print_result(found, lambda _: Terminal().table(headings, cells), json=json)
    return 1 if found else 0


def _hunt(names: Sequence[str], seeds: str, *, whole: bool, only_list: bool, json: bool) -> int:
    from fencepost.simulation.lab.hunt import ENOUGH, hunt_all
    from fencepost.simulation.mutants.registry import MUTANTS, known_names
    from fencepost.simulation.world.spread import child_count

    chosen = known_names(names)
    if only_list:
        keys = ("bug", "summary", "scenarios", "expected")
        listed = {name: {key: getattr(MUTANTS[name], key) for key in keys} for name in chosen}
        rows = ((name, one["bug"], one["summary"]) for name, one in listed.items())
        headings = ("mutant", "known from", "the bug")
        print_result(listed, lambda _: Terminal().table(headings, rows), json=json)
        return 0
    which = parse_seeds(seeds, "--seeds")
    results: dict[str, MutantResult] = {}
    interrupted = False
    try:
        with progress_for(json=json, lines=True).step("hunting", len(chosen)) as advance:

            def keep(result: MutantResult) -> None:
                results[result.mutant] = result
                advance(1)

            hunt_all(
                which,
                names=chosen,
                enough=None if whole else ENOUGH,
                processes=child_count(None, len(chosen)),
                hunted=keep,
            )
    except KeyboardInterrupt:
        interrupted = True
    results = {name: results[name] for name in chosen if name in results}
    print_result(results, _print, json=json)
    if interrupted:
        sys.stderr.write(f"interrupted: {len(results)} of {len(chosen)} mutants were hunted\n")
        raise KeyboardInterrupt  # the exit code says that this is not all
    return 0 if all(result.caught for result in results.values()) else 1


def _print(results: Mapping[str, MutantResult]) -> None:
    from fencepost.simulation.mutants.registry import MUTANTS

    out = Terminal()
    rows = []
    for name, result in results.items():
        caught = Text("caught", "green") if result.caught else Text("missed", "red")
        if not result.healthy:
            caught = Text("healthy code fails too", "red")
        elif result.hits and not result.caught:
            caught = Text("too seldom", "red")
        interval = f"{result.share_low:.0%} to {result.share_high:.0%} of all seeds"
        share = f"{result.hits} of {result.seeds} ({interval})"
        rows.append((name, caught, share, ", ".join(result.by), MUTANTS[name].summary))
    out.table(("mutant", "verdict", "seeds that show it", "by", "the bug"), rows)


def _automatic(
    names: Sequence[str],
    seeds: str | None,
    sampling: Sampling,
    page: Path | None,
    master: str,
    *,
    only_list: bool,
    json: bool,
) -> int:
    from fencepost.simulation.lab.mutation.page import mutation_page
    from fencepost.simulation.lab.mutation.score import (
        SEEDS,
        JudgedMutants,
        chosen_mutants,
        judge_all,
        mutation_report,
    )

    chosen = chosen_mutants(sampling.sample, names, salt=sampling.salt)
    if only_list:
        rows = ((each.name, each.operator, f"{each.before} → {each.after}") for each in chosen)
        headings = ("mutant", "operator", "change")
        print_result(chosen, lambda _: Terminal().table(headings, rows), json=json)
        return 0
    most = SEEDS if seeds is None else _count(seeds)
    writable_file(page, "--page")
    judged = JudgedMutants(judgements=[], left_out=[])

    def keep(so_far: JudgedMutants) -> None:
        nonlocal judged
        judged = so_far

    interrupted = False
    try:
        progress = progress_for(json=json, lines=True)
        judge_all(chosen, seeds=most, master=master, progress=progress, judged=keep)
    except KeyboardInterrupt:
        interrupted = True
    report = mutation_report(judged, most, salt=sampling.salt)
    if page is not None and not interrupted:  # the page names the command that renews it
        page.write_text(mutation_page(report), encoding="utf-8")
    if json or judged.judgements:
        print_result(report, _print_score, json=json)
    if interrupted:
        sys.stderr.write(f"interrupted: {len(judged.judgements)} of {len(chosen)} mutants were judged\n")
        if page is not None:
            sys.stderr.write(f"{page} is unchanged\n")
        raise KeyboardInterrupt  # the exit code says that this is not all
    return 0 if report.reached else 1


def _count(seeds: str) -> int:
    if not seeds.isascii() or not seeds.isdigit() or int(seeds) < 1:
        raise FencepostError(
            f"--seeds {seeds}: expected a limit on runs of each automatic mutant, at least 1"
        )
    return int(seeds)


def _print_score(report: MutationReport) -> None:
    from fencepost.simulation.lab.mutation.page import SCORE_COLUMNS, score_row

    out = Terminal()
    out.table(SCORE_COLUMNS, [score_row(score) for score in report.cores])
    if report.left_out:
        out.print(f"\nNot used, because healthy code breaks an invariant there: {'; '.join(report.left_out)}")
    survivors = [
        (each.mutant.name, f"{each.mutant.before} → {each.mutant.after}") for each in report.survivors
    ]
    if survivors:
        out.print(
            f"\n{len(survivors)} survived. Put one back with: fencepost simulate SCENARIO --mutant NAME"
        )
        out.table(("survivor", "change"), survivors[:_SHOWN_SURVIVORS])
    if len(survivors) > _SHOWN_SURVIVORS:
        out.print(f"and {len(survivors) - _SHOWN_SURVIVORS} more: --json or --page has them all")
