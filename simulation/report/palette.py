"""The pages' colours, once for light and once for dark, and the patterns of states and owners.

Colours with a meaning also differ for people with red-green colour blindness: the tests simulate it. Patterns
and words repeat the meaning.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Colour(NamedTuple):
    """One colour in CSS notation, for the light and the dark page."""

    light: str
    dark: str


class Fill(NamedTuple):
    """The look of a state or an owner; the pattern is one of PATTERNS."""

    colour: Colour
    pattern: str = "plain"


PATTERNS = ("plain", "rising", "falling", "dots", "upright", "crossed")

PAGE: dict[str, Colour] = {
    "page": Colour("#f4f5f8", "#10141a"),
    "panel": Colour("#ffffff", "#181e27"),
    "stripe": Colour("#f8f9fb", "#1c232d"),
    "heading": Colour("#eef1f5", "#222a36"),
    "text": Colour("#1a2230", "#e4e9f1"),
    "muted": Colour("#5c6880", "#9aa7bb"),
    "line": Colour("#dde2ea", "#2e3846"),
    "accent": Colour("#1f56d0", "#7fa9ff"),
    "accent-soft": Colour("#e4ecfc", "#1d2c4b"),
    "bad": Colour("#c3202f", "#ff7a85"),
    "bad-soft": Colour("#fdecee", "#3a1e24"),
    "ok": Colour("#146c43", "#66d7a2"),
    "ok-soft": Colour("#e6f5ec", "#17302a"),
    "warn": Colour("#b35900", "#f0a24a"),
    "fault": Colour("#7434b4", "#c598f5"),
    "fault-line": Colour("#7434b42e", "#c598f533"),
    "fault-span": Colour("#7434b445", "#c598f54d"),
    "beat": Colour("#98a5ba", "#66748a"),
    "cursor": Colour("#1f56d066", "#7fa9ff77"),
    "shade": Colour("#78849833", "#06080c80"),
    "host-down": Colour("#b6bdc8", "#59626f"),
    "host-stopped": Colour("#eaedf1", "#262e3a"),
    "host-frozen": Colour("#b4e1ee", "#3f7f92"),
    "callback-assigned": Colour("#0f8a63", "#4cc99f"),
    "callback-revoked": Colour("#b8560b", "#f0a24a"),
    "ink": Colour("#10161f", "#0d1219"),
    "paper": Colour("#ffffff", "#ffffff"),
}

STATES: dict[str, Fill] = {
    "idle": Fill(Colour("#cdd1d7", "#59606a")),
    "joining": Fill(Colour("#739bd6", "#3a75c0"), "rising"),
    "moving": Fill(Colour("#f6bd06", "#e7b62c"), "falling"),
    "acknowledging": Fill(Colour("#fff09d", "#eee4a4"), "dots"),
    "good": Fill(Colour("#6dd193", "#6dbb9a")),
    "waiting": Fill(Colour("#daf6ed", "#58908d"), "dots"),
    "stale": Fill(Colour("#e17c38", "#dd7220"), "upright"),
    "leaving": Fill(Colour("#d4aef8", "#b292e9"), "rising"),
    "going": Fill(Colour("#8259ac", "#523896"), "falling"),
    "bad": Fill(Colour("#d6332b", "#c91105"), "crossed"),
    "fatal": Fill(Colour("#661f2d", "#431212"), "upright"),
}
"""The look of states, by their subject."""

ABOUT: dict[str, str] = {
    state: about
    for about, states in {
        "idle": "UNSUBSCRIBED EMPTY CREATED NOT_RUNNING CLOSED DISCONNECTED_WAITING",
        "joining": "JOINING UNJOINED PREPARING_REBALANCE ASSIGNING STARTING CONNECTING",
        "moving": "RECONCILING COMPLETING_REBALANCE REBALANCING PARTITIONS_ASSIGNED ACTIVATING",
        "acknowledging": "ACKNOWLEDGING PARTITIONS_REVOKED SUBSCRIBING",
        "good": "STABLE RUNNING ACTIVE CONNECTED_ACTIVE",
        "bad": "FENCED PENDING_ERROR LOST FORGOTTEN_ACTIVE",
        "stale": "STALE DISCONNECTED BACKING_OFF DISCONNECTED_ACTIVE",
        "fatal": "FATAL ERROR DEAD FAILED",
        "leaving": "PREPARE_LEAVING UNREVOKED_PARTITIONS UNREVOKED_TASKS PENDING_SHUTDOWN STEPPING_DOWN "
        "CONNECTED_DEACTIVATING",
        "going": "LEAVING FORGOTTEN_WAITING",
        "waiting": "UNRELEASED_PARTITIONS UNRELEASED_TASKS NOT_READY WAITING CONNECTED_WAITING",
    }.items()
    for state in states.split()
}
"""The subject of each state, by the state's words in capitals."""

VARIANTS: dict[str, str] = {
    state: pattern
    for pattern, states in {
        "dots": "EMPTY ASSIGNING PARTITIONS_ASSIGNED",
        "rising": "CREATED REBALANCING PARTITIONS_REVOKED",
        "upright": "NOT_RUNNING PREPARING_REBALANCE COMPLETING_REBALANCE",
        "falling": "CLOSED STARTING",
        "plain": "UNJOINED DEAD",
    }.items()
    for state in states.split()
}
"""Patterns of states that have the same subject as another state on the same page."""

OWNERS: tuple[Fill, ...] = tuple(
    Fill(Colour(light, dark))
    for light, dark in (
        ("#98c3ff", "#567cda"),
        ("#e0800e", "#c57940"),
        ("#74eabc", "#8fd5af"),
        ("#9456a2", "#933e87"),
        ("#ffc845", "#ecb822"),
        ("#a1614c", "#ab3920"),
        ("#5da69e", "#439ea3"),
        ("#9387f0", "#b3aefa"),
    )
)
"""Colours that owners of partitions take in turn, with another pattern for each turn."""

SERIES: tuple[Colour, ...] = tuple(
    Colour(light, dark)
    for light, dark in (
        ("#4786dc", "#5a97ff"),
        ("#935938", "#e05111"),
        ("#499d87", "#a6f2c8"),
        ("#67097f", "#c35ba4"),
        ("#b57e0a", "#f7c219"),
        ("#811117", "#e79296"),
        ("#11708c", "#35c5f5"),
    )
)
"""Colours that lines of charts take in turn, with other dashes for each turn."""

HEAT: tuple[Colour, ...] = tuple(
    Colour(light, dark)
    for light, dark in (
        ("#fdf6d8", "#22303f"),
        ("#f9dc9a", "#28506a"),
        ("#f2b06b", "#2d7788"),
        ("#e07a5a", "#4ba08d"),
        ("#b84c68", "#8fc783"),
        ("#7a2f70", "#dbe677"),
    )
)
"""Colours from little to much; each also differs from the previous one in lightness."""


def about(state: str) -> str:
    """Return the subject of a state, whatever its spelling."""
    return ABOUT.get(_spelt(state), "idle")


def pattern(state: str) -> str:
    """Return the pattern of a state: pattern and colour together differ from all other states of the same
    page."""
    return VARIANTS.get(_spelt(state), STATES[about(state)].pattern)


def _spelt(state: str) -> str:
    """Return a name such as `PreparingRebalance` as `PREPARING_REBALANCE`."""
    spelt = "".join(
        f"_{c}" if c.isupper() and i and state[i - 1].islower() else c for i, c in enumerate(state)
    )
    return spelt.upper()


def _variables(dark: bool) -> str:
    named = dict(PAGE)
    named |= {f"state-{name}": fill.colour for name, fill in STATES.items()}
    named |= {f"owner-{number}": fill.colour for number, fill in enumerate(OWNERS)}
    named |= {f"series-{number}": colour for number, colour in enumerate(SERIES)}
    named |= {f"heat-{number}": colour for number, colour in enumerate(HEAT)}
    return "".join(f"--{name}:{colour[dark]};" for name, colour in named.items())


def style() -> str:
    """Return the colours as CSS variables: light or dark as in the system, unless the page's switch overrides
    it."""
    light, dark = _variables(False), _variables(True)
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
    )


def script() -> str:
    """Return the part of the palette that the page's script uses."""
    known = {
        "about": ABOUT,
        "variants": VARIANTS,
        "patterns": {name: fill.pattern for name, fill in STATES.items()},
        "turns": PATTERNS,
        "owners": len(OWNERS),
        "heat": len(HEAT),
    }
    return f"const PALETTE = {json.dumps(known, separators=(',', ':'))};\n"
