"""The regular expressions of users: RE2 syntax that matches whole names, with limits on their size.

RE2 takes time in proportion to the compiled size. `.{1,1000}`, repeated twenty times, takes over a second. So
the length, the memory and the compiled size are limited, and matching many names yields.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import re2

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import Sliced

MAX_EXPRESSION_LENGTH: Final = 10_000
"""The number of characters that an expression may have."""
MAX_EXPRESSION_BYTES: Final = 1 << 19
"""The memory that RE2 may take for an expression (512 KiB). Its own default takes over a second to fill."""
MAX_PROGRAM_SIZE: Final = 5_000
"""The number of instructions that an expression may compile to."""
_CACHED: Final = 128
_SLICE_STEPS: Final = 5_000
"""Instructions times names that one slice of matching takes."""

_options = re2.Options()
_options.log_errors = False
_options.max_mem = MAX_EXPRESSION_BYTES


@lru_cache(maxsize=_CACHED)
def compiled(expression: str) -> re2._Regexp:
    """Compile an expression.

    :raises ProtocolError: INVALID_REGULAR_EXPRESSION, with the reason, if RE2 does not understand it or it
        exceeds a limit.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise _invalid(f"it has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} are allowed")
    try:
        found = re2.compile(expression, _options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else error
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        if "too large" in text:
            text = f"it is too large: RE2 may take {MAX_EXPRESSION_BYTES} bytes; repeat less"
        raise _invalid(text) from error
    if found.programsize > MAX_PROGRAM_SIZE:
        raise _invalid(
            f"it is too large: RE2 makes {found.programsize} instructions of it, "
            f"at most {MAX_PROGRAM_SIZE} are allowed; repeat less"
        )
    return found


def matching(expression: str, names: Iterable[str]) -> Sliced[tuple[str, ...]]:
    """Return the names that an expression matches as a whole, in their order.

    :raises ProtocolError: as `compiled`.
    """
    regexp = compiled(expression)
    per_slice = max(1, _SLICE_STEPS // max(1, regexp.programsize))
    found = []
    for number, name in enumerate(names, 1):
        if regexp.fullmatch(name) is not None:
            found.append(name)
        if number % per_slice == 0:
            yield
    return tuple(found)


def _invalid(reason: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
