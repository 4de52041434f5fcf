"""Objects of kio's schema classes, with random values, and kio's bytes of them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import random
import types
import typing
import uuid
from typing import Any

from kio.serial import entity_writer


def made(cls: Any, rng: random.Random) -> Any:
    """An object of the class, with texts, arrays and numbers of all sizes."""
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: _value(hints[field.name], field, rng) for field in dataclasses.fields(cls)})


def _value(hint: Any, field: Any, rng: random.Random) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    can_be_null = "tag" not in field.metadata or field.default is None
    if type(None) in options and can_be_null and rng.random() < 0.3:
        return None
    (plain,) = (option for option in options if option is not type(None))
    if typing.get_origin(plain) is tuple:
        return tuple(_one(typing.get_args(plain)[0], field, rng) for _ in range(rng.randrange(4)))
    return _one(plain, field, rng)


def _one(plain: Any, field: Any, rng: random.Random) -> Any:
    kind = field.metadata.get("kafka_type")
    if dataclasses.is_dataclass(plain):
        return made(plain, rng)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        return rng.choice([plain(0), rng.choice(list(plain))])  # often no error
    if kind == "string":
        return "".join(rng.choice("aé.✓Z") for _ in range(rng.randrange(200)))
    if kind in {"bytes", "records"}:
        return rng.randbytes(rng.randrange(300))
    if kind == "uuid":
        return uuid.UUID(bytes=rng.randbytes(16))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    if kind.startswith("datetime"):
        return datetime.datetime.fromtimestamp(rng.randrange(2**31), datetime.UTC)
    if kind.startswith("timedelta"):
        return datetime.timedelta(milliseconds=rng.randrange(-1, 2**31 - 1))
    if kind.startswith("uint"):
        return rng.randrange(2 ** int(kind.removeprefix("uint")))
    bits = int(kind.removeprefix("int")) - 1
    return rng.choice([0, -1, 1, 3, 2**bits - 1, -(2**bits), rng.randrange(2**bits)])


def milliseconds(value: int) -> datetime.timedelta:
    """A duration as kio wants it."""
    return datetime.timedelta(milliseconds=value)


def kio_bytes(entity: Any) -> bytes:
    """What kio writes of it."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
