"""Tables of a file as typed values: what each mistake is told as."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from fencepost.simulation.scenarios.typed import Misplaced, Places, shown_path, typed
from fencepost.simulation.scenarios.values import Duration, decode_value


class Cat(msgspec.Struct, tag="cat", tag_field="kind", forbid_unknown_fields=True):
    lives: Annotated[int, Meta(ge=1)] = 9


class Dog(msgspec.Struct, tag="dog", tag_field="kind", forbid_unknown_fields=True):
    tricks: tuple[str, ...] = ()


class House(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    colour: Literal["red", "green"] = "red"
    pets: tuple[Cat | Dog, ...] = ()
    rooms: dict[str, tuple[int, ...]] = {}
    garden: Cat | None = None
    numbers: tuple[int, ...] | str = ""
    age: Duration | None = None


MISTAKES = [
    ({}, "", "the key name is missing"),
    ([], "", "expected a table, got an empty one"),
    ({"name": 1}, "name", "expected text, got 1"),
    ({"name": "a", "nmae": 1}, "nmae", "unknown key; did you mean name?"),
    ({"name": "a", "colour": "blue"}, "colour", "expected one of red, green, got 'blue'"),
    ({"name": "a", "pets": [{"kind": "cow"}]}, "pets[0].kind", "expected one of cat, dog, got 'cow'"),
    ({"name": "a", "pets": [{"kind": "dog", "lives": 2}]}, "pets[0].lives", "unknown key; expected one"),
    ({"name": "a", "pets": [{"kind": "dog"}, {}]}, "pets[1]", "the key kind is missing"),
    ({"name": "a", "garden": {"kind": "cat", "lives": 0}}, "garden.lives", "of at least 1, got 0"),
    ({"name": "a", "rooms": {"up": [1], "down": [1, "x"]}}, "rooms.down[1]", 'got "x"'),
    ({"name": "a", "rooms": {"up": 3}}, "rooms.up", "expected a list, got 3"),
    ({"name": "a", "numbers": 3}, "numbers", "expected text or a list, got 3"),
    ({"name": "a", "numbers": [1, "x"]}, "numbers[1]", 'expected a whole number, got "x"'),
    ({"name": "a", "age": "old"}, "age", "expected a duration such as"),
]


@pytest.mark.parametrize(("raw", "place", "told"), MISTAKES)
def test_a_mistake_has_its_path_and_what_was_expected(raw: object, place: str, told: str) -> None:
    with pytest.raises(Misplaced) as raised:
        typed(raw, House, decode_value)
    assert (shown_path(raised.value.path), told in raised.value.message) == (place, True), (
        raised.value.message
    )


def test_what_fits_is_the_value() -> None:
    raw = {"name": "a", "pets": [{"kind": "dog", "tricks": ["sit"]}], "age": "2h"}
    assert typed(raw, House, decode_value) == House("a", pets=(Dog(("sit",)),), age=Duration(7_200_000_000))


def test_places_are_lines_of_the_file() -> None:
    places = Places("house.toml", 'name = "a"\n[rooms]\nup = 3\n')
    assert str(places.error(("rooms", "up"), "too few")) == "house.toml:3: rooms.up: too few"
    assert str(places.error(("garden",), "missing")) == "house.toml: garden: missing"
    assert str(places.error((), "missing")) == "house.toml: missing"


def test_a_table_inside_of_a_repeated_one_is_told_with_its_own_line() -> None:
    text = """
[[options]]
name = "a"
[options.set]
group.members = 1
[[options]]
name = "b"
[options.set]
group.members = 2
[[options.rows]]
x = 1
[[options.rows]]
x = 2
[[options]]
[[options.rows]]
x = 3
"""
    places = Places("x.toml", text)
    told = {
        ("options", 0, "set", "group", "members"): 5,
        ("options", 1): 6,
        ("options", 1, "set"): 8,
        ("options", 1, "set", "group", "members"): 9,
        ("options", 1, "rows", 1, "x"): 13,
        ("options", 2, "rows", 0): 15,
        ("options", 2, "rows", 0, "x"): 16,
    }
    assert {path: places.at(path) for path in told} == {path: f"x.toml:{line}" for path, line in told.items()}


def test_text_that_looks_like_a_table_is_none() -> None:
    assert Places("x.toml", 'name = """\n[é]\n[[é]]\n"""\n').at(("name",)) == "x.toml:1"
