"""Streams applications on real brokers: clients of three threads each, disturbed as simulated ones are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fencepost.simulation.lab.chaos.run import run_real
from fencepost.simulation.scenarios.load import loads
from fencepost.simulation.scenarios.streams import StreamsScenario
from fencepost.simulation.trace.schema import RowKind
from tests.unit.simulation.kept_rows import KeptRows

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECOND = 1_000_000

FAILURES = """
protocol = "streams"
duration = "40s"
quiet = "16s"
[group]
id = "streams-chaos"
members = 3
threads = 3
rebalance_timeout = "20s"
start = "0s..2s"
[application]
poll = "500ms"
callback = "100ms"
commit_interval = "1s"
restart = "500ms..1s"
[[topics]]
name = "streams-chaos"
partitions = 6
records_per_second = 40
[[faults]]
kind = "thread-exception"
at = "6s"
response = "REPLACE_THREAD"
where = "processing"
[[faults]]
kind = "thread-exception"
at = "8s"
response = "SHUTDOWN_CLIENT"
where = "poll"
[[faults]]
kind = "thread-change"
at = "11s"
[[faults]]
kind = "member-crash"
at = "13s"
[[faults]]
kind = "connection-loss"
every = "4s"
[[faults]]
kind = "lost-response"
every = "4s"
"""
SHUTDOWN = """
[[faults]]
kind = "thread-exception"
at = "22s"
response = "SHUTDOWN_APPLICATION"
where = "processing"
"""


def scenario(text: str, protocol: str = "streams") -> StreamsScenario:
    made = loads(text, name="disturbed", overrides=[f"group.protocol={protocol}"])
    assert isinstance(made, StreamsScenario)
    return made


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["streams", "classic"])
async def test_every_answer_ends_as_it_should_on_kafka(cluster: Any, protocol: str) -> None:
    rows = KeptRows()
    result = await run_real(
        scenario(FAILURES + SHUTDOWN, protocol),
        3,
        cluster.bootstrap_servers,
        duration_us=16 * SECOND,
        trace=rows,
    )
    assert result.violations == []
    assert result.converged
    assert result.records_lost == 0
    assert result.records_sent > 30
    assert result.heartbeats > 5
    assert result.rebalances > 2
    assert result.skipped == []
    assert result.figures["clients_shut_down"] >= 2
    answers = {row.detail.split()[0] for row in rows if row.kind == RowKind.THREAD_FAILED}
    assert answers >= {"REPLACE_THREAD", "SHUTDOWN_CLIENT", "SHUTDOWN_APPLICATION"}
    kinds = Counter(row.kind for row in rows)
    assert kinds[RowKind.CLIENT_STATE] > 10
    assert kinds[RowKind.THREAD_STATE] > 30
    assert (rows[0].kind, rows[-1].kind) == (RowKind.RUN_START, RowKind.RUN_END)
