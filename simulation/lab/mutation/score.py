"""The mutation score: all mutants, or a sample of them, fanned out by Spark."""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.analyses.comparison import share_interval
from fencepost.simulation.lab.mutation.allowed import allowed_because
from fencepost.simulation.lab.mutation.judge import (
    HealthyRun,
    Judgement,
    RunKey,
    healthy_runs,
    judge,
    runs_for,
    schedule,
)
from fencepost.simulation.mutants.automatic import CORES, AutomaticMutant, all_mutants
from fencepost.simulation.pipeline.jobs import run_job
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.session import (
    LOCAL,
    check_can_start,
    error_text,
    is_of_spark,
    spark_session,
)
from fencepost.simulation.scenarios.load import library_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS: Final = 100
"""Runs that each mutant gets."""
LEAST_SCORE: Final = 0.9
MOST_UNREACHED: Final = 0.1
_A_SLICE: Final = 4
"""Mutants that a Spark task judges."""
_A_BATCH: Final = 160
"""Mutants that a Spark job judges: an interrupt loses no more."""


class CoreScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one core, or of one module."""

    name: str
    mutants: int
    """Number of mutants in the code. The judged ones may be a sample."""
    judged: int
    unreached: int
    no_effect: int
    killed: int
    crashed: int
    allowed: int
    """Those that survived and that the protocol allows, see `ALLOWED`."""
    survived: int
    """Those that no judge reports although it should."""
    score: float | None
    """The share killed by a judge among those killed and survived; None if there are no such mutants."""
    score_low: float
    """The score of all mutants of the core lies between these, with 95 % confidence."""
    score_high: float


class JudgedMutants(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all judged mutants."""

    judgements: list[Judgement]
    left_out: list[str]
    """Runs in which the code as it is breaks an invariant, such as `steady, seed 3`: no mutant gets them."""


class MutationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores, survivors and unreached code."""

    seeds: int
    """Runs that each mutant got at most."""
    salt: str
    """The text with which the sample was drawn; empty for the first one."""
    reached: bool
    """True if every core reaches `LEAST_SCORE`, with at most `MOST_UNREACHED` of its mutants unreached."""
    cores: list[CoreScore]
    modules: list[CoreScore]
    survivors: list[Judgement]
    allowed: list[tuple[Judgement, str]]
    """Survivors that the protocol allows, each with the reason."""
    unreached: list[Judgement]
    left_out: list[str]
    """Runs in which the code as it is breaks an invariant."""


def chosen_mutants(
    sample: int | None = None, only: Iterable[str] = (), *, salt: str = ""
) -> list[AutomaticMutant]:
    """Return the mutants whose names begin with one of `only`; of each core at most `sample`.

    A sample is the same each time, unless `salt` differs.

    :raises FencepostError: if no mutant has such a name.
    """
    prefixes = tuple(only)
    found = [each for each in all_mutants() if not prefixes or each.name.startswith(prefixes)]
    if not found:
        raise FencepostError(
            f"no automatic mutant's name begins with {' or '.join(prefixes)}; expected a module, such as"
            " coordinator.consumer.heartbeat, or a name that `fencepost mutants --automatic` lists"
        )
    if sample is None:
        return found
    chosen = []
    for core in CORES:
        ranked = sorted((each for each in found if each.core == core), key=lambda each: _rank(each, salt))
        chosen += ranked[:sample]
    return sorted(chosen)


def _rank(mutant: AutomaticMutant, salt: str) -> bytes:
    return hashlib.blake2b(f"{salt}{mutant.name}".encode(), digest_size=8).digest()


def judge_all(
    mutants: Sequence[AutomaticMutant],
    *,
    seeds: int = SEEDS,
    scenarios: Sequence[str] = (),
    master: str = LOCAL,
    progress: Progress | None = None,
    judged: Callable[[JudgedMutants], None] = lambda _: None,
) -> JudgedMutants:
    """Judge mutants by at most `seeds` runs each of the scenarios, by default of the library.

    Call `judged` with all results so far after each batch, for programs that may be interrupted.

    :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
    """
    shown = progress or Progress()
    names = list(scenarios) or library_names()
    check_can_start(master)
    with spark_session(master, say=shown.say) as spark:
        keys = schedule(names, _rounds(seeds))
        healthy = list(_on_spark(spark, "healthy runs", _healthy, keys, shown, a_slice=40, a_batch=len(keys)))
        healthy.sort(key=lambda each: (each.seed, names.index(each.scenario)))
        sound = [each for each in healthy if not each.violations]
        found = JudgedMutants(
            judgements=[],
            left_out=[f"{each.scenario}, seed {each.seed}" for each in healthy if each.violations],
        )
        work = [(each, runs_for(each, sound, seeds)) for each in mutants]
        for judgement in _on_spark(
            spark, "mutants", _judged, work, shown, a_slice=_A_SLICE, a_batch=_A_BATCH
        ):
            found.judgements.append(judgement)
            judged(found)
    return found


def _rounds(seeds: int) -> int:
    """Return how many seeds the scenarios get, so that mutants that few of them reach have enough runs."""
    return max(1, -(-seeds // 4))


def _healthy(keys: Sequence[RunKey]) -> Iterator[HealthyRun]:
    yield from healthy_runs(keys)


def _judged(work: Sequence[tuple[AutomaticMutant, list[HealthyRun]]]) -> Iterator[Judgement]:
    for mutant, runs in work:
        yield judge(mutant, runs)


def _on_spark(
    spark: SparkSession,
    name: str,
    function: Callable[[Any], Iterator[Any]],
    items: Sequence[Any],
    progress: Progress,
    *,
    a_slice: int,
    a_batch: int,
) -> Iterator[Any]:
    """Apply the function to slices of the items on Spark, a job for each batch; yield results unordered."""
    with progress.step(name, len(items)) as advance:
        for start in range(0, len(items), a_batch):
            batch = items[start : start + a_batch]
            yield from _job(spark, name, function, batch, advance, slices=-(-len(batch) // a_slice))


def _job(
    spark: SparkSession,
    name: str,
    function: Callable[[Any], Iterator[Any]],
    items: Sequence[Any],
    advance: Callable[[int], None],
    *,
    slices: int,
) -> list[Any]:
    pieces = [pickle.dumps(items[start::slices]) for start in range(slices)]
    reported = 0

    def watch(done: int, total: int) -> None:
        nonlocal reported
        now = len(items) * done // total if total else 0
        advance(max(0, now - reported))
        reported = max(reported, now)

    def action() -> Any:
        rows = spark.createDataFrame([(piece,) for piece in pieces], "piece binary").repartition(slices)
        return rows.mapInArrow(functools.partial(_work, function), "result binary").collect()

    try:
        done = run_job(spark, name, action, watch)
    except Exception as error:
        if is_of_spark(error):
            raise EnvironmentLacks(f"the {name} stopped: {error_text(error)}") from error
        raise
    advance(len(items) - reported)
    return [pickle.loads(row.result) for row in done]


def _work(
    function: Callable[[Any], Iterator[Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for piece in batch.column(0).to_pylist():
            results = [pickle.dumps(result) for result in function(pickle.loads(piece))]
            yield pa.RecordBatch.from_pydict({"result": pa.array(results, pa.binary())})


def mutation_report(judged: JudgedMutants, seeds: int, *, salt: str = "") -> MutationReport:
    """Count judgements by core and by module."""
    judgements = judged.judgements
    cores = _scores(judgements, lambda mutant: mutant.core)
    survived = sorted(
        (each for each in judgements if each.verdict == "survived"), key=lambda each: each.mutant
    )
    reasons = [(each, allowed_because(each.mutant)) for each in survived]
    return MutationReport(
        seeds=seeds,
        salt=salt,
        reached=all(
            (each.score is None or each.score >= LEAST_SCORE)
            and each.unreached <= MOST_UNREACHED * each.judged
            for each in cores
        ),
        cores=cores,
        modules=_scores(judgements, lambda mutant: mutant.module),
        survivors=[each for each, reason in reasons if not reason],
        allowed=[(each, reason) for each, reason in reasons if reason],
        unreached=sorted(
            (each for each in judgements if each.verdict == "unreached"), key=lambda each: each.mutant
        ),
        left_out=judged.left_out,
    )


def _scores(judgements: Iterable[Judgement], by: Callable[[AutomaticMutant], str]) -> list[CoreScore]:
    all_of = Counter(by(mutant) for mutant in all_mutants())
    found: dict[str, Counter[str]] = {}
    for each in judgements:
        allowed = each.verdict == "survived" and allowed_because(each.mutant)
        found.setdefault(by(each.mutant), Counter())["allowed" if allowed else each.verdict] += 1
    return [_score(name, all_of[name], counts) for name, counts in sorted(found.items())]


def _score(name: str, mutants: int, counts: Counter[str]) -> CoreScore:
    changing = counts["killed"] + counts["survived"]
    low, high = share_interval(counts["killed"], changing)
    return CoreScore(
        name=name,
        mutants=mutants,
        judged=counts.total(),
        unreached=counts["unreached"],
        no_effect=counts["no-effect"],
        killed=counts["killed"],
        crashed=counts["crashed"],
        allowed=counts["allowed"],
        survived=counts["survived"],
        score=counts["killed"] / changing if changing else None,
        score_low=low,
        score_high=high,
    )
