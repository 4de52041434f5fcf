"""What the proxy costs: the same load directly on our broker and through the proxy, in one run.

    python benchmarks/proxy.py [--seconds N] [--rounds N] [--json]

Broker, proxy and load have a process each, so on two cores they compete; rounds alternate, and only the
ratios say anything. `watched` is the proxy with an observer and with a rule that looks into heartbeats. The
CPU time is the proxy's own, from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import wire

from fencepost.simulation.kafka.requests import moves_epoch
from fencepost.simulation.kernel.rules import Matching, dropping
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.proxy import Proxy

HERE = Path(__file__).resolve()
WAYS = ("direct", "proxied", "watched")
CONNECTIONS = 20


async def serve(port: int, watched: bool) -> None:
    observer = ProxyObserver() if watched else None
    async with Proxy({1: ("127.0.0.1", port)}, rng=random.Random(1), observer=observer) as proxy:
        if watched:
            # Nothing moves an epoch here and is lost, but each heartbeat is looked into.
            never = Matching(
                dropping,
                api_keys={68},
                condition=lambda message: moves_epoch(message.request, message.response) and False,
            )
            proxy.rules.append(never)
        print(f"ready {proxy.bootstrap_servers}", flush=True)
        await asyncio.Event().wait()


async def measure(server: wire.Server, seconds: float) -> dict[str, float]:
    produced = await wire.produce(server, seconds)
    fetched = await wire.fetch(server, seconds)
    beats = await wire.heartbeats(server, CONNECTIONS, seconds)
    return {
        "produce MB/s": produced["mb_per_second"],
        "fetch MB/s": fetched["mb_per_second"],
        "heartbeats/s": beats["per_second"],
        "produce CPU us/MB": produced["cpu_us_per_mb"],
        "fetch CPU us/MB": fetched["cpu_us_per_mb"],
        "heartbeat CPU us": beats["cpu_us"],
    }


def run(seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for way in WAYS * rounds:
        with contextlib.ExitStack() as stack:
            command = [sys.executable, str(Path(wire.__file__)), "--serve"]
            server = stack.enter_context(wire.running("fencepost", command))
            if way != "direct":
                command = [sys.executable, str(HERE), "--serve", str(server.port)]
                command += ["--watched"] if way == "watched" else []
                server = stack.enter_context(wire.running(way, command))
            found[way].append(asyncio.run(measure(server, seconds)))
    return {
        way: {title: statistics.median(one[title] for one in results) for title in results[0]}
        for way, results in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve, arguments.watched))
        return
    results: dict[str, Any] = run(arguments.seconds, arguments.rounds)
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{'':20}" + "".join(f"{way:>12}{'ratio':>8}" for way in results))
    for title, direct in results["direct"].items():
        cells = ""
        for result in results.values():
            ratio = "" if "CPU" in title else f"{result[title] / direct:.2f}"
            cells += f"{result[title]:12,.1f}{ratio:>8}"
        print(f"{title:20}{cells}")


if __name__ == "__main__":
    main()
