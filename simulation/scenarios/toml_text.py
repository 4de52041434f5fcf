"""Writes values of a TOML file as TOML text again."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from typing import Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_SHOWN: Final = 60


def toml_text(value: object) -> str:
    """Return a value that tomllib read, as text that tomllib would read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {toml_text(each)}' for key, each in value.items())}}}"
    return repr(value)


def quoted(text: str) -> str:
    """Return text in quotes."""
    return json.dumps(text, ensure_ascii=False)


def shown(value: object) -> str:
    """Return a value for a message; a long one is cut."""
    text = toml_text(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else quoted(name)
