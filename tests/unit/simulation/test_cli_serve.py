"""`fencepost serve`: the line it prints, how it ends, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.rabbit_codec.codec import encode
from fencepost.coordinator.rabbit_codec.frames import PeerProperties
from fencepost.coordinator.sasl.credentials import PASSWORD_VARIABLE
from fencepost.coordinator.server.access import users_from
from fencepost.simulation.cli.serve import _topics
from fencepost.simulation.control.serving import ControlAddress, controlled

SERVE = (sys.executable, "-m", "fencepost.simulation", "serve", "--port", "0")


@contextlib.contextmanager
def served(*words: str) -> Iterator[tuple[str, IO[str], list[str]]]:
    """A server: its first line, what follows on stdout, and, once it has ended, the lines of stderr."""
    complaints: list[str] = []
    with subprocess.Popen(
        [*SERVE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout.readline(), process.stdout, complaints
        except BaseException:
            process.kill()
            raise
        process.terminate()
        assert process.wait(timeout=60) == 0
        complaints += process.stderr.read().splitlines()


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
def test_it_says_when_it_is_ready_and_ends_when_it_is_told(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*SERVE, "--topics", "orders:12"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = re.fullmatch(r"fencepost ready (127\.0\.0\.1):(\d+)\n", process.stdout.readline())
        assert ready is not None
        with socket.create_connection((ready[1], int(ready[2])), timeout=60):
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
        assert process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


@pytest.mark.processes
@pytest.mark.real
def test_the_interpreter_does_not_look_at_all_objects_again_when_it_ends() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects())))\n"
        "from fencepost.simulation.cli import main; sys.exit(main(['serve', '--port', '0']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=60) == 0
        frozen, left = map(int, process.stdout.read().split())
    assert frozen > 50 * left


@pytest.mark.processes
@pytest.mark.real
def test_it_is_ready_soon_because_it_loads_only_what_it_needs_and_collects_no_garbage_before() -> None:
    code = (
        "import atexit, gc, sys\n"
        "runs = []\n"
        "gc.callbacks.append(lambda phase, _: runs.append(phase))\n"
        "names = ['rich.console', 'fencepost.coordinator.rabbit_server', 'structlog']\n"
        "import builtins; shown = builtins.print\n"
        "atexit.register(lambda: shown([name for name in names if sys.modules.get(name)]))\n"
        "from fencepost.simulation.cli import main\n"
        "import fencepost.simulation.cli.output as output\n"
        "gc.collect()\n"  # else one may be due
        "runs.clear()\n"
        "plain = output.print_text\n"
        "def told(text):\n"
        "    shown(runs, gc.isenabled(), gc.get_freeze_count() > 50_000, flush=True)\n"
        "    plain(text)\n"
        "output.print_text = told\n"
        "sys.exit(main(['serve', '--port', '0', '--quick']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        counted, ready = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert counted == "[] True True\n"
        assert ready.startswith("fencepost ready")
        assert process.stdout.read() == "['structlog']\n"


@pytest.mark.real
@pytest.mark.processes
def test_rabbitmq_s_streams_are_served_beside() -> None:
    with served("--rabbit-stream", "0") as (first, rest, _):
        assert first.startswith("fencepost ready 127.0.0.1:")
        line = rest.readline()
        ready = re.fullmatch(r"fencepost ready rabbit-stream (127\.0\.0\.1):(\d+)\n", line)
        assert ready is not None, line
        with socket.create_connection((ready[1], int(ready[2])), timeout=60) as client:
            client.sendall(encode(PeerProperties(1)))
            assert client.recv(4) != b""


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize("traced", [(), ("--topics", "trace:1", "--trace-topic", "trace")], ids=len)
def test_topics_are_created_when_they_are_asked_for_if_it_is_told_so(traced: tuple[str, ...]) -> None:
    settings = ("--config", "auto.create.topics.enable=true", "--config", "num.partitions=5")
    with served(*settings, *traced) as (first, *_):
        producer = Producer({"bootstrap.servers": first.split()[-1], "log_level": 0})
        producer.produce("orders", "first")
        assert producer.flush(20) == 0
        assert len(producer.list_topics("orders", timeout=60).topics["orders"].partitions) == 5


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize("traced", [(), ("--topics", "trace:1", "--trace-topic", "trace")], ids=len)
def test_several_brokers_are_served_each_in_its_rack(traced: tuple[str, ...]) -> None:
    selector = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
    queued = "queued.max.request.bytes=200000000"
    options = ("--brokers", "3", "--racks", "a,b,c", "--config", selector, "--config", queued)
    with served(*options, *traced) as (first, *_):
        servers = first.split()[-1]
        assert len(servers.split(",")) == 3
        admin = AdminClient({"bootstrap.servers": servers})
        nodes = admin.describe_cluster().result(60).nodes
        assert sorted((node.id, node.rack) for node in nodes) == [(1, "a"), (2, "b"), (3, "c")]
        resource = ConfigResource(ConfigResource.Type.BROKER, "2")
        configs = admin.describe_configs([resource])[resource].result(60)
        assert configs["broker.rack"].value == "b"
        for setting in (selector, queued):
            name, _, value = setting.partition("=")
            assert configs[name].value == value


@pytest.mark.processes
@pytest.mark.real
def test_json_is_one_document_with_the_address() -> None:
    with served("--json", "--topics", "a:1,b:2", "--rabbit-stream", "0") as (first, rest, _):
        text = first
        while not text.endswith("\n}\n"):
            line = rest.readline()
            assert line, text
            text += line
    document = json.loads(text)
    assert document["topics"] == {"a": 1, "b": 2}
    assert document["ready"] == f"127.0.0.1:{document['port']}"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", document["rabbit_stream"])


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "warnings"),
    [
        ("--host 0.0.0.0", 1),
        ("--host 0.0.0.0 --sasl-user alice:secret", 0),
        ("--host 127.0.0.1", 0),
        ("--host localhost", 0),
    ],
)
def test_a_server_that_other_machines_reach_without_a_login_warns_in_one_line(words: str, warnings: int):
    with served(*words.split()) as (first, _, lines):
        assert first.startswith("fencepost ready ")
    assert len(lines) == warnings, lines
    assert all("open_to_everybody" in line and "--sasl-user" in line for line in lines)


@pytest.mark.processes
@pytest.mark.real
def test_a_port_that_is_taken_is_exit_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [*SERVE[:-1], str(port)], capture_output=True, text=True, check=False, timeout=20
        )
    assert result.returncode == 3
    assert result.stdout == ""
    assert re.fullmatch(rf"fencepost serve: port {port} .*taken.*\n", result.stderr)


def test_users_come_from_options_the_environment_and_a_file(tmp_path: Path, monkeypatch):
    file = tmp_path / "users"
    file.write_text("# who\n\ncarol: with blanks \ndave:a:b\n")
    monkeypatch.setenv(PASSWORD_VARIABLE, "from outside")
    assert users_from(["alice:x:y", "bob"], file) == {
        "alice": "x:y",
        "bob": "from outside",
        "carol": " with blanks",
        "dave": "a:b",
    }
    file.write_text("carol geheim\n")
    with pytest.raises(FencepostError, match="line 1: expected NAME:PASSWORD") as refused:
        users_from([], file)
    assert "geheim" not in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(FencepostError, match="it is not UTF-8 text"):
        users_from([], file)


@pytest.mark.parametrize("text", ["", "# alice:geheim\n\n"])
def test_a_file_without_users_does_not_let_everybody_in(text: str, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(FencepostError, match=r"users: expected at least one NAME:PASSWORD$"):
        users_from([], file)
    with pytest.raises(FencepostError, match="expected at least one"):
        users_from(["bob:x"], file)


def test_topics_come_in_any_grouping() -> None:
    assert _topics(["a:1,b:2", " c.d:3 "]) == {"a": 1, "b": 2, "c.d": 3}
    with pytest.raises(FencepostError):
        _topics([":1"])


@pytest.mark.processes
@pytest.mark.real
def test_a_journal_is_kept_refused_when_it_is_broken_and_repaired(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = [*SERVE, "--journal", str(journal)]
    with served("--journal", str(journal), "--topics", "orders:12"):
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 3
    assert second.stderr.count("\n") == 1
    assert "is in use: stop the program that uses it" in second.stderr

    data = bytearray(journal.read_bytes())
    journal.write_bytes(data[: len(data) // 2])
    broken = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert broken.returncode == 2
    assert broken.stdout == ""
    assert re.fullmatch(rf"fencepost serve: journal {journal}: .*--journal-repair.*\n", broken.stderr)

    with served("--journal", str(journal), "--journal-repair") as (first, _, lines):
        assert first.startswith("fencepost ready ")
    assert "journal.broken-1" in "\n".join(lines)
    assert journal.with_name("journal.broken-1").exists()


@pytest.mark.processes
@pytest.mark.real
def test_it_is_controlled_over_http_and_a_client_that_hangs_disturbs_nothing() -> None:
    with served("--topics", "orders:2", "--quick", "--control", "0") as (first, more, complaints):
        servers = first.split()[-1]
        url = more.readline().removeprefix("fencepost ready control ").strip()
        with httpx.Client(base_url=url, timeout=60) as http:
            host, _, port = url.removeprefix("http://").rpartition(":")
            with socket.create_connection((host, int(port))) as hanging:
                asked = b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
                hanging.sendall(asked)
                assert http.get("/topics").json() == {"orders": 2}
                admin = AdminClient({"bootstrap.servers": servers})
                assert len(admin.list_topics(timeout=60).topics["orders"].partitions) == 2
                assert http.get("/health").json() == {"status": "ok", "bootstrap_servers": servers}
    assert complaints == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("x", "--control x: expected PORT or HOST:PORT, such as 9644; 0 takes a free port"),
        ("70000", "--control 70000: expected PORT"),
        ("127.0.0.1:", "--control 127.0.0.1:: expected PORT"),
    ],
)
def test_an_address_of_the_control_api_that_is_none(given: str, told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        ControlAddress.parse(given)
    assert str(wrong.value).startswith(told)
    assert ControlAddress.parse("[::1]:9644") == ("::1", 9644)
    assert ControlAddress.parse("9644") == ("127.0.0.1", 9644)


async def test_a_port_of_the_control_api_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = ControlAddress(*other.getsockname())
        with pytest.raises(
            EnvironmentLacks, match=f"^--control: port {address.port} on .* is taken: stop the"
        ):
            async with EmbeddedKafka() as kafka, controlled(kafka.endpoint, address):
                pass
