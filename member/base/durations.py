"""Durations in ISO-8601 as `java.time.Duration` reads them: a day has 24 hours, and parts may have signs."""

from __future__ import annotations

import re

_NUMBER = r"[-+]?\d+"
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?=[-+\dT])(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[-+\d])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>\d{{0,9}}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_LONGEST_S = 2**63 - 1


def duration_ms(text: str) -> int:
    """A duration in milliseconds, the part of one that is left counted as one.

    :raises ValueError: if the text is no duration, or one that is negative or too long; it says which.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no ISO-8601 duration, such as P3D, PT1H30M or PT0.5S")
    parts = [int(found[unit] or 0) * seconds for unit, seconds in _SECONDS.items()]
    if max(*map(abs, parts), abs(sum(parts))) > _LONGEST_S:
        raise ValueError(f"the duration {text!r} is too long")
    nanoseconds = int((found["fraction"] or "").ljust(9, "0"))
    if (found["seconds"] or "").startswith("-"):
        nanoseconds = -nanoseconds
    nanoseconds += sum(parts) * 10**9
    if found["sign"] == "-":
        nanoseconds = -nanoseconds
    if nanoseconds < 0:
        raise ValueError(f"the duration {text!r} is negative")
    return -(-nanoseconds // 10**6)
