"""The settings of a single active consumer, checked before anything is connected."""

from __future__ import annotations

import ssl
from typing import Final

from fencepost.member.base.arguments import check_whole
from fencepost.member.sac.offsets import OffsetKind, OffsetSpecification

MAX_TEXT_BYTES: Final = 32_767
"""The limit for a text in the stream protocol. The server refuses a name of more than 255 bytes."""
MAX_OFFSET: Final = (1 << 63) - 1
"""The limit for an offset, or a time in milliseconds."""
_SHOWN: Final = 40
"""Number of characters that are shown of a wrong value."""


def check_text(
    name: str, value: object, *, low: int = 1, high: int = MAX_TEXT_BYTES, is_secret: bool = False
) -> str:
    """Check that a text has `low` to `high` bytes. A secret is not shown.

    :raises TypeError: if it is not text.
    :raises ValueError: if it is too short or too long, or UTF-8 can't express it.
    """
    shown = "" if is_secret else f", got {value!r:.{_SHOWN}}"
    if not isinstance(value, str):
        raise TypeError(f"{name} should be text{shown}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} should be text that UTF-8 can express{shown}") from None
    if not low <= length <= high:
        raise ValueError(f"{name} should be {low} to {high:,} bytes of text{shown}")
    return value


def check_tls(value: object) -> ssl.SSLContext | None:
    """Check the TLS settings; None for no TLS.

    :raises TypeError: if it is something else.
    """
    if value is not None and not isinstance(value, ssl.SSLContext):
        raise TypeError(f"tls should be an ssl.SSLContext, got {value!r}")
    return value


def check_place(name: str, value: object) -> OffsetSpecification:
    """Check a place in a stream.

    :raises TypeError: if it is something else, such as another library's class of the same name.
    :raises ValueError: if its offset or its time is not valid.
    """
    if not isinstance(value, OffsetSpecification) or not isinstance(value.kind, OffsetKind):
        raise TypeError(
            f"{name} should be an OffsetSpecification, such as FIRST of fencepost.member.sac.offsets,"
            f" got {value!r:.{_SHOWN}}"
        )
    check_whole(name, value.value, 0, MAX_OFFSET)
    return value
