"""A run that violated an invariant, as one JSON document with everything that is needed to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.faults.fitting import misfit
from fencepost.simulation.faults.plan import FaultPlan
from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.mutants.registry import check_mutant, with_mutant
from fencepost.simulation.run import RunResult, plan_of, run
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import loads, read
from fencepost.simulation.trace.rows import TraceSink

FORMAT: Final = 1


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario, a seed, and the plan of the run. It depends on no other file."""

    fencepost: Annotated[int, Meta(ge=FORMAT, le=FORMAT)] = FORMAT
    """The version of this format."""
    name: str
    scenario: str
    """The scenario's file, as TOML."""
    overrides: tuple[str, ...] = ()
    """Settings, as `--set` takes them."""
    partitions: Annotated[int, Meta(ge=1)] | None = None
    """Total number of partitions, shared among the topics; None leaves the scenario unchanged."""
    seed: Annotated[int, Meta(ge=0)]
    plan: FaultPlan
    """The plan of the run: its disturbances, with their times and targets."""
    invariant: str
    """The invariant that was violated first, or RAISED and the type of the exception that ended the run."""
    mutant: str = ""
    """The known bug that was put back for this run, if any."""

    def loaded(self) -> AnyScenario:
        """Return the scenario.

        :raises FencepostError: if something in it is wrong.
        """
        return loads(
            self.scenario,
            source=self.name,
            name=self.name,
            overrides=self.overrides,
            partitions=self.partitions,
        )

    def to_json(self) -> str:
        """Return the JSON document, as `read_failure` and `replay` take it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


def failure_of(
    source: str | Path,
    seed: int,
    invariant: str,
    *,
    overrides: Iterable[str] = (),
    partitions: int | None = None,
    mutant: str = "",
) -> Failure:
    """Return the failure of a seed of a scenario; `source` names the scenario as for `load`.

    :raises FencepostError: if there is no such scenario, or something in it is wrong.
    """
    path, text = read(source)
    found = tuple(overrides)
    scenario = loads(text, source=str(path), name=path.stem, overrides=found, partitions=partitions)
    return Failure(
        name=scenario.name,
        scenario=text,
        overrides=found,
        partitions=partitions,
        seed=seed,
        plan=plan_of(scenario, seed),
        invariant=invariant,
        mutant=mutant,
    )


class _Version(msgspec.Struct):
    fencepost: int = FORMAT
    test: str = ""
    """The name of a test, in a failure of a simulated world."""


def test_of_world(path: Path) -> str:
    """Return the name of the test if a file has a failure of a simulated world, else nothing."""
    try:
        return msgspec.json.decode(read_file(path), type=_Version).test
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def decode(text: str | bytes, source: str = "<text>") -> Failure:
    """Return a failure from its JSON document; `source` names the document in error messages.

    :raises FencepostError: if it is not a failure (with the wrong key), or if a newer fencepost wrote it.
    """
    try:
        begin = msgspec.json.decode(text, type=_Version)
        if begin.test:
            raise FencepostError(
                f"{source}: is a failure of the test {begin.test} in a simulated world; run it with "
                f"PYTHONHASHSEED=0 FENCEPOST_FAILURE={source} python -m pytest -k {begin.test}"
            )
        if (version := begin.fencepost) > FORMAT:
            raise FencepostError(
                f"{source}: was written by a newer fencepost, in version {version} of the format, and this"
                f" one knows {FORMAT}: upgrade fencepost"
            )
        failure = msgspec.json.decode(text, type=Failure)
    except msgspec.ValidationError as error:
        raise FencepostError(f"{source}: not a failure that fencepost wrote: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FencepostError(
            f"{source}: not JSON: {error}; expected what simulate --failure, shrink or a campaign wrote"
        ) from None
    if failure.mutant:
        try:
            check_mutant(failure.mutant)
        except FencepostError as error:
            raise FencepostError(f"{source}: {error}") from None
    if failure.invariant not in INVARIANTS and not failure.invariant.startswith(RAISED):
        hint = suggestion(
            failure.invariant,
            INVARIANTS,
            "the names are those of the column `invariant` in a run's violations",
        )
        raise FencepostError(f"{source}: there is no invariant {failure.invariant}; {hint}")
    try:
        scenario = failure.loaded()
    except FencepostError as error:
        raise FencepostError(f"{source}: its scenario {error}") from None
    if wrong := misfit(failure.plan, scenario):
        raise FencepostError(f"{source}: {wrong}")
    return failure


def read_failure(path: str | Path) -> Failure:
    """Return a failure from a file.

    :raises FencepostError: if it can't be read, or is not a failure.
    """
    return decode(read_file(Path(path)), str(path))


def replay(
    failure: Failure | str,
    *,
    trace: TraceSink | None = None,
    progress: Callable[[float], None] | None = None,
    max_events: int | None = None,
    raises: bool = True,
) -> RunResult:
    """Run a failure again with the current code: a `Failure`, or its JSON document. Without violations, it is
    fixed.

    The caller closes the trace. `raises` is as for `run`.

    :raises FencepostError: if the document is not a failure.
    :raises TooManyEvents: if it takes more than `max_events` steps of the loop.
    """
    if isinstance(failure, str):
        failure = decode(failure)
    with with_mutant(failure.mutant):
        return run(
            failure.loaded(),
            failure.seed,
            plan=failure.plan,
            trace=trace,
            progress=progress,
            max_events=max_events,
            raises=raises,
        )
