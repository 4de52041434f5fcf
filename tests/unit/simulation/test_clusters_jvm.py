"""Clusters of JVM processes: what they do, how they fail, and what is left. Java is played by a script."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.lab.clusters import artifacts, classes, ports, state
from fencepost.simulation.lab.clusters.cluster import RealCluster, tidy_up
from fencepost.simulation.lab.clusters.ports import PortTaken
from fencepost.simulation.lab.clusters.processes import Condition, ProcessIdentity, sight_of
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, property_texts
from tests.unit.simulation.fake_machine import MAIN_JAR, prepare_machine, script

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"),
]

FETCHED = ("a.jar", "b.jar", MAIN_JAR)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare_machine(tmp_path, monkeypatch)


def left() -> list[str]:
    """What is in the folder for clusters."""
    folder = state.clusters_directory()
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def processes_of(machine: Path) -> list[int]:
    """The nodes that run from this machine's folders, whoever started them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(machine).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def nothing_is_left(machine: Path) -> bool:
    return left() == [] and processes_of(machine) == []


@pytest.mark.processes
async def test_three_nodes_are_killed_paused_and_restarted(machine: Path) -> None:
    async with RealCluster(nodes=3) as cluster:
        addresses = cluster.bootstrap_servers
        assert len(set(addresses.split(","))) == 3
        assert cluster.node_ids == (1, 2, 3)
        assert cluster.features == {"group.version": 1}
        assert len(processes_of(machine)) == 3
        await cluster.kill(2)
        await cluster.pause(3)
        stopped, paused, running = Condition.STOPPED, Condition.PAUSED, Condition.RUNNING
        assert await cluster.conditions() == {1: running, 2: stopped, 3: paused}
        await cluster.restart(2)
        await cluster.resume(3)
        assert await cluster.conditions() == {1: running, 2: running, 3: running}
        await cluster.pause(3)
        await cluster.restart(3)
        assert cluster.bootstrap_servers == addresses
    assert nothing_is_left(machine)


@pytest.mark.processes
async def test_clusters_are_strangers_to_each_other(machine: Path) -> None:
    async with RealCluster() as one, RealCluster() as other:
        assert one.cluster_id != other.cluster_id
        assert one.bootstrap_servers != other.bootstrap_servers
        assert len(left()) == 2
    assert nothing_is_left(machine)


@pytest.mark.processes
async def test_a_node_keeps_its_data(machine: Path) -> None:
    async with RealCluster() as cluster:
        (meta,) = state.clusters_directory().glob("*/node-1/data/meta.properties")
        before = meta.read_text()
        await cluster.restart(1)
        assert meta.read_text() == before
        assert f"cluster.id={cluster.cluster_id}\n" in before


@pytest.mark.processes
async def test_an_exception_leaves_nothing(machine: Path) -> None:
    async def use() -> None:
        async with RealCluster() as cluster:
            await cluster.pause(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert nothing_is_left(machine)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("behaviour", "settings", "error", "told"),
    [
        ("dies", {}, EnvironmentLacks, r"node 1 ended .*java\.lang\.IllegalStateException: no mood"),
        ("refuses", {}, EnvironmentLacks, r"node 1 ended .*: org\.ConfigException: Invalid value 3$"),
        ("silent", {"start_seconds": 0.3}, EnvironmentLacks, "node 1 did not come up within 0 s"),
        ("stranger", {}, PortTaken, "is taken"),
        ("unformatted", {}, EnvironmentLacks, "cannot format a folder: .* main: a jar is broken"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: str,
    settings: dict[str, Any],
    error: type[Exception],
    told: str,
) -> None:
    monkeypatch.setenv("FAKE_KAFKA", behaviour)
    with pytest.raises(error, match=told):
        await RealCluster(**settings).start()
    assert nothing_is_left(machine)
    assert list((machine / "cache").rglob(".formatting-*")) == []


@pytest.mark.processes
async def test_other_ports_are_tried_when_somebody_was_faster(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KAFKA", f"taken {machine / 'first'}")
    async with RealCluster():
        assert (machine / "first").exists()
    assert nothing_is_left(machine)


@pytest.mark.processes
async def test_the_port_that_was_asked_for_is_not_replaced(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KAFKA", f"taken {machine / 'first'}")
    (port,) = ports.free_ports(1)
    with pytest.raises(PortTaken, match=f"port {port} on 127.0.0.1 is taken"):
        await RealCluster(port=port).start()
    assert nothing_is_left(machine)


@pytest.mark.processes
async def test_ports_that_were_asked_for_follow_each_other(machine: Path) -> None:
    first = next(port for port in range(11_000, 32_000, 7) if not _taken(port, 3))
    async with RealCluster(nodes=3, port=first) as cluster:
        assert cluster.bootstrap_servers == ",".join(f"127.0.0.1:{first + index}" for index in range(3))


def _taken(first: int, count: int) -> bool:
    try:
        ports.require_free(range(first, first + count))
    except PortTaken:
        return True
    return False


@pytest.mark.processes
async def test_a_start_that_is_cancelled_leaves_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KAFKA", "silent")
    task = asyncio.ensure_future(RealCluster().start())
    while not processes_of(machine):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert nothing_is_left(machine)


PROGRAM = """
import asyncio
from fencepost.simulation.lab.clusters.cluster import RealCluster

async def main():
    async with RealCluster() as cluster:
        print(cluster.bootstrap_servers, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def program() -> Callable[[], subprocess.Popen[str]]:
    """Starts a Python process that keeps a cluster, and returns once that is up."""

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PROGRAM]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline().startswith("127.0.0.1:")
        return process

    return start


@pytest.mark.processes
def test_ctrl_c_leaves_nothing(machine: Path, program: Callable[[], subprocess.Popen[str]]) -> None:
    process = program()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert nothing_is_left(machine)


@pytest.mark.processes
def test_the_next_one_removes_what_a_killed_process_left(
    machine: Path, program: Callable[[], subprocess.Popen[str]]
) -> None:
    process = program()
    assert tidy_up() == 0, "its owner is alive"
    process.kill()
    process.wait(timeout=60)
    assert len(processes_of(machine)) == 1
    assert tidy_up() == 1
    assert nothing_is_left(machine)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours, and leads a group as ours do."""
    words = [sys.executable, "-S", "-c", "input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.processes
async def test_a_process_that_only_has_the_same_number_is_left_alone(
    machine: Path, stranger: subprocess.Popen[bytes]
) -> None:
    async with RealCluster() as cluster:
        known = cluster.state
    node = msgspec.structs.replace(known.nodes[0], process=ProcessIdentity(stranger.pid, "long ago"))
    owner = ProcessIdentity(os.getpid(), "in another life")
    state.create(None, msgspec.structs.replace(known, nodes=(node,), owner=owner))
    assert tidy_up() == 1
    assert stranger.poll() is None
    assert left() == []


async def test_what_is_no_state_is_deleted_after_an_hour(machine: Path) -> None:
    folder = state.clusters_directory()
    for name in ("fresh", "old"):
        (folder / name).mkdir(parents=True)
        (folder / name / "state.json").write_text("{}")
    os.utime(folder / "old", (time.time() - 4000, time.time() - 4000))
    assert tidy_up() == 0
    assert left() == ["fresh"]


@pytest.mark.processes
async def test_whoever_has_the_state_file_can_go_on(machine: Path) -> None:
    cluster = RealCluster(name="kept")
    await cluster.start()
    cluster.leave_up()
    with pytest.raises(RuntimeError, match="not up"):
        _ = cluster.bootstrap_servers
    folder = state.find("kept")
    assert folder is not None
    process = folder.state.nodes[0].process
    assert process is not None
    assert sight_of(process) is not None
    again = RealCluster.attached(folder)
    await again.restart(1)
    assert sight_of(process) is None
    again.stop()
    again.stop()
    assert nothing_is_left(machine)


@pytest.mark.processes
async def test_two_clusters_do_not_share_a_name(machine: Path) -> None:
    async with RealCluster(name="one"):
        with pytest.raises(FileExistsError):
            await RealCluster(name="one").start()
        assert left() == ["one"]
    assert nothing_is_left(machine)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_clusters_have_one_node_or_three(count: int) -> None:
    with pytest.raises(FencepostError, match="expected 1 or 3"):
        RealCluster(nodes=count)


WRONG = [
    ({"runner": "podman"}, r"runner='podman': expected one of jvm, docker"),
    ({"profile": "quick"}, r"profile='quick': expected one of fast, stock"),
    ({"kafka": "3.9"}, rf"kafka='3\.9': expected one of {KAFKA_VERSION}, "),
    ({"properties": {"num.partitions": None}}, r"properties: num\.partitions=None: expected text, a number"),
    ({"properties": ["num.partitions=3"]}, r"properties=.*: expected a mapping"),
]


@pytest.mark.parametrize(("settings", "told"), WRONG, ids=range(len(WRONG)))
def test_wrong_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(FencepostError, match=told):
        RealCluster(**settings)


@pytest.mark.processes
async def test_properties_may_be_numbers_and_truth_values(machine: Path) -> None:
    properties = {"num.partitions": 3, "auto.create.topics.enable": True}
    assert property_texts(properties) == {"num.partitions": "3", "auto.create.topics.enable": "true"}
    async with RealCluster(properties=properties) as cluster:
        assert cluster.node_ids == (1,)


@pytest.mark.processes
async def test_nodes_that_do_not_exist_are_refused(machine: Path) -> None:
    async with RealCluster() as cluster:
        with pytest.raises(FencepostError, match="node 2: the cluster has 1"):
            await cluster.kill(2)


@pytest.mark.processes
async def test_a_disk_without_room_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 3 << 20))
    with pytest.raises(EnvironmentLacks, match="has 3 MB left, and the cluster needs 128 MB"):
        await RealCluster().start()
    assert nothing_is_left(machine)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["clusters", f"kafka-{KAFKA_VERSION}"])
async def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "other"
    (cache / "fencepost").mkdir(parents=True)
    (cache / "fencepost" / name).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with pytest.raises(EnvironmentLacks, match="XDG_CACHE_HOME"):
        await RealCluster().start()


async def test_no_java_is_told_before_anything_is_fetched(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "nowhere"))
    with pytest.raises(EnvironmentLacks, match="nowhere is not a Java installation"):
        await RealCluster().start()
    assert nothing_is_left(machine)


@pytest.fixture
def empty_cache(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine with nothing in its cache, and no program on PATH but those in its `bin`."""
    (machine / f"cache/fencepost/kafka-{KAFKA_VERSION}/lib" / MAIN_JAR).unlink()
    (machine / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name, path: _only_in(machine / "bin", name))
    return machine


def _only_in(folder: Path, name: str) -> str | None:
    return str(folder / name) if (folder / name).exists() else None


def fetching(cache: Path) -> str:
    """A Maven that makes empty jars, and counts its calls."""
    touched = " ".join(f'"${{word#*=}}/{name}"' for name in FETCHED)
    return (
        'for word; do case "$word" in -DoutputDirectory=*) mkdir -p "${word#*=}"; '
        f"touch {touched};; esac; done; echo x >> {shlex.quote(str(cache / 'calls'))}"
    )


@pytest.mark.processes
async def test_maven_fetches_what_is_missing_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "pinned", lambda _: dict.fromkeys(FETCHED, hashlib.sha256().hexdigest()))
    script(empty_cache / "bin/mvn", fetching(empty_cache))
    first, second = await asyncio.gather(artifacts.prepare(), artifacts.prepare())
    assert first == second
    assert [jar.name for jar in first.jars] == ["a.jar", "b.jar", MAIN_JAR]
    assert (first.formatted / "bootstrap.checkpoint").read_text() == "features"
    assert (empty_cache / "calls").read_text() == "x\n"
    folder = first.formatted.parent
    assert first.classes.read_text() == "classes"
    assert f"-XX:SharedArchiveFile={first.classes}" in first.command("kafka.Kafka")
    assert sorted(path.name for path in folder.iterdir()) == [
        first.classes.name,
        "formatted",
        "lib",
        "lock",
        "pom.xml",
    ]
    assert f"<version>{KAFKA_VERSION}</version>" in (folder / "pom.xml").read_text()


@pytest.mark.processes
async def test_classes_are_kept_anew_for_other_jars(machine: Path) -> None:
    first = await artifacts.prepare()
    (first.jars[0].parent / "new.jar").touch()
    second = await artifacts.prepare()
    assert first.classes != second.classes
    assert list(second.classes.parent.glob("*.jsa")) == [second.classes]


@pytest.mark.processes
@pytest.mark.parametrize("behaviour", ["keeps no classes", "never starts"])
async def test_a_java_without_classes_is_asked_again_after_an_hour(
    machine: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "RECORD_SECONDS", 1.0)
    monkeypatch.setenv("FAKE_KAFKA", behaviour)
    first = await artifacts.prepare()
    assert first.classes.read_text() == ""
    monkeypatch.delenv("FAKE_KAFKA")
    second = await artifacts.prepare()
    assert second.classes.read_text() == ""
    assert not any("SharedArchive" in word for word in second.command("kafka.Kafka"))
    async with RealCluster():
        pass
    assert nothing_is_left(machine)
    an_hour_ago = time.time() - classes.RETRY_SECONDS - 1
    os.utime(second.classes, (an_hour_ago, an_hour_ago))
    monkeypatch.setattr(classes, "RECORD_SECONDS", 60.0)
    third = await artifacts.prepare()
    assert third.classes.read_text() == "classes"
    assert f"-XX:SharedArchiveFile={third.classes}" in third.command("kafka.Kafka")


@pytest.mark.processes
async def test_jars_with_other_checksums_are_not_kept(empty_cache: Path) -> None:
    script(empty_cache / "bin/mvn", fetching(empty_cache))
    with pytest.raises(EnvironmentLacks, match="the jars that Maven fetched for Kafka"):
        await artifacts.prepare()
    folder = empty_cache / f"cache/fencepost/kafka-{KAFKA_VERSION}"
    assert not (folder / "lib" / MAIN_JAR).exists()
    assert list(folder.glob(".fetching-*")) == []


@pytest.mark.processes
async def test_no_maven_is_told(empty_cache: Path) -> None:
    with pytest.raises(EnvironmentLacks, match=r"install Maven \(mvn\), or copy the jars"):
        await artifacts.prepare()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "printf '\\033[1mINFO\\033[m x\\n[\\033[31mERROR\\033[m] no route to host\\n'; exit 1",
            "no route to host;",
        ),
        ("exit 1", "it said nothing;"),
        ("exit 0", "it said nothing;"),
    ],
)
async def test_what_maven_complains_of_is_told(empty_cache: Path, text: str, told: str) -> None:
    script(empty_cache / "bin/mvn", text)
    with pytest.raises(EnvironmentLacks, match=f"Maven cannot fetch Kafka {KAFKA_VERSION}: {told}"):
        await artifacts.prepare()
    assert list((empty_cache / "cache").rglob(".fetching-*")) == []


@pytest.mark.processes
async def test_a_maven_that_takes_too_long_is_killed(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(empty_cache / "bin/mvn", f"exec sleep 60 # {empty_cache}")
    monkeypatch.setattr(artifacts, "FETCH_SECONDS", 0.2)
    with pytest.raises(EnvironmentLacks, match="did not fetch Kafka"):
        await artifacts.prepare()
    assert processes_of(empty_cache) == []
