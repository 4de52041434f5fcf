"""`fencepost cluster`: a real Kafka on this machine, for tests and comparisons."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Json, given_options, only_with, within
from fencepost.simulation.cli.brokers import Kafka
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.lab.clusters.cluster import RealCluster, tidy_up
from fencepost.simulation.lab.clusters.processes import Condition
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, Profile
from fencepost.simulation.lab.clusters.state import UP, ClusterState, RunnerName, StateFolder, find
from fencepost.simulation.pipeline.progress import progress_for


class NodeReport(msgspec.Struct, frozen=True):
    """The state of one node."""

    node: int
    address: str
    condition: str


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`; without a cluster `nodes` is 0 and `bootstrap` null."""

    bootstrap: str | None = None
    runner: RunnerName | None = None
    nodes: int = 0
    profile: Profile | None = None
    cluster_id: str | None = None
    kafka: str | None = None
    brokers: tuple[NodeReport, ...] = ()


@Parameter(name="*")
@dataclass(frozen=True)
class WantedCluster:
    """The cluster that `up` is asked for."""

    nodes: Annotated[Literal[1, 3], Parameter(help="One node, or three with three replicas.")] = 1
    runner: RunnerName = "jvm"
    """JVM processes (needs Java and Maven), or docker compose."""
    profile: Profile = "fast"
    """Session timeout: 2 s (fast), or Kafka's default of 45 s (stock)."""
    kafka: Kafka = KAFKA_VERSION
    port: Annotated[
        int | None,
        within(1, 65535, "Port of the first node; the others use the next ports. Default: free ports."),
    ] = None


def cluster(
    action: Annotated[
        Literal["up", "down", "status"], Parameter(help="up starts it, down ends it, status shows its nodes.")
    ],
    /,
    *,
    wanted: WantedCluster = WantedCluster(),
    name: Annotated[
        str, Parameter(help="Name of the cluster (letters, digits, hyphens); several may be up at a time.")
    ] = UP,
    json: Json = False,
) -> int:
    """Start, stop or show a real Kafka cluster on this machine, reachable over loopback only.

    `up` returns when every node serves, or at once if the cluster is already up. `down` kills it and deletes
    its data. There is at most one cluster of each name.
    """
    if not _NAME.fullmatch(name):
        raise FencepostError(
            f"--name {name}: expected up to 40 letters, digits and hyphens that do not begin with run-"
        )
    if action != "up":
        only_with("the action up", *given_options(wanted))
    if action == "up":
        progress = progress_for(json=json, lines=True)
        report = asyncio.run(_up(name, wanted, progress.say))
    elif action == "down":
        report = _down(name)
    else:
        report = asyncio.run(_status(name))
    print_result(report, _print, action, name, json=json)
    return 0


_NAME = re.compile(r"(?!run-)[A-Za-z0-9][A-Za-z0-9-]{0,39}")
"""Folders of clusters that tests start have names of their own, which begin with run-."""
_LIFE_SECONDS = 10.0


async def _up(name: str, wanted: WantedCluster, say: Callable[[str], None]) -> ClusterReport:
    """Start the cluster, unless it is up. SIGTERM stops the start as Ctrl-C does."""
    if (folder := _found(name)) is not None:
        return await _stays(folder, wanted)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    started = RealCluster(**asdict(wanted), name=name, say=say)
    living = asyncio.create_task(_sign_of_life(say))
    try:
        await started.start()
    except FileExistsError as error:
        raise FencepostError(
            "another `fencepost cluster up` is starting this cluster: wait for it"
        ) from error
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    finally:
        living.cancel()
    report = await _report(started)
    started.leave_up()
    return report


async def _sign_of_life(say: Callable[[str], None]) -> None:
    """Say every `_LIFE_SECONDS` that the start goes on."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(_LIFE_SECONDS)
        say(f"still starting, {time.monotonic() - began:.0f} s so far")


async def _stays(folder: StateFolder, wanted: WantedCluster) -> ClusterReport:
    """Return the report of a cluster that is up, if it is the one that was asked for.

    :raises FencepostError: if it is a different one, or some of its nodes are not running.
    """
    state = folder.state
    first = state.nodes[0].clients.port
    have = len(state.nodes), state.runner, state.profile, state.kafka, first
    if have != astuple(replace(wanted, port=first if wanted.port is None else wanted.port)):
        raise FencepostError(
            f"another cluster is up ({_named(state)}, first port {first}): fencepost cluster down, then up "
            "again"
        )
    report = await _report(RealCluster.attached(folder))
    if any(broker.condition != Condition.RUNNING for broker in report.brokers):
        raise FencepostError(
            "the cluster is up, but not all of its nodes are running: fencepost cluster down, then up again"
        )
    return report


def _found(name: str) -> StateFolder | None:
    tidy_up()
    return find(name)


def _down(name: str) -> ClusterReport:
    folder = _found(name)
    if folder is None:
        return ClusterReport()
    state = folder.state
    RealCluster.attached(folder).stop()
    return _of(state, dict.fromkeys((node.node_id for node in state.nodes), Condition.STOPPED))


async def _status(name: str) -> ClusterReport:
    folder = _found(name)
    return ClusterReport() if folder is None else await _report(RealCluster.attached(folder))


async def _report(running: RealCluster) -> ClusterReport:
    return _of(running.state, await running.conditions())


def _of(state: ClusterState, conditions: dict[int, Condition]) -> ClusterReport:
    return ClusterReport(
        bootstrap=state.bootstrap_servers,
        runner=state.runner,
        nodes=len(state.nodes),
        profile=state.profile,
        cluster_id=state.cluster_id,
        kafka=state.kafka,
        brokers=tuple(
            NodeReport(node.node_id, node.clients.address, conditions[node.node_id].value)
            for node in state.nodes
        ),
    )


def _named(state: ClusterState) -> str:
    count = len(state.nodes)
    return f"Kafka {state.kafka}, {count} node{'s' if count > 1 else ''}, {state.runner}, {state.profile}"


def _print(report: ClusterReport, action: str, name: str) -> None:
    out = Terminal()
    if report.bootstrap is None:
        out.say("no cluster is up" if name == UP else f"no cluster {name} is up")
    elif action == "down":
        out.say("the cluster is down, its data is deleted")
    else:
        out.say(f"Kafka {report.kafka}, {report.runner}, {report.profile} profile\n")
        rows = [(str(each.node), each.address, each.condition) for each in report.brokers]
        out.table(("node", "address", "condition"), rows)
        out.say(f"\nbootstrap.servers={report.bootstrap}")
