"""Stands in for `docker compose`: containers are processes of fake_java.py. FAKE_DOCKER makes it fail."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path


def environment_of(file, service):
    """The variables of a service, back under the names of properties."""
    block = re.search(rf"^  {service}:\n((?:    .*\n)+)", Path(file).read_text(), re.MULTILINE)[1]  # type: ignore[index]
    found = dict(re.findall(r'^      ([A-Z_]+): "(.*)"$', block, re.MULTILINE))
    published = re.search(r'- "127.0.0.1:(\d+):9092"', block)[1]  # type: ignore[index]
    return found, published


def start(folder, file, service):
    variables, published = environment_of(file, service)
    data = folder / service
    node = {
        name[6:].lower().replace("_", "."): value for name, value in variables.items() if "KAFKA_" in name
    }
    if not data.exists():
        data.mkdir(parents=True)
        (data / "bootstrap.checkpoint").write_text("features")
        identity = f"cluster.id={variables['CLUSTER_ID']}\nnode.id={node['node.id']}\n"
        (data / "meta.properties").write_text(identity)
    # No network of their own here: the controller listens above the published port.
    node["listeners"] = f"CLIENTS://:{published},CONTROLLER://:{int(published) + 1000}"
    ports = {n: int(environment_of(file, f"kafka-{n}")[1]) + 1000 for n in range(1, voters(node) + 1)}
    node["controller.quorum.voters"] = ",".join(f"{n}@kafka-{n}:{port}" for n, port in ports.items())
    node["log.dirs"] = str(data)
    (data / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in node.items()))
    fake = Path(__file__).with_name("fake_java.py")
    with (data / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(fake), "kafka.Kafka", str(data / "server.properties")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (data / "pid").write_text(str(process.pid))


def voters(node):
    return node["controller.quorum.voters"].count("@")


def state_of(service):
    try:
        pid = int((service / "pid").read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "exited"
    return {"T": "paused", "Z": "exited"}.get(state, "running")


def send(service, number):
    os.kill(int((service / "pid").read_text()), number)


def compose(words):
    if words == ["version"]:
        return
    project, file, verb = words[1], words[3], words[4]
    folder = Path(os.environ["FAKE_DOCKER_HOME"]) / project
    service = folder / words[-1]
    match verb:
        case "up":
            assert words[5:-1] == ["--detach", "--no-deps", "--no-recreate"], words
            start(folder, file, words[-1])
        case "kill":
            assert state_of(service) == "running"
            send(service, signal.SIGKILL)
        case "pause":
            send(service, signal.SIGSTOP)
        case "unpause":
            send(service, signal.SIGCONT)
        case "ps":
            for each in sorted(folder.glob("kafka-*")):
                sys.stdout.write(json.dumps({"Service": each.name, "State": state_of(each)}) + "\n")
        case "logs":
            sys.stdout.write((service / "log").read_text())
        case "down":
            assert words[5:] == ["--volumes", "--remove-orphans", "--timeout", "0"], words
            for each in folder.glob("kafka-*"):
                if state_of(each) != "exited":
                    send(each, signal.SIGKILL)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "down").touch()
        case other:
            assert other == "pull", words


def main(words):
    if words[0] == os.environ.get("FAKE_DOCKER"):
        sys.exit("Cannot connect to the Docker daemon")
    if words[-1] == os.environ.get("FAKE_DOCKER") or os.environ.get("FAKE_DOCKER") in words:
        sys.exit("denied: no such thing")
    if words[0] == "compose":
        compose(words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
