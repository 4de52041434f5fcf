"""`fencepost cluster`: a real Kafka on this machine, for tests and comparisons."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated, Literal, NamedTuple

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Json, only_with, whole
from fencepost.simulation.cli.brokers import Kafka
from fencepost.simulation.cli.output import print_json
from fencepost.simulation.lab.clusters.cluster import RealCluster, tidy_up
from fencepost.simulation.lab.clusters.runner import Condition
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, KafkaVersion, Profile
from fencepost.simulation.lab.clusters.state import UP, ClusterState, RunnerName, StateFolder, find


class NodeReport(msgspec.Struct, frozen=True):
    """One node, for people and programs."""

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


def cluster(
    action: Annotated[
        Literal["up", "down", "status"], Parameter(help="up starts it, down ends it, status tells how it is.")
    ],
    /,
    *,
    nodes: Annotated[Literal[1, 3], Parameter(help="One node, or three with three replicas.")] = 1,
    runner: Annotated[
        RunnerName, Parameter(help="JVM processes (needs Java and Maven), or docker compose.")
    ] = "jvm",
    profile: Annotated[
        Profile, Parameter(help="How soon a dead member is noticed: after 2 s, or Kafka's own 45 s.")
    ] = "fast",
    kafka: Kafka = KAFKA_VERSION,
    port: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=65535),
            converter=whole,
            help="The first node's; the others' follow it. Without, free ones are found.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """A real Kafka on this machine, reachable over loopback only. There is at most one.

    `up` returns when every node serves, at once if it is up already. `down` kills it and deletes its data.
    """
    if action != "up":
        options = {
            "--nodes": (nodes, 1),
            "--runner": (runner, "jvm"),
            "--profile": (profile, "fast"),
            "--kafka": (kafka, KAFKA_VERSION),
            "--port": (port, None),
        }
        only_with("up", options)
    if action == "up":
        report = asyncio.run(_up(_Wanted(nodes, runner, profile, kafka, port)))
    elif action == "down":
        report = _down()
    else:
        report = asyncio.run(_status())
    if json:
        print_json(report)
    else:
        _print(report, action)
    return 0


class _Wanted(NamedTuple):
    """What `up` was asked for."""

    nodes: int
    runner: RunnerName
    profile: Profile
    kafka: KafkaVersion
    port: int | None


async def _up(wanted: _Wanted) -> ClusterReport:
    """Start the cluster, or find that it is up. SIGTERM stops it half-way as Ctrl-C does."""
    if (folder := _found()) is not None:
        return await _stays(folder, wanted)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    started = RealCluster(**wanted._asdict(), name=UP)
    try:
        await started.start()
    except FileExistsError as error:
        raise FencepostError("another `fencepost cluster up` is starting one") from error
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    report = await _report(started)
    started.leave_up()
    return report


async def _stays(folder: StateFolder, wanted: _Wanted) -> ClusterReport:
    """The report of a cluster that is up, if it is the one that was asked for.

    :raises FencepostError: if it is another, or some of its nodes are not running.
    """
    state = folder.state
    first = state.nodes[0].clients.port
    have = _Wanted(len(state.nodes), state.runner, state.profile, state.kafka, first)
    if have != wanted._replace(port=first if wanted.port is None else wanted.port):
        raise FencepostError(
            f"another one is up ({_named(state)}, first port {first}): fencepost cluster down, then up again"
        )
    report = await _report(RealCluster.attached(folder))
    if any(broker.condition != Condition.RUNNING for broker in report.brokers):
        raise FencepostError(
            "it is up, but not all of its nodes are running: fencepost cluster down, then up again"
        )
    return report


def _found() -> StateFolder | None:
    tidy_up()
    return find(UP)


def _down() -> ClusterReport:
    folder = _found()
    if folder is None:
        return ClusterReport()
    state = folder.state
    RealCluster.attached(folder).stop()
    return _of(state, dict.fromkeys((node.node_id for node in state.nodes), Condition.STOPPED))


async def _status() -> ClusterReport:
    folder = _found()
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


def _print(report: ClusterReport, action: str) -> None:
    from fencepost.simulation.cli.terminal import Terminal

    out = Terminal()
    if report.bootstrap is None:
        out.say("no cluster is up")
    elif action == "down":
        out.say("the cluster is down, its data is deleted")
    else:
        out.say(f"Kafka {report.kafka}, {report.runner}, {report.profile} profile\n")
        rows = [(str(each.node), each.address, each.condition) for each in report.brokers]
        out.table(("node", "address", "condition"), rows)
        out.say(f"\nbootstrap.servers={report.bootstrap}")
