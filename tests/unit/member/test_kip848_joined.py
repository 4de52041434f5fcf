"""The wait of a consumer's start for its first assignment, in a group that goes on at once."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from fencepost.member.base.clock import LoopClock
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.consumer.states import ConsumerMemberEvent as E
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.kafka.member import KafkaMember


class Restless(KafkaMember):
    """A member that takes up each assignment, and has the next one before anything else may run."""

    def _make_driver(self, clock: LoopClock, **options: Any) -> MagicMock:
        self.watch = options["observer"]
        return MagicMock(state=S.JOINING, assignment=(), changes=0)

    def take_up(self) -> None:
        for event, source, target in (
            (E.TARGET_RECEIVED, S.JOINING, S.RECONCILING),
            (E.TARGET_OWNED, S.RECONCILING, S.ACKNOWLEDGING),
            (E.TARGET_RECEIVED, S.ACKNOWLEDGING, S.RECONCILING),
        ):
            self.driver.state = target  # type: ignore[misc]
            self.watch.on_state(event, source, target)


async def test_start_ends_with_the_first_assignment_although_the_next_one_is_there_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencepost.member.kafka.member.Fetching", MagicMock())
    monkeypatch.setattr("fencepost.member.kafka.member.KafkaTransport", MagicMock())
    session = Restless(
        MagicMock(),
        MagicMock(),
        "billing",
        ConsumerConfig(),
        listener=MagicMock(),
        observer=None,
        fetch_settings={},
    )

    async def wait(timeout_s: float | None) -> None:
        await asyncio.sleep(0.1)
        session.take_up()

    session.fetching.wait = wait  # type: ignore[method-assign]
    session.fetching.handed.return_value = {}  # type: ignore[attr-defined]
    session.subscribe(["orders"], None)
    await asyncio.wait_for(session.joined(), 60)
    session.settle()
