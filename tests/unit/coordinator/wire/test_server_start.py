"""Where and with what the endpoint starts, and what it says to what it can't start with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.brokers import Broker, Brokers
from tests.unit.coordinator.wire.raw_client import (
    Wire,
)

pytestmark = pytest.mark.real


async def test_a_broker_that_listens_everywhere_tells_the_address_that_was_used():
    async with Broker(host="0.0.0.0") as broker:
        wire = await Wire.to(broker)
        (node,) = (await wire.ask(3, 12, topics=())).brokers
        assert (node.host, node.port) == ("127.0.0.1", broker.port)
        (found,) = (await wire.ask(10, 4, coordinator_keys=("g",))).coordinators
        assert (found.host, found.port, found.error_code) == ("127.0.0.1", broker.port, 0)


async def test_an_occupied_port_is_told_with_what_to_do(broker):
    with pytest.raises(
        EnvironmentLacks, match=f"port {broker.port} on 127.0.0.1 is taken: .* another port"
    ) as caught:
        await Brokers(ports=(broker.port,)).serve(print)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_a_foreign_address_is_told(host):
    with pytest.raises(EnvironmentLacks, match=f"{host} is not an address of this machine"):
        await Broker(host=host).start()


@pytest.mark.parametrize("topics", [{"no/slash": 1}, {"none": 0}, {"": 1}, {"huge": 10**9}])
def test_topics_that_kafka_would_refuse_are_refused(topics):
    with pytest.raises(FencepostError):
        Broker(topics)


async def test_serve_says_when_it_is_ready_and_ends_when_cancelled():
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(Brokers({"orders": 1}).serve(ready.set_result))
    broker = await asyncio.wait_for(ready, 5)
    wire = await Wire.to(broker)
    assert (await wire.ask(18, 0)).error_code == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wire.ended()


FIRST_REQUEST = """
import asyncio, sys
from fencepost.coordinator.server.brokers import Broker

async def main():
    async with Broker({"t": 1}) as broker:
        before = set(sys.modules)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(bytes.fromhex(sys.argv[1]))
        await reader.readexactly(4)
        writer.close()
        print(*{name.partition(".")[0] for name in set(sys.modules) - before} - {"kio"})

asyncio.run(main())
"""
FIRST_RECORD = (
    "0000006b 0000 0003 00000001 000161 ffff 0001 000003e8 00000001 000174 00000001 00000000 00000045"
    " 0000000000000000 00000039 ffffffff 02 9e41f0b2 0000 00000000 0000000000000000 0000000000000000"
    " ffffffffffffffff ffff ffffffff 00000001 0e 00 00 00 01 02 76 00"
)


@pytest.mark.processes
@pytest.mark.parametrize(
    "request_",
    ["00000011 0012 0004 00000001 0001 61 00 0261 0262 00", FIRST_RECORD],
    ids=["ApiVersions", "Produce"],
)
def test_the_first_client_waits_for_no_library(request_):
    """What is imported while it waits takes seconds on a busy machine, and its thread may import it too."""
    asked = subprocess.run(
        [sys.executable, "-c", FIRST_REQUEST, request_],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert asked.stdout.split() == []


BESIDE_HYPOTHESIS = """
import asyncio, sys
from fencepost.coordinator.server.brokers import Broker

async def main():
    async with Broker():
        print(*(name for name in sys.modules if name.partition(".")[0] == "hypothesis"))

asyncio.run(main())
import hypothesis.strategies
print(hypothesis.strategies.__name__)
"""


@pytest.mark.processes
@pytest.mark.parametrize("first", ["", "import hypothesis.strategies as known\n"], ids=["later", "before"])
def test_hypothesis_is_left_alone_and_leaves_nothing_where_a_broker_runs(tmp_path, first):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPOTHESIS_")}
    ran = subprocess.run(
        [sys.executable, "-c", first + BESIDE_HYPOTHESIS],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    names, again = ran.stdout.splitlines()
    assert again == "hypothesis.strategies"
    assert bool(names) == bool(first)
    assert list(tmp_path.iterdir()) == []
