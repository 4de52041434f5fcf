"""The specification of a campaign, from a TOML file or a caller."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.arguments import check_one_of
from fencepost.simulation.pipeline.tasks import OPTION, CampaignCell, Option, cells_of, seeds_of
from fencepost.simulation.scenarios.documents import check_document, document_of
from fencepost.simulation.scenarios.load import library_names, read
from fencepost.simulation.scenarios.positions import Path as KeyPath
from fencepost.simulation.scenarios.toml_text import quoted, toml_text
from fencepost.simulation.scenarios.typed import Misplaced, Places, parse_toml, read_text, typed
from fencepost.simulation.scenarios.values import Duration, decode_value

Traces: TypeAlias = Literal["all", "sample", "failed", "none"]
"""The runs whose traces are kept: all, a sample plus those that broke an invariant, only these, or none."""

SEEDS = 100
TIME_LIMIT = Duration(600_000_000)

Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]

_SPANS = ({"mean"}, {"median", "p99"})
"""Keys of tables that are values; all other tables are parts of a key's name."""


class CampaignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a campaign except where it runs and where its output is written."""

    cells: tuple[CampaignCell, ...]
    seeds: tuple[int, ...]
    title: str = ""
    traces: Traces = "sample"
    time_limit_s: float = TIME_LIMIT.us / 1_000_000
    """Limit on the wall time of one run, in seconds."""
    only_ownership: bool = False
    """True if traces have only the rows that show rebalances and ownership, a tenth of all rows."""

    def __post_init__(self) -> None:
        """Refuse values that no file and no command line can give.

        :raises FencepostError: if `traces` or the time limit is wrong.
        """
        check_one_of("traces", self.traces, get_args(Traces))
        limit = self.time_limit_s
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise FencepostError(f"a run's time limit of {limit} s: expected a number of seconds above 0")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: a key that is not declared is refused."""


class _Option(_Table, frozen=True):
    """One of the `[[options]]`."""

    name: _Name
    scenario: str = ""
    set: dict[str, Value] = {}


class _File(_Table, frozen=True):
    """A campaign's file."""

    title: str = ""
    scenarios: Annotated[tuple[_Name, ...], Meta(min_length=1)] | None = None
    """The scenarios; without the key, the whole library."""
    seeds: Annotated[int, Meta(ge=1)] | tuple[Annotated[int, Meta(ge=0)], ...] | str = SEEDS
    traces: Traces = "sample"
    time_limit: Duration = TIME_LIMIT
    set: dict[str, Value] = {}
    grid: dict[str, Annotated[tuple[Value, ...], Meta(min_length=1)]] = {}
    options: tuple[_Option, ...] = ()


def seconds_of(text: str, shown: str) -> float:
    """Return the seconds of a time limit such as `90s`.

    :raises FencepostError: if it is not a duration, or is zero.
    """
    try:
        seconds = Duration.parse(text).us / 1_000_000
    except ValueError as error:
        raise FencepostError(f"{shown} {text}: {error}") from None
    if not seconds:
        raise FencepostError(f"{shown} {text}: expected more than 0s")
    return seconds


def is_campaign_file(path: str) -> bool:
    """Return true if the path names a campaign's file rather than a scenario's."""
    if not path.endswith(".toml") or not Path(path).is_file():
        return False
    try:
        tables = parse_toml(read_text(Path(path)), path)
    except FencepostError:
        return False
    return document_of(tables, "scenario") == "campaign"


def read_campaign(path: str | Path) -> CampaignSpec:
    """Return the campaign of a TOML file; paths of scenarios in it are relative to its folder.

    :raises FencepostError: if something in it is wrong; the text has the file, the line and the key.
    """
    path = Path(path)
    text = read_text(path)
    raw = parse_toml(text, str(path))
    check_document(raw, "campaign", str(path))
    places = Places(str(path), text)
    places.lines = {_flat_path(key): line for key, line in places.lines.items()}
    try:
        file = typed(_flattened(raw), _File, decode_value)
    except Misplaced as mistake:
        raise places.error(mistake.path, mistake.message) from None
    _check(file, places)
    for key, source in _sources(path, file):
        try:
            read(source)
        except FencepostError as error:
            raise places.error(key, str(error)) from None
    given = {key: f"{places.at((table, key))}:" for table in ("set", "grid") for key in getattr(file, table)}
    return CampaignSpec(
        cells=cells_of(
            [_beside(path, name) for name in file.scenarios or ()]
            or ([] if all(each.scenario for each in file.options) and file.options else library_names()),
            {key: tuple(map(value_text, values)) for key, values in file.grid.items()},
            options=[_option(path, each, index, places) for index, each in enumerate(file.options)],
            fixed={key: value_text(value) for key, value in file.set.items()},
            places=given,
        ),
        seeds=_seeds(file, places),
        title=file.title,
        traces=file.traces,
        time_limit_s=file.time_limit.us / 1_000_000,
    )


def value_text(value: Value) -> str:
    """Return a value as `simulate --set` takes it."""
    if isinstance(value, str):
        try:
            return value if tomllib.loads(f"value = {value}")["value"] == value else quoted(value)
        except (tomllib.TOMLDecodeError, RecursionError):
            return value if value == value.strip() else quoted(value)
    return toml_text(value)


def _check(file: _File, places: Places) -> None:
    if not file.time_limit.us:
        raise places.error(("time_limit",), "expected more than 0s")
    if OPTION in file.grid:
        raise places.error(("grid", OPTION), "no setting has this name; choices with names are [[options]]")
    for key, values in file.grid.items():
        if key in file.set:
            raise places.error(("grid", key), "is also in [set]")
        if len(set(map(value_text, values))) < len(values):
            raise places.error(("grid", key), "a value is there twice")
    names: set[str] = set()
    for index, option in enumerate(file.options):
        if option.name in names:
            raise places.error(("options", index, "name"), f"{option.name!r} is there twice")
        names.add(option.name)
        for key in option.set.keys() & file.grid.keys():
            raise places.error(("options", index, "set", key), "is also in [grid]")


def _seeds(file: _File, places: Places) -> tuple[int, ...]:
    try:
        return seeds_of(file.seeds)
    except FencepostError as error:
        raise places.error(("seeds",), str(error).partition(": ")[2]) from None


def _sources(path: Path, file: _File) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys of the scenarios that the file names, with their sources."""
    for index, name in enumerate(file.scenarios or ()):
        yield ("scenarios", index), _beside(path, name)
    for index, option in enumerate(file.options):
        if option.scenario:
            yield ("options", index, "scenario"), _beside(path, option.scenario)


def _option(file: Path, option: _Option, index: int, places: Places) -> Option:
    return Option(
        option.name,
        {key: value_text(value) for key, value in option.set.items()},
        _beside(file, option.scenario) if option.scenario else "",
        {key: f"{places.at(('options', index, 'set', key))}:" for key in option.set},
    )


def _beside(file: Path, scenario: str) -> str:
    """Return the path of a scenario's file, relative to the campaign's; names of the library are returned
    unchanged."""
    return str(file.parent / scenario) if scenario.endswith(".toml") or "/" in scenario else scenario


def _flattened(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with whole names: without quotes, a dotted name becomes nested tables."""
    flat = dict(raw)
    for name in ("set", "grid"):
        if isinstance(raw.get(name), dict):
            flat[name] = dict(_flat(raw[name]))
    if isinstance(raw.get("options"), list):
        flat["options"] = [
            each | {"set": dict(_flat(each["set"]))}
            if isinstance(each, dict) and isinstance(each.get("set"), dict)
            else each
            for each in raw["options"]
        ]
    return flat


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value.keys() not in _SPANS:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _flat_path(path: KeyPath) -> KeyPath:
    for head in (1, 3):
        if len(path) > head and path[head - 1] in ("set", "grid"):
            return (*path[:head], ".".join(map(str, path[head:])))
    return path
