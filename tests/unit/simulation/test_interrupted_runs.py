"""Ctrl-C while something is simulated that takes exceptions of any kind for its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.streams.client import StreamsClientHost
from fencepost.simulation.streams.world import StreamsWorld

SCENARIO = load_any("streams-failures", duration="4m")


def interrupt_in_a_stream_thread(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> list[int]:
    process, sent = StreamsClientHost._process, list[int]()

    async def interrupted(self: StreamsClientHost, partition: TopicPartition, records: Sequence[int]) -> None:
        if len(sent) < times:
            sent.append(self.loop.now_us)
            os.kill(os.getpid(), signal.SIGINT)
        await process(self, partition, records)

    monkeypatch.setattr(StreamsClientHost, "_process", interrupted)
    return sent


def test_an_interrupt_ends_the_run_and_no_thread_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = interrupt_in_a_stream_thread(monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(SCENARIO, 1)
    assert len(sent) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_at_the_very_end_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    end = StreamsWorld.end

    def interrupted(self: StreamsWorld) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return end(self)

    monkeypatch.setattr(StreamsWorld, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(SCENARIO, 1)


def test_who_hears_interrupts_and_goes_on_has_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(SCENARIO, 1)
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        interrupt_in_a_stream_thread(monkeypatch, times=3)
        again = run(SCENARIO, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] * 3
    assert again.digest == whole.digest
    assert again.virtual_seconds == whole.virtual_seconds


def test_a_step_that_does_not_end_is_interrupted_at_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(self: StreamsClientHost) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one was held back, too")

    monkeypatch.setattr(StreamsClientHost, "start", endless)
    with pytest.raises(KeyboardInterrupt):
        run(SCENARIO, 1)


def test_what_is_left_to_wait_for_may_be_less_than_a_microsecond() -> None:
    """In this run a thread rests until 294.832 s, and is told then that 6e-14 s are left."""
    assert run(load_any("streams-frozen-clients"), 45).violations == []
