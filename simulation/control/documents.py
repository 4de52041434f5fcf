"""JSON documents of Python's values: arguments of methods from requests, and results for responses.

Types follow from the annotations of the methods. Where JSON has no such value, a document replaces it: bytes
are text if they are UTF-8, otherwise `{"base64": ...}`; tuples with names are objects.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.suggestions import suggestion
from fencepost.simulation.embedded.fault_controls import Action
from fencepost.simulation.embedded.fault_rules import FaultAction
from fencepost.simulation.embedded.groups import Who
from fencepost.simulation.embedded.logs import Headers, Text
from fencepost.simulation.embedded.names import ApiName, ErrorName
from fencepost.simulation.embedded.settings import Api, Error, TopicConfig

_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": _BASE64})]


class CommittedPosition(msgspec.Struct, frozen=True):
    """A committed offset: that of the next record to read."""

    topic: str
    partition: int
    offset: int


def _one_of(names: Sequence[str], what: str) -> Any:
    """Return the type of a name: the schema lists the names, and the method suggests near ones."""
    return Annotated[str, msgspec.Meta(description=what, extra_json_schema={"enum": list(names)})]


_Content = str | Base64 | None
_TAKEN: Final[Mapping[Any, Any]] = {
    Api: _one_of(get_args(ApiName), "An API, by Kafka's name."),
    Error: _one_of(get_args(ErrorName), "An error, by Kafka's name."),
    Action: _one_of([each.value for each in FaultAction], "What the fault does."),
    Who: Annotated[str, msgspec.Meta(description="A member id, an instance id or a client id.")],
    Text: _Content,
    Headers: dict[str, _Content] | list[tuple[str, _Content]],
    Sequence[int]: list[int],
    TopicConfig: dict[str, str | int | float | bool] | None,
}
"""The types of arguments in JSON, by their annotations."""


def _taken(hint: Any) -> Any:
    """Return the type of an argument in JSON."""
    if hint in _TAKEN:
        return _TAKEN[hint]
    optional = (taken for known, taken in _TAKEN.items() if hint == known | None)
    return next((taken | None for taken in optional), hint)


def arguments_of(
    name: str, method: Callable[..., Any], *, without: tuple[str, ...] = ()
) -> type[msgspec.Struct]:
    """Return the type of the document with a method's arguments; `*values` is a list of that name."""
    hints = get_type_hints(method)
    fields: list[Any] = []
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name in ("self", *without):
            continue
        taken = _taken(hints[parameter.name])
        if parameter.kind is parameter.VAR_POSITIONAL:
            fields.append((parameter.name, list[taken]))  # type: ignore[valid-type]
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, taken))
        else:
            default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            fields.append((parameter.name, taken, default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, module=__name__)


_IN_JSON: Final = {"bool": "boolean", "float": "number", "int": "integer", "str": "string"}
_PYTHON_TYPE: Final = re.compile(rf"\b({'|'.join(_IN_JSON)})\b")


class WrongDocument(FencepostError):
    """A document that is not what a method takes; the text says what was expected, and where."""


def read_arguments(taken: type[msgspec.Struct], document: bytes | Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments in the body of a request, or in its query.

    :raises WrongDocument: if it does not have that type.
    """
    try:
        if isinstance(document, bytes):
            found = msgspec.json.decode(document or b"{}", type=taken)
        else:
            found = msgspec.convert(dict(document), taken, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongDocument(_explained(str(error), taken)) from None
    return {name: _given(getattr(found, name)) for name in taken.__struct_fields__}


def _explained(text: str, taken: type[msgspec.Struct]) -> str:
    """Return the decoder's message, with the names that a wrong one may stand for."""
    names = taken.__struct_fields__
    expected, at, place = text.partition(" - at ")
    text = _PYTHON_TYPE.sub(lambda found: _IN_JSON[found[0]], expected) + at + place
    if text.startswith("Object missing required field `"):
        return f"{text}; it takes {', '.join(names)}"
    if text.startswith("Object contains unknown field `"):
        otherwise = f"it takes {', '.join(names)}" if names else "it takes none"
        return f"{text}; {suggestion(text.split('`')[1], names, otherwise)}"
    if text == "Input data was truncated":  # also of text that ends soon after half a surrogate pair
        text = "JSON is malformed: it ends too early, or with half of a surrogate pair"
    if text.startswith("JSON is malformed"):
        return f"{text}; expected a JSON object with {', '.join(names) or 'nothing in it'}"
    return text


def _given(value: Any) -> Any:
    if isinstance(value, Base64):
        return value.base64
    if isinstance(value, list | tuple):
        return type(value)(_given(each) for each in value)
    if isinstance(value, dict):
        return {name: _given(each) for name, each in value.items()}
    return value


# -- results -----------------------------------------------------------------------------------------


def result_type(hint: Any) -> Any:
    """Return the type of a result in JSON, by the type of the value."""
    if hint is bytes:
        return str | Base64
    if hint == Mapping[tuple[str, int], int]:
        return list[CommittedPosition]
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _mirrored(hint, hint._fields)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _mirrored(hint, hint.__struct_fields__)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return result_type(inner[0])
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(result_type, inner))
    if origin is tuple and Ellipsis not in inner:
        return tuple[tuple(result_type(each) for each in inner)]  # type: ignore[misc]
    if origin in (list, tuple):
        return list[result_type(inner[0])]  # type: ignore[misc]
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        return dict[tuple(map(result_type, inner))]  # type: ignore[misc]
    return hint


_mirrors: dict[type, type] = {}


def _mirrored(of: type, names: Sequence[str]) -> type:
    """Return a struct with the same fields, in their types in JSON."""
    if of not in _mirrors:
        hints = get_type_hints(of)
        fields = [(name, result_type(hints[name])) for name in names]
        made = msgspec.defstruct(of.__name__, fields, namespace={"__doc__": of.__doc__}, module=__name__)
        _mirrors[of] = made
    return _mirrors[of]


def shown(value: Any) -> Any:
    """Return a result as a value of JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return Base64(value)
    if isinstance(value, msgspec.Struct):
        return {name: shown(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: shown(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, Mapping):
        if value and isinstance(next(iter(value)), tuple):
            return [CommittedPosition(topic, number, offset) for (topic, number), offset in value.items()]
        return {name: shown(each) for name, each in value.items()}
    return value
