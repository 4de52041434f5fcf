"""What a campaign runs: the grid of scenarios, parameters and seeds, and the names of its runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import load_any

_OPTIONS = ("members", "partitions", "duration")
"""Parameters that `simulate` has options for; all others are keys of `--set`."""


class Cell(msgspec.Struct, frozen=True):
    """One scenario under one choice of parameters: everything that its runs share but the seed."""

    name: str
    source: str
    """How the user named it: a name of the library, or a file."""
    parameters: dict[str, str]
    scenario: AnyScenario

    @property
    def prefix(self) -> str:
        """The run ids' common part: the scenario's name, and a digest of the parameters if there are any."""
        if not self.parameters:
            return self.name
        text = json.dumps(self.parameters, sort_keys=True)
        return f"{self.name}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"

    @property
    def fingerprint(self) -> str:
        """Differs when the scenario says something else."""
        return hashlib.blake2b(repr(self.scenario).encode(), digest_size=16).hexdigest()

    def run_id(self, seed: int) -> str:
        """The name of one run, such as rolling-deploy-000017."""
        return f"{self.prefix}-{seed:06d}"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its parameters but the number of partitions, as `--set` takes them."""
        keys = {"members": "group.members"}
        return tuple(
            f"{keys.get(key, key)}={value}" for key, value in self.parameters.items() if key != "partitions"
        )

    @property
    def partitions(self) -> int | None:
        """How many partitions its parameters ask for in all, if they do."""
        return int(self.parameters["partitions"]) if "partitions" in self.parameters else None

    def command(self, seed: int) -> str:
        """The command that repeats one run."""
        return simulate_command(self.source, self.parameters, seed)


def simulate_command(source: str, parameters: Mapping[str, str], seed: int) -> str:
    """`fencepost simulate` with these parameters, for a shell."""
    words = ["fencepost", "simulate", source, "--seed", str(seed)]
    for key, value in parameters.items():
        words += [f"--{key}", value] if key in _OPTIONS else ["--set", f"{key}={value}"]
    return shlex.join(words)


def parse_grid(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The values of each parameter, from words such as `members=10,50`.

    :raises FencepostError: if a word has another form, or a key comes twice.
    """
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, rest = (part.strip() for part in word.partition("="))
        values = tuple(value.strip() for value in rest.split(","))
        if not equals or not key or not all(values):
            raise FencepostError(f"--grid {word}: expected KEY=A,B such as group.members=10,50")
        if key in grid:
            raise FencepostError(f"--grid {word}: {key} is there twice; give all its values at once")
        if len(set(values)) < len(values):
            raise FencepostError(f"--grid {word}: a value is there twice")
        grid[key] = values
    return grid


def cells_of(scenarios: Sequence[str], grid: Mapping[str, Sequence[str]]) -> tuple[Cell, ...]:
    """Every scenario under every choice of parameters.

    :raises FencepostError: if a scenario or a parameter is wrong, or two scenarios have one name.
    """
    cells = []
    sources: dict[str, str] = {}
    for source in scenarios:
        for values in itertools.product(*grid.values()):
            parameters = dict(zip(grid, values, strict=True))
            scenario = _load(source, parameters)
            if sources.setdefault(scenario.name, source) != source:
                raise FencepostError(
                    f"{source}: its name {scenario.name} is that of {sources[scenario.name]} too"
                )
            cells.append(Cell(scenario.name, source, parameters, scenario))
    by_prefix: dict[str, Cell] = {}
    for cell in cells:
        if by_prefix.setdefault(cell.prefix, cell) is not cell:
            raise FencepostError(f"{cell.source}: the scenario is there twice")
    return tuple(cells)


def _load(source: str, parameters: Mapping[str, str]) -> AnyScenario:
    counts = {key: _count(key, parameters[key]) for key in ("members", "partitions") if key in parameters}
    return load_any(
        source,
        overrides=[f"{key}={value}" for key, value in parameters.items() if key not in _OPTIONS],
        members=counts.get("members"),
        partitions=counts.get("partitions"),
        duration=parameters.get("duration"),
        option="--grid",
    )


def _count(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise FencepostError(f"--grid {key}={value}: expected a number from 1")
    return int(value)


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run to do: the cell's number, the seed, and whether its trace is kept in any case."""

    cell: int
    seed: int
    traced: bool


def tasks_of(
    cells: Sequence[Cell], seeds: Sequence[int], finished: frozenset[str], always_traced: int
) -> Iterator[Task]:
    """What is left to do, seed by seed, so that all cells advance together.

    Traces of the first `always_traced` seeds of a cell are kept.
    """
    for position, seed in enumerate(seeds):
        for number, cell in enumerate(cells):
            if cell.run_id(seed) not in finished:
                yield Task(number, seed, position < always_traced)


def dealt(tasks: Sequence[Task], hands: int) -> list[Task]:
    """Tasks in such an order that `hands` equal slices of it each have a bit of everything."""
    return [task for hand in range(hands) for task in tasks[hand::hands]]
