"""Reads scenarios from the library or a file, with overrides, and reports every mistake with its place.

A mistake is a FencepostError: the file, the line, the key's path, and what was expected.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.scenarios import check
from fencepost.simulation.scenarios.documents import check_document
from fencepost.simulation.scenarios.kinds import AnyScenario
from fencepost.simulation.scenarios.positions import Path
from fencepost.simulation.scenarios.sac import SacScenario, SacStep, SacStream
from fencepost.simulation.scenarios.scenario import MOST_GROWN, GrowTopic, Scenario, ScenarioTopic, Step
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.scenarios.typed import (
    Misplaced,
    Places,
    parse_toml,
    read_text,
    shown,
    shown_path,
    typed,
)
from fencepost.simulation.scenarios.unused import why_unused
from fencepost.simulation.scenarios.values import decode_value

DEFAULT = "rolling-deploy"
LIBRARY = FilePath(__file__).parent / "library"

_KINDS: Mapping[object, type[AnyScenario]] = {None: Scenario, "sac": SacScenario, "streams": StreamsScenario}
"""By the file's key `protocol`."""


class LibraryEntry(NamedTuple):
    """One scenario that ships with the package."""

    name: str
    summary: str
    world: str
    protocol: str
    """`consumer` for groups of KIP-848, `sac` for single active consumers, `streams` for applications."""


def library_names() -> list[str]:
    """Return the names of the scenarios that ship with the package, sorted."""
    return [path.stem for path in sorted(LIBRARY.glob("*.toml"))]


def library() -> list[LibraryEntry]:
    """Return the scenarios that ship with the package, by name."""
    entries = []
    for name in library_names():
        scenario = load_any(name)
        entries.append(LibraryEntry(name, scenario.summary, "simulated", scenario.protocol))
    return entries


def load(
    name_or_path: str | FilePath = DEFAULT,
    *,
    overrides: Iterable[str] = (),
    members: int | None = None,
    partitions: int | None = None,
    duration: str | None = None,
    option: str | None = None,
) -> Scenario:
    """Return a scenario of a consumer group: of the library by its name, or the one in a TOML file.

    `overrides` are texts such as "group.members=12". Values are TOML, or plain text if they are not valid
    TOML. `partitions` is a total that the topics share in proportion. `option` is the command-line option
    that gave the overrides, if there was one; error messages name it.

    :raises FencepostError: if there is no such scenario, or something in it is wrong.
    """
    found = load_any(
        name_or_path,
        overrides=overrides,
        members=members,
        partitions=partitions,
        duration=duration,
        option=option,
    )
    if found.protocol != "consumer":
        raise FencepostError(f"{name_or_path} is about {found.subject}: {found.runs_with} run it")
    return found


def load_any(
    name_or_path: str | FilePath = DEFAULT,
    *,
    overrides: Iterable[str] = (),
    members: int | None = None,
    partitions: int | None = None,
    duration: str | None = None,
    option: str | Mapping[str, str] | None = None,
) -> AnyScenario:
    """Return a scenario of any kind, as `load`; super streams of single active consumers share `partitions`.

    `option` may differ by key.

    :raises FencepostError: if there is no such scenario, or something in it is wrong.
    """
    path, text = read(name_or_path)

    loaded = _overrides(overrides, option)
    if members is not None:
        loaded.append(_Override(_shown(option, "members", members), "group.members", members))
    if duration is not None:
        loaded.append(_Override(_shown(option, "duration", duration), "duration", duration))
    return _scenario(text, str(path), path.stem, loaded, _total(partitions, option))


def read(name_or_path: str | FilePath) -> tuple[FilePath, str]:
    """Return the path and the text of a scenario of the library or of a TOML file.

    :raises FencepostError: if it does not exist, or can't be read.
    """
    path = _find(name_or_path)
    return path, read_text(path)


def loads(
    text: str,
    *,
    source: str = "<text>",
    name: str = "scenario",
    overrides: Iterable[str] = (),
    partitions: int | None = None,
) -> AnyScenario:
    """Return the scenario of any kind in a TOML text; error messages call the text `source`.

    :raises FencepostError: if something in it is wrong.
    """
    return _scenario(text, source, name, _overrides(overrides, None), _total(partitions, None))


def _scenario(
    text: str, source: str, name: str, overrides: Iterable[_Override], partitions: tuple[int, str] | None
) -> AnyScenario:
    raw = parse_toml(text, source)
    check_document(raw, "scenario", source)
    raw.setdefault("name", name)
    if isinstance(raw.get("config"), dict):
        raw["config"] = flat_config(raw["config"])
    places = _Places(source, text)
    for override in overrides:
        places.overridden.append((_put(raw, override), override.shown))
    protocol = raw.get("protocol")
    if not isinstance(protocol, str | None) or protocol not in _KINDS:
        known = ", ".join(str(each) for each in _KINDS if each)
        raise places.error(("protocol",), f"expected one of {known}, or no such key, got {shown(protocol)}")
    try:
        scenario = typed(raw, _KINDS[protocol], decode_value)
    except Misplaced as mistake:
        raise places.error(mistake.path, mistake.message) from None
    resized = scenario if partitions is None else _resized(scenario, *partitions)
    if found := check.first_mistake(resized):
        if partitions is None or found == check.first_mistake(scenario):
            raise places.error(*found)
        path, message = found
        raise FencepostError(f"{partitions[1]}: {shown_path(path)}: {message}")
    for key, _ in places.overridden:
        if unused := why_unused(resized, key):
            raise places.error(key, unused)
    return resized


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return Kafka's names in one piece, even if they were written without quotes, which makes tables of
    them."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flat_config(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _find(name_or_path: str | FilePath) -> FilePath:
    path = FilePath(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    inside = LIBRARY / f"{path}.toml"
    if inside.is_file():
        return inside
    if path.exists():
        return path
    names = library_names()
    hint = suggestion(str(path), names, "`fencepost scenarios` lists them")
    raise FencepostError(f"no scenario {str(path)!r} in the library, and no such file; {hint}")


class _Override(NamedTuple):
    """A new value for a key; `shown` is how it was given, for error messages."""

    shown: str
    key: str
    value: Any


_Option: TypeAlias = str | Mapping[str, str] | None
"""The command-line option that gave settings, one for all or one for each key; None if a program gave them.
"""


def _overrides(texts: Iterable[str], option: _Option) -> list[_Override]:
    if isinstance(texts, str):
        raise FencepostError(f"overrides={texts!r}: expected a list of texts such as 'group.members=12'")
    return [_override(text, option) for text in texts]


def _override(text: str, option: _Option) -> _Override:
    if not isinstance(text, str):
        raise FencepostError(f"overrides: expected texts such as 'group.members=12', got {text!r}")
    key, equals, words = text.partition("=")
    given = f"overrides: {text}" if option is None else f"{_word(option, key)} {text}"
    if not equals or not key.strip():
        raise FencepostError(f"{given}: expected KEY=VALUE, such as group.members=12")
    try:
        value = tomllib.loads(f"value = {words}")["value"]
    except (ValueError, RecursionError):  # nested too deeply, or no value
        value = words.strip()
    if isinstance(value, float) and key.strip().startswith("config."):
        value = words.strip()  # no setting is a fraction, but a release looks like one: 4.4
    return _Override(given, key.strip(), value)


def _total(partitions: int | None, option: _Option) -> tuple[int, str] | None:
    """Return the wanted total of partitions, and how it was given."""
    if partitions is None:
        return None
    given = _shown(option, "partitions", partitions)
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise FencepostError(f"{given}: expected a whole number")
    return partitions, given


def _shown(option: _Option, name: str, value: object) -> str:
    """Return how an argument was given: `members=12` in a program, --members 12, or --grid members=12."""
    if option is None:
        return f"{name}={value!r}"
    return f"--{name} {value}" if option == "--set" else f"{_word(option, name)} {name}={value}"


def _word(option: str | Mapping[str, str], key: str) -> str:
    return option if isinstance(option, str) else option[key]


class _Places(Places):
    """Lines of the file, and overrides from outside of it."""

    def __init__(self, source: str, text: str) -> None:
        super().__init__(source, text)
        self.lines = {_with_config_name(path): line for path, line in self.lines.items()}
        self.overridden: list[tuple[Path, str]] = []

    def error(self, path: Path, message: str) -> FencepostError:
        for key, override in reversed(self.overridden):
            inside = path[: len(key)] == key
            around = key[: len(path)] == path and path not in self.lines
            if path and (inside or around):
                told = "" if path == key else f" {shown_path(path)}:"
                return FencepostError(f"{override}:{told} {message}")
        return super().error(path, message)


def _with_config_name(path: Path) -> Path:
    return ("config", ".".join(map(str, path[1:]))) if path[0] == "config" and len(path) > 1 else path


def _put(raw: dict[str, Any], override: _Override) -> Path:
    """Put the override's value into the raw tables, and return the key's path."""
    parts = tuple(int(part) if part.isdecimal() else part for part in override.key.split("."))
    path = _with_config_name(parts)
    place: Any = raw
    for depth, part in enumerate(path[:-1]):
        if isinstance(place, dict) and isinstance(part, str):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            place = place[part]
        else:
            raise _nowhere(override, path[: depth + 1], place)
    last = path[-1]
    if isinstance(place, dict):
        place[str(last)] = override.value
    elif isinstance(place, list) and isinstance(last, int) and last < len(place):
        place[last] = override.value
    else:
        raise _nowhere(override, path, place)
    return path


def _nowhere(override: _Override, path: Path, place: Any) -> FencepostError:
    shown = ".".join(map(str, path))
    there = (
        f"; {shown.rpartition('.')[0]} has 0 to {len(place) - 1}" if isinstance(place, list) and place else ""
    )
    return FencepostError(f"{override.shown}: there is no {shown}{there}")


def _resized(scenario: AnyScenario, total: int, given: str) -> AnyScenario:
    """Return the scenario with that many partitions in all, shared in proportion. A plain stream is one
    partition."""
    name = scenario.partitioned
    tables = getattr(scenario, name)
    weight = sum(table.partitions for table in tables)
    if not weight:
        raise FencepostError(f"{given}: there is no super stream in {scenario.name}")
    if total < len(tables):
        raise FencepostError(f"{given}: expected at least {len(tables)}, one for each {name[:-1]}")
    spare, resized, before = total - len(tables), [], 0
    for index, table in enumerate(tables):
        after = before + table.partitions
        extra = spare * after // weight - spare * before // weight
        count = 1 + extra if table.partitions else 0
        try:
            resized.append(typed(msgspec.structs.asdict(table) | {"partitions": count}, type(table)))
        except Misplaced as mistake:
            path = shown_path((name, index, *mistake.path))
            raise FencepostError(f"{given}: {path}: {mistake.message}") from None
        before = after
    larger = msgspec.structs.replace(scenario, **{name: tuple(resized)})
    return _grown(larger, tables)


def _grown(larger: AnyScenario, tables: Iterable[ScenarioTopic | SacStream]) -> AnyScenario:
    """Return the larger scenario, which had these tables: steps that would not grow topics do so in
    proportion."""
    before = {table.name: table.partitions for table in tables}
    after = {table.name: table.partitions for table in getattr(larger, larger.partitioned)}
    sizes, steps, length_us = dict(after), list[Step | SacStep](larger.steps), larger.duration.us
    for index, step in sorted(enumerate(steps), key=lambda each: each[1].at.within(length_us)):
        if not isinstance(step, GrowTopic) or step.name not in sizes:
            continue
        count, name = step.partitions, step.name
        if before[name] < count <= sizes[name]:
            count = min(max(-(-count * after[name] // before[name]), sizes[name] + 1), MOST_GROWN)
            steps[index] = msgspec.structs.replace(step, partitions=count)
        sizes[name] = max(sizes[name], count)
    return msgspec.structs.replace(larger, steps=tuple(steps)) if steps else larger
