"""What programs read: JSON documents and plain text on stdout. Text for people is in `terminal`."""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def print_json(document: Any) -> None:
    """Print the one JSON document of a `--json` run on stdout. Structs and mappings keep their order."""
    print_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_text(text: str) -> None:
    """Print text on stdout as it is, at once: somebody may wait for the line."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()
