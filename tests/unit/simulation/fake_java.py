"""Stands in for `java` running Kafka: formats, and answers what a node is asked before it counts as up.

The environment variable FAKE_KAFKA makes nodes misbehave: "silent" listens and never answers, "stranger" has
another cluster id, "dies" and "refuses" end with an error in their log, "taken FILE" cannot bind until FILE
exists; "never starts" and "keeps no classes" are about the node whose classes are recorded.
"""

import os
import socket
import socketserver
import struct
import sys
import threading
from pathlib import Path


def properties(file):
    return dict(line.split("=", 1) for line in Path(file).read_text().splitlines())


def ports(addresses):
    return {name: int(rest.rpartition(":")[2]) for name, _, rest in (a.partition("://") for a in addresses)}


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


class Node(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def alive(voters):
    """Ids of the voters whose controllers listen."""
    for voter in voters.split(","):
        number, _, address = voter.partition("@")
        host, _, port = address.rpartition(":")
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if sock.connect_ex(("127.0.0.1", int(port))) == 0:
                yield int(number), host, int(port)


def versions():
    feature = b"\x02" + bytes([len("group.version") + 1]) + b"group.version" + struct.pack(">hhb", 1, 1, 0)
    apis = [struct.pack(">hhhb", key, 0, 4, 0) for key in (3, 18, 68)]
    tags = b"\x01\x02" + bytes([len(feature)]) + feature
    return struct.pack(">h", 0) + bytes([len(apis) + 1]) + b"".join(apis) + struct.pack(">i", 0) + tags


def metadata(cluster_id, voters):
    brokers = list(alive(voters))
    body = struct.pack(">i", len(brokers))
    for number, host, port in brokers:
        body += struct.pack(">i", number) + text(host) + struct.pack(">ih", port, -1)
    return body + text(cluster_id) + struct.pack(">ii", 1, 0)


def serve(settings, cluster_id):
    class Client(socketserver.StreamRequestHandler):
        def handle(self):
            while head := self.rfile.read(4):
                request = self.rfile.read(struct.unpack(">i", head)[0])
                key, _, correlation_id = struct.unpack_from(">hhi", request)
                body = versions() if key == 18 else metadata(cluster_id, settings["controller.quorum.voters"])
                self.wfile.write(struct.pack(">ii", len(body) + 4, correlation_id) + body)

    class Silent(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)
            threading.Event().wait()

    listeners = ports(settings["listeners"].split(","))
    controller = Node(("127.0.0.1", listeners["CONTROLLER"]), socketserver.BaseRequestHandler)
    threading.Thread(target=controller.serve_forever, daemon=True).start()
    silent = os.environ.get("FAKE_KAFKA") == "silent"
    Node(("127.0.0.1", listeners["CLIENTS"]), Silent if silent else Client).serve_forever()


def run(file):
    settings = properties(file)
    identity = properties(Path(settings["log.dirs"]) / "meta.properties")
    assert (Path(settings["log.dirs"]) / "bootstrap.checkpoint").read_text() == "features"
    assert identity["node.id"] == settings["node.id"]
    behaviour, _, file = os.environ.get("FAKE_KAFKA", "").partition(" ")
    if behaviour == "dies":
        sys.exit("[main] INFO starting\njava.lang.IllegalStateException: no mood\n[main] INFO ended")
    if behaviour == "refuses":
        sys.exit("[main] ERROR Exiting by an exception\norg.ConfigException: Invalid value 3\n\tat org.A")
    if behaviour == "taken" and not Path(file).exists():
        Path(file).touch()
        sys.exit("java.net.BindException: Address already in use")
    serve(settings, "another" if behaviour == "stranger" else identity["cluster.id"])


def record(file):
    behaviour = os.environ.get("FAKE_KAFKA")
    if behaviour == "never starts":
        file.write_text("half of it")
        threading.Event().wait()
    if behaviour != "keeps no classes":
        file.write_text("classes")


def main(words):
    if "-version" in words:
        sys.exit('openjdk version "21.0.8"' if os.environ.get("FAKE_KAFKA") == "no java" else 0)
    if "kafka.tools.StorageTool" in words:
        if os.environ.get("FAKE_KAFKA") == "unformatted":
            sys.exit("Exception in thread main: a jar is broken")
        folder = Path(properties(words[words.index("--config") + 1])["log.dirs"])
        folder.mkdir()
        (folder / "bootstrap.checkpoint").write_text("features")
        (folder / "meta.properties").write_text("node.id=1\n")
    elif recorded := [word for word in words if word.startswith("-XX:ArchiveClassesAtExit=")]:
        record(Path(recorded[0].partition("=")[2]))
    else:
        run(words[words.index("kafka.Kafka") + 1])


if __name__ == "__main__":
    main(sys.argv[1:])
