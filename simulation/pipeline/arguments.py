"""Checks of a campaign's arguments in Python: each wrong argument raises a FencepostError with its name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion


def hint(name: object, names: Iterable[str], otherwise: str = "expected one of") -> str:
    """Return a hint with the nearest of the names, or with all of them."""
    known = list(names)
    return suggestion(name, known, f"{otherwise} {', '.join(known)}")


def check_one_of(argument: str, value: object, names: Iterable[str]) -> None:
    """Accept one of these names.

    :raises FencepostError: if the value is a different one.
    """
    known = list(names)
    if value not in known:
        raise FencepostError(f"{argument}={value!r}: {hint(value, known)}")


def scenario_names(scenarios: object) -> list[str]:
    """Return names of scenarios, or paths of their files, from one or several.

    :raises FencepostError: if they are anything else.
    """
    given = [scenarios] if isinstance(scenarios, str | os.PathLike) else scenarios
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise FencepostError(
            f"scenarios={scenarios!r}: expected names or TOML files, such as ['churn', 'steady']"
        )
    names = list(given)
    for name in names:
        if not isinstance(name, str | os.PathLike) or not str(name):
            raise FencepostError(f"scenarios: expected the name of a scenario or a TOML file, got {name!r}")
    return [str(name) for name in names]


def grid_values(grid: object) -> dict[str, tuple[Any, ...]]:
    """Return the values of each parameter.

    :raises FencepostError: if it is not a mapping of names to lists of different values.
    """
    if not isinstance(grid, Mapping):
        raise FencepostError(
            f"grid={grid!r}: expected lists of values by parameter, such as {{'members': [10, 50]}}"
        )
    found = {}
    for key, values in grid.items():
        if not isinstance(key, str) or not key:
            raise FencepostError(f"grid: expected names of parameters, such as 'members', got {key!r}")
        if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
            raise FencepostError(f"grid: {key}={values!r}: expected a list of values, such as [10, 50]")
        found[key] = tuple(values)
        if not found[key]:
            raise FencepostError(f"grid: {key}: expected at least one value, got an empty list")
        for value in found[key]:
            _check_value(f"grid: {key}", value)
        if len(set(map(repr, found[key]))) < len(found[key]):
            raise FencepostError(f"grid: {key}: a value is there twice")
    return found


def option_settings(options: object) -> dict[str, dict[str, Any]]:
    """Return the settings of each option, by its name.

    :raises FencepostError: if it is not a mapping of names to mappings.
    """
    if not isinstance(options, Mapping):
        raise FencepostError(f"options={options!r}: expected settings by the option's name")
    for name, settings in options.items():
        if not isinstance(name, str) or not name:
            raise FencepostError(f"options: expected a name for each option, got {name!r}")
        if not isinstance(settings, Mapping):
            raise FencepostError(
                f"options: {name}: expected its settings, such as {{'group.static': True}}, got {settings!r}"
            )
        for key, value in settings.items():
            if not isinstance(key, str) or not key:
                raise FencepostError(f"options: {name}: expected names of settings, got {key!r}")
            _check_value(f"options: {name}: {key}", value)
    return {name: dict(settings) for name, settings in options.items()}


def path_of(argument: str, path: object) -> Path:
    """Return the given path.

    :raises FencepostError: if it is not a path, or is empty.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise FencepostError(f"{argument}={path!r}: expected a path")
    return Path(path)


def _check_value(place: str, value: object) -> None:
    if not isinstance(value, bool | int | float | str | list | dict):
        raise FencepostError(
            f"{place}={value!r}: expected a number, a text, true or false, a list or a table"
        )
