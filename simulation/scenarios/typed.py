"""Tables of a file as typed values. Each mistake has the key's path, and what was expected there."""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator import reading
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.scenarios import toml_text
from fencepost.simulation.scenarios.positions import Path, line_of, lines_of

Hook: TypeAlias = Callable[[type, Any], Any]
"""msgspec's hook for types of our own: raises ValueError with what was expected."""

_STEP = re.compile(r"\.([\w-]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")
_INVALID_VALUE = re.compile(r"Invalid (?:enum )?value '(.*)'")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: of length)?(?: (>=|<=|>|<) ([\d.]+))?(?:, got `.+`)?")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}

MAX_TOML_BYTES: Final = 1 << 20
"""Maximum size of a scenario, a campaign or a question (1 MiB)."""

T = TypeVar("T")


class Misplaced(ValueError):
    """A value that its key cannot have."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def typed(raw: Any, kind: type[T], hook: Hook | None = None) -> T:
    """Return the raw tables as a value of that type, which is made of msgspec's structs.

    :raises Misplaced: if they do not fit.
    """
    try:
        return msgspec.convert(raw, kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        path, message = _explain(raw, kind, hook, str(error))
    raise Misplaced(path, message)


class Places:
    """The lines of a file's keys, for error messages."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.lines = lines_of(text)

    def at(self, path: Path) -> str:
        """Return the file, and the line if it is known: `grid.toml:7`."""
        line = line_of(self.lines, path)
        return self.source if line is None else f"{self.source}:{line}"

    def error(self, path: Path, message: str) -> FencepostError:
        """Return the error for a mistake at that key."""
        name = shown_path(path)
        return FencepostError(
            f"{self.at(path)}: {name}: {message}" if name else f"{self.at(path)}: {message}"
        )


def shown_path(path: Path) -> str:
    """Return a key's path as people write it: `topics[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def read_text(path: FilePath) -> str:
    """Return a TOML file's text.

    :raises FencepostError: if it can't be read.
    """
    return reading.read_text(path, MAX_TOML_BYTES, expected="TOML, which is UTF-8 text")


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return a TOML text's tables.

    :raises FencepostError: if it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if text.lstrip().startswith("{"):
            raise FencepostError(
                f"{source}: expected TOML, and this is JSON: `fencepost replay` and `shrink` take a failure's"
            ) from None
        raise FencepostError(f"{source}: not TOML: {error}") from None
    except ValueError as error:  # a value that Python itself does not read, such as a number of 5,000 digits
        raise FencepostError(f"{source}: not TOML: {_plain_reason(error)}") from None
    except RecursionError:
        raise FencepostError(f"{source}: can't be read: tables or lists are nested too deeply") from None


def _plain_reason(error: ValueError) -> str:
    """Return the reason, without Python's advice to lift its limit on digits, which is for programs."""
    return "a number has too many digits" if "integer string conversion" in str(error) else str(error)


def shown(value: Any) -> str:
    """Return a wrong value as it was written, or its kind."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty one"
    return toml_text.shown(value)


def _explain(raw: Any, kind: Any, hook: Hook | None, error: str) -> tuple[Path, str]:
    """Return the path and the message of what msgspec found."""
    message, _, where = error.rpartition(" - at `$")
    if not message:
        message, where = error, ""
    path, place, kind = _follow(raw, kind, hook, where.removesuffix("`"))
    if unknown := _UNKNOWN_FIELD.match(message):
        known = _keys(kind, place)
        hint = suggestion(unknown[1], known, f"expected one of {', '.join(known)}")
        return (*path, unknown[1]), f"unknown key; {hint}"
    if missing := _MISSING_FIELD.match(message):
        return path, f"the key {missing[1]} is missing"
    if (value := _INVALID_VALUE.match(message)) and (choices := list(_choices(kind))):
        return path, f"expected one of {', '.join(choices)}, got {value[1]!r}"
    if expected := _EXPECTED.fullmatch(message):
        return path, f"expected {_kind_of_value(*expected.groups())}, got {shown(place)}"
    return path, message[:1].lower() + message[1:].replace("`", "")


def _follow(place: Any, kind: Any, hook: Hook | None, where: str) -> tuple[Path, Any, Any]:
    """Walk msgspec's path through the values and their types. It does not name a table's keys: `[...]`."""
    path: Path = ()
    for name, index in _STEP.findall(where):
        if index == "...":
            part: str | int = _misfit(place, typing.get_args(_plain(kind, place))[1], hook)
            kind = typing.get_args(_plain(kind, place))[1]
        elif index:
            part = int(index)
            kind = typing.get_args(_plain(kind, place))[0]
        else:
            part = name
            # At a union's tag there is no field: its type stands for its choices.
            kind = next((f.type for f in _fields(_plain(kind, place)) if f.encode_name == name), kind)
        place = place[part]
        path = (*path, part)
    return path, place, kind


def _misfit(table: dict[str, Any], kind: Any, hook: Hook | None) -> str:
    """Return the first key of the table whose value does not fit."""
    for key, value in table.items():
        try:
            msgspec.convert(value, kind, dec_hook=hook)
        except msgspec.ValidationError:
            return key
    raise LookupError(f"every value fits {kind}")


def _plain(kind: Any, place: Any) -> Any:
    """Return the type without what surrounds it: of a union, the alternative that the value may be."""
    if typing.get_origin(kind) is typing.Annotated:
        return _plain(typing.get_args(kind)[0], place)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        found = [_plain(each, place) for each in typing.get_args(kind) if each is not type(None)]
        tagged = [each for each in found if _tag(each) is not None]
        if tagged and isinstance(place, dict):
            return next((each for each in tagged if place.get(_tag_field(each)) == _tag(each)), tagged[0])
        container = dict if isinstance(place, dict) else tuple
        return next((each for each in found if typing.get_origin(each) is container), found[0])
    return kind


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind) if _is_struct(kind) else ()


def _keys(kind: Any, place: Any) -> list[str]:
    """Return the keys that the table may have."""
    kind = _plain(kind, place)
    names = [field.encode_name for field in _fields(kind)]
    return [*([_tag_field(kind)] if _tag(kind) is not None else []), *names]


def _choices(kind: Any) -> Iterator[str]:
    """Yield the values of a literal type, or the tags of a union of structs."""
    if typing.get_origin(kind) is typing.Literal:
        yield from map(str, typing.get_args(kind))
    elif (tag := _tag(kind)) is not None:
        yield tag
    else:
        for each in typing.get_args(kind):
            yield from _choices(each)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _tag(kind: Any) -> str | None:
    return str(kind.__struct_config__.tag) if _is_struct(kind) and kind.__struct_config__.tag else None


def _tag_field(kind: Any) -> str:
    return str(kind.__struct_config__.tag_field)


def _kind_of_value(kinds: str, bound: str | None, limit: str | None) -> str:
    """Return what msgspec expected, in the words of TOML."""
    words = " or ".join(_TYPES.get(name, name) for name in kinds.split(" | ") if name != "null")
    if bound is None or limit is None:
        return words
    characters = " characters" if kinds.startswith("str") else ""
    return f"{words} {_BOUNDS[bound]} {limit.removesuffix('.0')}{characters}"
