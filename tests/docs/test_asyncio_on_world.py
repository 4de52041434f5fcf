"""Tests on the page of EmbeddedKafka that await it run in a simulated world too, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fencepost import SimulatedWorld, run_simulated
from tests.docs.test_examples import examples, name_of

Found = Callable[[SimulatedWorld], Coroutine[Any, Any, None]]


def awaiting_tests() -> list[Any]:
    """The test functions of the page that take an `AsyncEmbeddedKafka`."""
    found = []
    for example in examples("python"):
        if example.page != "embedded.md" or "async def test_" not in example.text:
            continue
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(example.text, name_of(example), "exec"), names)
        found += [
            pytest.param(value, id=f"{name_of(example)}-{name}")
            for name, value in names.items()
            if name.startswith("test_") and callable(value)
        ]
    return found


def test_page_has_such_tests() -> None:
    assert awaiting_tests()


@pytest.mark.parametrize("function", awaiting_tests())
def test_example_runs_on_a_world(function: Found) -> None:
    (settings,) = [mark.kwargs for mark in function.pytestmark if mark.name == "kafka"]  # type: ignore[attr-defined]

    async def on_world(world: SimulatedWorld) -> None:
        await function(world)
        assert world.check() == []

    result = run_simulated(on_world, faults=(), **settings)
    assert not result.failed, result.trouble or result.violations
    assert result.segments > 0
