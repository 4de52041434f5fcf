"""Libraries that lead out of a world are refused before they do harm; SQLite has the world's clock."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.simulation.world.test_world_network import virtually

_PROGRAM = """
import asyncio, fencepost, sys

async def program():
    IMPORT
    CALL

async def test(world):
    world.process("worker", program)
    await asyncio.sleep(1)

for _ in range(2):  # the second time, all is loaded
    (violation,) = fencepost.run_simulated(test, brokers=1, faults=()).violations
    print(violation.message)
"""
_FAKE = {
    "grpc/__init__.py": "",
    "grpc/_cython/__init__.py": "",
    "grpc/_cython/cygrpc.py": "class AioChannel:\n def __init__(self): print('HARM')\n",
    "grpc/aio.py": "from ._cython.cygrpc import AioChannel\ndef insecure_channel(_): return AioChannel()\n",
    "psycopg/__init__.py": "from psycopg.connection_async import AsyncConnection\n",
    "psycopg/connection_async.py": (
        "class AsyncConnection:\n @classmethod\n async def connect(cls, where): print('HARM')\n"
    ),
    "queue_of_others.py": "import socket\ndef start(): socket.socketpair()\n",
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("imports", "call", "label", "by"),
    [
        (
            "from confluent_kafka import Consumer",
            'Consumer({"bootstrap.servers": "kafka:9092", "group.id": "g"})',
            "confluent_kafka.Consumer()",
            "",
        ),
        ("import kafka", "kafka.KafkaAdminClient()", "kafka.KafkaAdminClient()", ""),
        ("import grpc.aio", 'grpc.aio.insecure_channel("a:1")', "grpc.AioChannel()", "grpc (grpc/aio.py:2)"),
        (
            "import psycopg",
            'await psycopg.AsyncConnection.connect("host=a")',
            "psycopg.AsyncConnection.connect()",
            "",
        ),
        (
            "import queue_of_others",
            "queue_of_others.start()",
            "socket.socketpair()",
            "queue_of_others (queue_of_others.py:2)",
        ),
    ],
)
def test_library_that_a_program_imports_in_a_run_is_refused_by_its_name(
    tmp_path: Path, imports: str, call: str, label: str, by: str
) -> None:
    libraries = tmp_path / "site-packages"
    for name, text in _FAKE.items():
        file = libraries / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "shop.py").write_text(_PROGRAM.replace("IMPORT", imports).replace("CALL", call))
    run = f"import sys; sys.path.insert(0, {str(libraries)!r}); import shop"
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "HARM" not in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"{label} can't run in a simulated world: ")
        assert "(called at shop.py:6 in program" in line
        assert f", by the library {by})" in line if by else ", by the library" not in line


_QUERY = """
SELECT datetime('now'), date(), time('NOW', '+1 minute'), strftime('%Y %f', 'now'), CURRENT_TIMESTAMP,
       CURRENT_DATE, CURRENT_TIME, julianday('now'), unixepoch(), random(), hex(randomblob(8)), random()
"""


def _asked() -> list[Any]:
    with sqlite3.connect(":memory:") as connection:
        connection.execute(
            "CREATE TABLE t (at TEXT DEFAULT CURRENT_TIMESTAMP, day TEXT, x DEFAULT (random()))"
        )
        connection.execute("CREATE INDEX i ON t (date(day))")
        connection.execute("INSERT INTO t (day) VALUES ('2024-02-29 12:00'), ('2023-01-01')")
        rows = connection.execute("SELECT at, date(day, '+1 year'), x FROM t ORDER BY random()").fetchall()
        return [*connection.execute(_QUERY).fetchone(), *rows]


def test_sqlite_has_the_clock_and_the_randomness_of_the_seed() -> None:
    kept = []

    async def main() -> list[Any]:
        kept.append(sqlite3.connect(":memory:"))
        return _asked()

    first = virtually(main, seed=7)
    assert first == virtually(main, seed=7)
    other = virtually(main, seed=8)
    now = "2026-01-01 00:00:00"
    days = (now[:10], "00:01:00", "2026 00.000", now, now[:10], now[11:], 2461041.5, 1_767_225_600)
    assert tuple(first[:9]) == (now, *days)
    assert first[:9] == other[:9]
    assert all(mine != theirs for mine, theirs in zip(first[9:12], other[9:12], strict=True))
    assert first[9] != first[11]
    assert {row[:2] for row in first[12:]} == {(now, "2025-03-01"), (now, "2024-01-01")}
    real = time.time()
    for connection in (*kept, sqlite3.connect(":memory:")):
        (seconds,) = connection.execute("SELECT unixepoch('now')").fetchone()
        assert abs(seconds - real) < 60
        connection.close()
