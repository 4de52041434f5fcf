"""`fencepost cluster`: up, status and down are commands of their own; Java is played by a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.lab.clusters import state
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.processes import sight_of
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION
from tests.unit.simulation.fake_machine import prepare_machine

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc"),
]

CLUSTER = (sys.executable, "-W", "always::ResourceWarning", "-m", "fencepost.simulation", "cluster")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prepare_machine(tmp_path, monkeypatch)
    monkeypatch.setenv("FENCEPOST_PROGRESS", "none")
    yield
    if (folder := state.find(state.UP)) is not None:
        RealCluster.attached(folder).stop()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLUSTER, *words], capture_output=True, text=True, check=False, timeout=60)


def told(*words: str) -> dict[str, object]:
    result = run(*words, "--json")
    assert result.returncode == 0, result.stderr
    assert "ResourceWarning" not in result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.processes
def test_it_stays_up_until_it_is_taken_down() -> None:
    up = told("up", "--nodes", "3")
    assert up["runner"] == "jvm"
    assert up["nodes"] == 3
    assert up["profile"] == "fast"
    assert str(up["bootstrap"]).count(",") == 2
    assert told("status") == up
    assert told("up", "--nodes", "3") == up
    folder = state.find(state.UP)
    assert folder is not None
    down = told("down")
    assert down["cluster_id"] == up["cluster_id"]
    assert [node.process and sight_of(node.process) for node in folder.state.nodes] == [None] * 3
    assert not folder.path.exists()
    assert told("status") == told("down")
    assert told("status")["bootstrap"] is None


@pytest.mark.processes
def test_what_ends_before_the_one_who_started_it_is_collected() -> None:
    both = "from fencepost.simulation.cli import main; main(['cluster', 'up']); main(['cluster', 'down'])"
    result = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", both],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stderr == ""


@pytest.mark.processes
def test_it_tells_what_it_does_while_it_starts(monkeypatch, capsys):
    monkeypatch.delenv("FENCEPOST_PROGRESS")
    assert main(["cluster", "up"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [f"preparing Kafka {KAFKA_VERSION}…", "starting 1 node…"]
    assert said[-1].startswith("node 1 serves at 127.0.0.1:")


@pytest.mark.processes
def test_clusters_of_several_names_are_up_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = told("up"), told("up", "--name", "second")
    try:
        assert first["bootstrap"] != second["bootstrap"]
        assert told("status", "--name", "second") == second
        assert told("down")["cluster_id"] == first["cluster_id"]
        assert told("status")["bootstrap"] is None
        assert told("status", "--name", "second") == second
    finally:
        assert told("down", "--name", "second")["cluster_id"] == second["cluster_id"]
    assert main(["cluster", "status", "--name", "second"]) == 0
    assert capsys.readouterr().out == "no cluster second is up\n"
    for wrong in ("run-1", "../up", "a b", "-x", "x" * 41):
        assert main(["cluster", "status", f"--name={wrong}"]) == 2
        assert "expected up to 40 letters" in capsys.readouterr().err


@pytest.mark.processes
def test_people_read_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up"]) == 0
    shown = capsys.readouterr().out
    bootstrap = shown.splitlines()[-1].removeprefix("bootstrap.servers=")
    assert f"1     {bootstrap}  running\n" in shown
    assert main(["cluster", "status"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["cluster", "down"]) == 0
    assert capsys.readouterr().out == "the cluster is down, its data is deleted\n"
    assert main(["cluster", "down"]) == 0
    assert capsys.readouterr().out == "no cluster is up\n"


@pytest.mark.processes
def test_another_one_or_one_with_a_dead_node_is_not_taken_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up"]) == 0
    others = "--nodes 3", "--runner docker", "--profile stock", "--kafka 4.4.0", "--port 9092"
    for other in others:
        capsys.readouterr()
        assert main(["cluster", "up", *other.split()]) == 2
        assert "another cluster is up (Kafka 4.3.1, 1 node, jvm, fast, first port" in capsys.readouterr().err
    folder = state.find(state.UP)
    assert folder is not None
    process = folder.state.nodes[0].process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    while sight_of(process) is not None:
        time.sleep(0.01)
    assert main(["cluster", "status"]) == 0
    assert "stopped" in capsys.readouterr().out
    assert main(["cluster", "up"]) == 2
    assert "not all of its nodes are running: fencepost cluster down" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupt_on_the_way_up_leaves_nothing(number, monkeypatch):
    monkeypatch.setenv("FAKE_KAFKA", "silent")
    with subprocess.Popen(
        [*CLUSTER, "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        node = None
        while node is None:
            assert process.poll() is None
            time.sleep(0.02)
            folder = state.find(state.UP)
            node = None if folder is None else folder.state.nodes[0].process
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert sight_of(node) is None
    assert list(state.clusters_directory().iterdir()) == []


@pytest.mark.processes
def test_what_fails_is_one_line_and_exit_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_KAFKA", "dies")
    result = run("up")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("fencepost cluster: node 1 ended as soon as it was started: ")
    assert result.stderr.count("\n") == 1
    assert list(state.clusters_directory().iterdir()) == []
