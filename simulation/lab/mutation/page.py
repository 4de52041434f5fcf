"""The mutation score as a page of the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.simulation.lab.mutation.judge import Judgement
from fencepost.simulation.lab.mutation.score import (
    LEAST_SCORE,
    MOST_UNREACHED,
    SEEDS,
    CoreScore,
    MutationReport,
)

SCORE_COLUMNS: Final = (
    "core",
    "mutants",
    "judged",
    "unreached",
    "no effect",
    "crashed",
    "killed",
    "allowed",
    "survived",
    "score",
)

_HEAD: Final = """# Mutation score

The mutation score says how many random bugs the judges report. Read it to learn which code no judge
judges yet. This command runs the measurement and writes this page:

```
fencepost mutants --automatic{options} --page docs/mutation.md
```

A mutant is one change of one place in the coordinator or the members. The change negates a comparison,
halves a constant, drops a statement, a record or an effect, swaps branches, or returns early. The command
runs the library's scenarios with each mutant and looks for violations.

| term | meaning |
|---|---|
| core | A group of modules: one kind of group, the offsets and transactions, or the members. |
| judged | Mutants in the sample. |
| unreached | No run of the library reaches the changed statement. |
| no effect | Every run has the digest of the healthy code. |
| crashed | Runs end with an exception, do not end, or differ for the same seed. That needs no judge. |
| killed | A judge reports a violation. |
| allowed | Digests differ, no judge reports a violation, and the protocol allows the change. |
| survived | Digests differ, and no judge reports a violation although one should. |
| score | Killed mutants divided by killed and survived ones, with the 95 % interval of the sample. |

Each mutant got at most {seeds} runs that reach it. A core should have a score of at least {least:.0%}, and
at most {most:.0%} unreached mutants.
"""


def score_row(score: CoreScore) -> tuple[str, ...]:
    """Return the cells of a core or a module, in the order of `SCORE_COLUMNS`."""
    value = (
        "-" if score.score is None else f"{score.score:.0%} ({score.score_low:.0%} to {score.score_high:.0%})"
    )
    counts = (
        score.mutants,
        score.judged,
        score.unreached,
        score.no_effect,
        score.crashed,
        score.killed,
        score.allowed,
        score.survived,
    )
    return (score.name, *(f"{count:,}" for count in counts), value)


def mutation_page(report: MutationReport) -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: MutationReport) -> Iterator[str]:
    judged = sum(core.judged for core in report.cores)
    whole = sum(core.mutants for core in report.cores) == judged
    options = "" if whole else f" --sample {max(core.judged for core in report.cores)}"
    if report.salt:
        options += f" --salt {report.salt}"
    if report.seeds != SEEDS:
        options += f" --seeds {report.seeds}"
    yield _HEAD.format(options=options, seeds=report.seeds, least=LEAST_SCORE, most=MOST_UNREACHED)
    if report.left_out:
        yield (
            "These runs were left out, because the healthy code breaks an invariant in them:"
            f" {'; '.join(report.left_out)}.\n"
        )
    yield "## By core\n"
    yield from _table(SCORE_COLUMNS, (score_row(each) for each in report.cores))
    yield "\n## By module\n"
    yield from _table(("module", *SCORE_COLUMNS[1:]), (score_row(each) for each in report.modules))
    yield "\n## Survivors\n"
    if report.survivors:
        yield "Each survivor needs a new judge, or a proof that the protocol allows the change.\n"
        yield from _table(("mutant", "change", "runs changed", "seen in"), map(_survivor, report.survivors))
    else:
        yield "No mutant survived."
    yield "\n## Allowed\n"
    rows = ((*_survivor(each)[:2], reason) for each, reason in report.allowed)
    yield from _table(("mutant", "change", "why"), rows)
    yield "\n## Unreached\n"
    names = sorted({f"{each.mutant.module}:{each.mutant.function}" for each in report.unreached})
    yield (
        "Each of these functions has a statement that no scenario of the library reaches: "
        + ", ".join(f"`{name}`" for name in names)
        + "."
    )


def _survivor(each: Judgement) -> tuple[str, str, str, str]:
    change = f"`{_cell(each.mutant.before)}` → `{_cell(each.mutant.after)}`"
    seen = f"`{each.scenario}`, seed {each.seed}"
    return f"`{each.mutant.name}`", change, f"{each.changed} of {each.runs}", seen


_MOST_TEXT: Final = 90


def _cell(text: str) -> str:
    short = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 2]} …"
    return short.replace("|", "\\|").replace("`", "'")


def _table(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    names = tuple(columns)
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(row)} |"
