"""Output for programs: JSON documents and plain text on stdout. Text for people is in `terminal`."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec


def print_json(document: Any) -> None:
    """Print the one JSON document of a `--json` run on stdout. Structs and mappings keep their order."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    if not text.isascii() and codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        text = json.dumps(
            json.loads(text), indent=2
        )  # JSON is UTF-8 in any locale, and ASCII is valid in both encodings
    print_text(text)


def print_result(document: Any, show: Callable[..., object], *more: Any, json: bool) -> None:
    """Print the result of a command: its JSON document, or by `show(document, *more)` for people."""
    if json:
        print_json(document)
    else:
        show(document, *more)


def print_text(text: str) -> None:
    """Print text on stdout unchanged, and flush it: a program may wait for the line."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
