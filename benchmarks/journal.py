"""What a durable journal costs: commits a second in memory, with a flush for each, and with shared flushes.

    python benchmarks/journal.py [--seconds N] [--json]

The server has a process of its own. Each connection commits an offset, waits for its answer and commits the
next one; with a shared flush all that one turn of the server's loop writes reaches the disk together. On a
shared machine only the ratio within one run says anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from wire import Client, Server, connect, frame, nested, running

from fencepost.coordinator.server.brokers import Broker
from fencepost.coordinator.server.storage import Storage

HERE = Path(__file__).resolve()
MODES = ("memory", "each", "shared")
CONNECTIONS = (1, 10, 100)


def commit(number: int, offset: int) -> bytes:
    partition = nested(
        8,
        9,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=offset,
        committed_metadata="",
    )
    topic = nested(8, 9, "OffsetCommitRequestTopic", name="log", partitions=(partition,))
    return frame(8, 9, {"group_id": f"group-{number}", "topics": (topic,), "member_id": ""})


async def commits(server: Server, connections: int, seconds: float) -> dict[str, float]:
    count, going = 0, True
    requests: dict[Client, bytes] = {}

    def answered(client: Client, data: bytes) -> None:
        nonlocal count
        assert data[-4:-2] == b"\0\0" or data[-6:-4] == b"\0\0", data
        count += 1
        if going:
            client.transport.write(requests[client])

    for number in range(connections):
        requests[await connect(server.port, answered)] = commit(number, number)
    for client, request in requests.items():
        client.transport.write(request)
    await asyncio.sleep(0.3)
    cpu, began, before = server.cpu_s(), time.perf_counter(), count
    await asyncio.sleep(seconds)
    took, used, done = time.perf_counter() - began, server.cpu_s() - cpu, count - before
    going = False
    await asyncio.sleep(0.05)
    for client in requests:
        client.transport.close()
    return {"per_second": done / took, "cpu_us": used / done * 1e6}


async def serve_forever(mode: str, folder: str) -> None:
    storage = None if mode == "memory" else Storage(Path(folder) / "journal")
    if storage is not None and mode == "each":
        storage._journal.on_pending = None
    async with Broker({"log": 1}, storage=storage) as broker:
        print(f"ready {broker.bootstrap_servers}", flush=True)
        await broker.until_failure()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve_forever(*arguments.serve))
        return
    results: dict[str, dict[str, dict[str, float]]] = {}
    for mode in MODES:
        with tempfile.TemporaryDirectory(dir=HERE.parents[1]) as folder:
            command = [sys.executable, str(HERE), "--serve", mode, folder]
            with running(mode, command) as server:
                results[mode] = {
                    str(count): asyncio.run(commits(server, count, arguments.seconds))
                    for count in CONNECTIONS
                }
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{'commits a second':28}" + "".join(f"{mode:>12}" for mode in MODES))
    for count in CONNECTIONS:
        cells = "".join(f"{results[mode][str(count)]['per_second']:12,.0f}" for mode in MODES)
        print(f"{f'{count} connections':28}{cells}")


if __name__ == "__main__":
    main()
