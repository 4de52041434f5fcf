"""The pages' colours: apart for all eyes, readable, and one for each state that a trace can hold."""

from __future__ import annotations

import itertools
import math
from enum import StrEnum

import pytest

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.protocol.sac import ConsumerStatus
from fencepost.coordinator.streams.states import StreamsGroupState
from fencepost.member.classic.states import ClassicMemberState
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.sac.states import SacMemberState
from fencepost.member.streams.client_states import StreamClientState
from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.report.palette import (
    ABOUT,
    HEAT,
    OWNERS,
    PAGE,
    PATTERNS,
    SERIES,
    STATES,
    Colour,
    about,
    pattern,
    script,
    style,
)

LIGHT, DARK = 0, 1
Rgb = tuple[float, float, float]

SIGHTS: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def linear(colour: str) -> Rgb:
    shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return red, green, blue


def seen(colour: str, sight: str) -> Rgb:
    """In Oklab, where distances are those that people feel: 0.02 is just noticeable."""
    given = linear(colour)
    r, g, b = (max(0.0, sum(k * c for k, c in zip(row, given, strict=True))) for row in SIGHTS[sight])
    l, m, s = (  # noqa: E741
        (x * r + y * g + z * b) ** (1 / 3)
        for x, y, z in (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        )
    )
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


KINDS: dict[str, tuple[dict[str, Colour], float]] = {
    "states": ({name: fill.colour for name, fill in STATES.items()}, 0.085),
    "owners": ({str(number): fill.colour for number, fill in enumerate(OWNERS)}, 0.12),
    "series": ({str(number): colour for number, colour in enumerate(SERIES)}, 0.085),
}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_two_colours_differ(kind: str, sight: str, theme: int) -> None:
    colours, least = KINDS[kind]
    for one, other in itertools.combinations(colours, 2):
        apart = math.dist(seen(colours[one][theme], sight), seen(colours[other][theme], sight))
        assert apart >= least, f"{one} and {other} are {apart:.3f} apart"


def test_the_measure_of_sight_finds_red_and_green_alike() -> None:
    red, green = "#c04040", "#6f7d2f"
    assert math.dist(seen(red, "all colours"), seen(green, "all colours")) > 0.2
    assert math.dist(seen(red, "deuteranopia"), seen(green, "deuteranopia")) < 0.085


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_are_readable(theme: int) -> None:
    for ground in ("panel", "page", "stripe", "heading"):
        for words in ("text", "muted", "accent", "bad", "ok"):
            apart = contrast(PAGE[words][theme], PAGE[ground][theme])
            assert apart >= 4.5, f"{words} on {ground}: {apart:.1f}"
    for fill in (*STATES.values(), *OWNERS):
        ink = "ink" if luminance(fill.colour[theme]) > 0.195 else "paper"
        assert contrast(PAGE[ink][theme], fill.colour[theme]) >= 4.5, fill
    for number, line in enumerate(SERIES):
        assert contrast(line[theme], PAGE["panel"][theme]) >= 3, number


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_the_heat_map_goes_one_way_in_lightness(sight: str, theme: int) -> None:
    lightness = [seen(colour[theme], sight)[0] for colour in HEAT]
    assert lightness == sorted(lightness, reverse=theme == LIGHT)
    assert min(abs(a - b) for a, b in itertools.pairwise(lightness)) > 0.04


STATE_MACHINES: tuple[type[StrEnum], ...] = (
    ConsumerMemberState,
    ClassicMemberState,
    GroupState,
    ClassicGroupState,
    StreamsGroupState,
    StreamClientState,
    StreamThreadState,
    SacMemberState,
    ConsumerStatus,
)


@pytest.mark.parametrize("machine", STATE_MACHINES, ids=lambda machine: machine.__qualname__)
def test_every_state_has_a_fill_of_its_own_kind(machine: type[StrEnum]) -> None:
    for state in machine:
        if state.value != "UNREGISTERED":
            spelt = "".join(
                "_" + c if c.isupper() and state.value != state.value.upper() else c for c in state.value
            )
            assert about(state.value) == ABOUT[spelt.strip("_").upper()]
            assert about(state.value) in STATES


ON_ONE_PAGE: tuple[tuple[type[StrEnum], ...], ...] = (
    (ConsumerMemberState, ClassicMemberState, GroupState, ClassicGroupState),
    (ConsumerMemberState, StreamsGroupState),
    (StreamClientState, StreamThreadState),
    (SacMemberState,),
    (ConsumerStatus,),
)


@pytest.mark.parametrize("machines", ON_ONE_PAGE, ids=lambda machines: machines[0].__qualname__)
def test_states_of_one_page_differ_in_colour_or_pattern(machines: tuple[type[StrEnum], ...]) -> None:
    drawn: dict[tuple[str, str], set[str]] = {}
    for state in (state for machine in machines for state in machine if state.value != "UNREGISTERED"):
        looks = (about(state.value), pattern(state.value))
        drawn.setdefault(looks, set()).add(state.value.replace("_", "").lower())
    assert [states for states in drawn.values() if len(states) > 1] == []


def test_patterns_are_known_and_colours_reach_the_page() -> None:
    assert {fill.pattern for fill in (*STATES.values(), *OWNERS)} <= set(PATTERNS)
    text = style()
    assert text.count("--state-good:") == 3
    assert PAGE["panel"].dark in text
    assert '"UNJOINED":"joining"' in script()
