"""What all tests share: async tests run in virtual time, unless they are marked `real`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog

from fencepost.simulation.world.loop import VirtualLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real") is not None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": lambda: VirtualLoop(max_events=5_000_000)}


@pytest.fixture(autouse=True)
def _logs_are_not_configured() -> Iterator[None]:
    """The command line configures logs for its process; the next test is another program."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
