"""The runs of a campaign: the grid of scenarios, parameters and seeds, and the names of its runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, get_args

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.catalogue import NO_MUTANT
from fencepost.simulation.mutants.registry import check_mutant
from fencepost.simulation.pipeline.arguments import hint
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.load import load_any

MUTANT: Final = "mutant"
"""The setting that puts a known bug back, by its name."""

_OPTIONS = ("members", "partitions", "duration", MUTANT)
"""Settings with their own options of `simulate`; all others are keys of `--set`."""

_KEYS = tuple(dict.fromkeys(key for kind in get_args(AnyScenario) for key in kind.__struct_fields__))
"""Keys that a scenario may have."""

OPTION = "option"
"""The parameter that holds an option's name."""

_SEEDS = re.compile(r"(\d+)|(\d+)\s*\.\.\s*(\d+)|(\d+(?:\s*,\s*\d+)+)")


class CampaignCell(msgspec.Struct, frozen=True):
    """One scenario under one choice of parameters: everything that its runs share except the seed."""

    name: str
    source: str
    """The scenario as the user named it: a name of the library, or a file."""
    parameters: dict[str, str]
    """The parameters that distinguish it from other cells of its scenario."""
    settings: dict[str, str]
    """All settings that differ from the scenario's file, by the key that `simulate --set` takes."""
    scenario: AnyScenario

    @property
    def prefix(self) -> str:
        """The common part of its run ids: the scenario's name, and a digest of the parameters if there are
        any."""
        if not self.settings:
            return self.name
        text = json.dumps(self.settings | self.parameters, sort_keys=True)
        return f"{self.name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever the scenario changes."""
        return hashlib.blake2b(repr(self.scenario).encode(), digest_size=16).hexdigest()

    def run_id(self, seed: int) -> str:
        """Return the name of one run, such as rolling-deploy-000017."""
        return f"{self.prefix}-{seed:06d}"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its settings except the number of partitions, as `--set` takes them."""
        keys = {"members": "group.members"}
        return tuple(
            f"{keys.get(key, key)}={value}"
            for key, value in self.settings.items()
            if key not in ("partitions", MUTANT)
        )

    @property
    def partitions(self) -> int | None:
        """Total number of partitions in its settings, if they set one."""
        return int(self.settings["partitions"]) if "partitions" in self.settings else None

    @property
    def mutant(self) -> str:
        """The mutant of its runs; empty if they have none."""
        name = self.settings.get(MUTANT, NO_MUTANT)
        return "" if name == NO_MUTANT else name

    def command(self, seed: int) -> str:
        """Return the command that repeats one run."""
        return simulate_command(self.source, self.settings, seed)


def simulate_command(source: str, settings: Mapping[str, str], seed: int) -> str:
    """Return `fencepost simulate` with these settings, for a shell."""
    words = ["fencepost", "simulate", source, "--seed", str(seed)]
    for key, value in settings.items():
        if (key, value) == (MUTANT, NO_MUTANT):
            continue
        words += [f"--{key}", value] if key in _OPTIONS else ["--set", f"{key}={value}"]
    return shlex.join(words)


def parse_grid(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each parameter, from words such as `members=10,50`.

    :raises FencepostError: if a word has another form, or a key appears twice.
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


MOST_SEEDS: Final = 1_000_000
"""The limit on seeds: more of them are a typing error."""


def parse_seeds(text: str, shown: str = "seeds") -> tuple[int, ...]:
    """Return the seeds of a number (`100`: from 0 on), a range (`10..29`), or a list (`1,5,9`).

    :raises FencepostError: if it is none of these, or gives no seeds.
    """
    match = _SEEDS.fullmatch(text.strip())
    if match is None:
        raise FencepostError(f"{shown} {text}: expected seeds: 100 (from 0 on), 10..29, or 1,5,9")
    count, first, last, listed = match.groups()
    if count is not None:
        seeds: Iterable[int] = range(int(count))
    elif listed is not None:
        seeds = (int(each) for each in listed.split(","))
    else:
        seeds = range(int(first), int(last) + 1)
        if not seeds:
            raise FencepostError(f"{shown} {text}: expected the smaller one first")
    return checked_seeds(seeds, f"{shown} {text}")


def seeds_of(seeds: int | str | Iterable[int]) -> tuple[int, ...]:
    """Return the seeds of a program or a file: a number of seeds, the seeds themselves, or a text as on the
    command line.

    :raises FencepostError: as `checked_seeds` does, or if they have another type.
    """
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return checked_seeds(range(seeds))
    if isinstance(seeds, bytes | Mapping) or not isinstance(seeds, Iterable):
        raise FencepostError(f"seeds={seeds!r}: expected seeds: 100 (from 0 on), '10..29', or [1, 5, 9]")
    return checked_seeds(seeds)


def checked_seeds(seeds: Iterable[int], shown: str = "seeds") -> tuple[int, ...]:
    """Return the seeds, checked.

    :raises FencepostError: if there are no seeds, one is below 0 or appears twice, or a range has over a
        million.
    """
    if isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS:
        raise FencepostError(f"{shown}: expected at most {MOST_SEEDS:,} seeds")
    chosen = tuple(seeds)
    if wrong := [seed for seed in chosen if isinstance(seed, bool) or not isinstance(seed, int)]:
        raise FencepostError(f"{shown}: expected whole numbers, got {wrong[0]!r}")
    if not chosen or min(chosen) < 0:
        raise FencepostError(f"{shown}: expected at least one, and none below 0")
    seen: set[int] = set()
    for seed in chosen:
        if seed in seen:
            raise FencepostError(f"{shown}: {seed} is there twice")
        seen.add(seed)
    return chosen


class Option(msgspec.Struct, frozen=True):
    """A named choice of settings; if it has a scenario of its own, it is used with no other."""

    name: str
    settings: dict[str, str] = {}
    scenario: str = ""
    places: dict[str, str] = {}
    """The place where each setting was given, for error messages."""


def cells_of(
    scenarios: Sequence[str],
    grid: Mapping[str, Sequence[str]],
    *,
    options: Sequence[Option] = (),
    fixed: Mapping[str, str] | None = None,
    places: Mapping[str, str] | None = None,
) -> tuple[CampaignCell, ...]:
    """Return every scenario, with every option, under every choice of the grid's parameters.

    `fixed` settings hold for all cells. `places` has the place of a key for error messages; the default is
    `--grid`.

    :raises FencepostError: if a scenario or a setting is wrong, or two cells are the same.
    """
    fixed, places = fixed or {}, places or {}
    cells = []
    for source, option in _pairs(scenarios, options):
        for values in itertools.product(*grid.values()):
            varied = dict(zip(grid, values, strict=True))
            parameters = ({OPTION: option.name} if option.name else {}) | varied
            settings = {**fixed, **option.settings, **varied}
            place_of = {key: "--grid" for key in settings} | dict(places) | option.places
            for key in option.settings.keys() & varied.keys():
                raise FencepostError(
                    f"{place_of[key]} {key}: is in the grid and also in the option {option.name}"
                )
            cells.append(_cell(source, parameters, settings, place_of))
    _check_distinct(cells)
    return tuple(cells)


def _pairs(scenarios: Sequence[str], options: Sequence[Option]) -> Iterator[tuple[str, Option]]:
    for source in scenarios:
        for option in options or (Option(""),):
            if not option.scenario:
                yield source, option
    for option in options:
        if option.scenario:
            yield option.scenario, option


def _check_distinct(cells: Iterable[CampaignCell]) -> None:
    sources: dict[str, str] = {}
    by_prefix: dict[str, CampaignCell] = {}
    for cell in cells:
        if sources.setdefault(cell.name, cell.source) != cell.source:
            raise FencepostError(f"{cell.source}: its name {cell.name} is also that of {sources[cell.name]}")
        if by_prefix.setdefault(cell.prefix, cell) is not cell:
            raise FencepostError(f"{cell.source}: the scenario is there twice")


def _check_names(settings: Mapping[str, str], place_of: Mapping[str, str]) -> None:
    """Check that settings without a dot are options of `simulate`, or keys of a scenario.

    :raises FencepostError: if one is neither.
    """
    known = list(dict.fromkeys((*_OPTIONS, *_KEYS)))
    for key, value in settings.items():
        if key == OPTION:
            raise FencepostError(
                f"{place_of[key]} {key}={value}: no setting has this name; choices with names are options"
            )
        if "." not in key and key not in known:
            raise FencepostError(f"{place_of[key]} {key}={value}: unknown key; {hint(key, known)}")


def _cell(
    source: str, parameters: dict[str, str], settings: dict[str, str], place_of: Mapping[str, str]
) -> CampaignCell:
    _check_names(settings, place_of)
    counts = {
        key: _count(key, settings[key], place_of) for key in ("members", "partitions") if key in settings
    }
    if MUTANT in settings:
        if settings[MUTANT] != NO_MUTANT:
            try:
                check_mutant(settings[MUTANT])
            except FencepostError as error:
                raise FencepostError(f"{place_of[MUTANT]} {MUTANT}={settings[MUTANT]}: {error}") from None
        parameters = {**parameters, MUTANT: settings[MUTANT]}
    scenario = load_any(
        source,
        overrides=[f"{key}={value}" for key, value in settings.items() if key not in _OPTIONS],
        members=counts.get("members"),
        partitions=counts.get("partitions"),
        duration=settings.get("duration"),
        option=place_of,
    )
    return CampaignCell(scenario.name, source, parameters, settings, scenario)


def _count(key: str, value: str, place_of: Mapping[str, str]) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise FencepostError(f"{place_of[key]} {key}={value}: expected a number from 1")
    return int(value)


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run to do: the cell's number, the seed, and whether its trace is always kept."""

    cell: int
    seed: int
    traced: bool


def tasks_of(
    cells: Sequence[CampaignCell], seeds: Sequence[int], finished: frozenset[str], always_traced: int
) -> Iterator[Task]:
    """Yield the remaining tasks, seed by seed, so that all cells advance together.

    Traces of the first `always_traced` seeds of a cell are kept.
    """
    for position, seed in enumerate(seeds):
        for number, cell in enumerate(cells):
            if cell.run_id(seed) not in finished:
                yield Task(number, seed, position < always_traced)


def dealt(tasks: Sequence[Task], hands: int) -> list[Task]:
    """Return the tasks in an order in which each of `hands` equal slices has a bit of everything."""
    return [task for hand in range(hands) for task in tasks[hand::hands]]
