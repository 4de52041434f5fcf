"""What an embedded RabbitMQ of streams costs: start, publishing and reading, and handing a partition over.

    python benchmarks/rabbit_streams.py [--seconds N] [--json]

Frames go over loopback sockets; the node has a thread of the same process, so what is published and read a
second is what both sides manage together on one core. A handover is from the loss of the active consumer's
connection to the first chunk at the next one.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time

from fencepost import EmbeddedRabbitStream
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry, Frame
from fencepost.coordinator.rabbit_codec.codec import decode, encode, frame_buffer
from fencepost.coordinator.rabbit_codec.entries import message, publish

BATCH, VALUE_BYTES = 100, 1000
MEMBERS = 50
SINGLE_ACTIVE = {"single-active-consumer": "true", "name": "bench"}


class Client:
    """One connection, by hand."""

    def __init__(self, rabbit: EmbeddedRabbitStream) -> None:
        self.socket = socket.create_connection((rabbit.host, rabbit.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = frame_buffer(1 << 30)
        self.send(frames.PeerProperties(1), frames.SaslHandshake(2))
        self.send(frames.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"))
        self.until(frames.Tune)
        self.send(frames.Tune(0, 0), frames.Open(4, "/"))
        self.until(frames.OpenResponse)

    def send(self, *sent: Frame) -> None:
        self.socket.sendall(b"".join(map(encode, sent)))

    def next(self) -> Frame:
        while (data := self.frames.next_frame()) is None:
            self.frames.feed(self.socket.recv(1 << 18))
        return decode(data)

    def until(self, kind: type[Frame]) -> Frame:
        while not isinstance(frame := self.next(), kind):
            pass
        return frame


def started_ms() -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        with EmbeddedRabbitStream():
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def published_mb_per_s(rabbit: EmbeddedRabbitStream, seconds: float) -> float:
    """Frames of 100 messages of 1 kB, each confirmed and read by one consumer before the next is sent."""
    client = Client(rabbit)
    client.send(frames.DeclarePublisher(5, 0, "", "s"), frames.Subscribe(6, 0, "s", credit=60_000))
    client.until(frames.SubscribeResponse)
    batch = encode(publish(0, [ChunkEntry(n, message(bytes(VALUE_BYTES))) for n in range(BATCH)]))
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        client.socket.sendall(batch)
        client.until(frames.PublishConfirm)
        count += 1
    taken = time.perf_counter() - began
    client.socket.close()
    return count * BATCH * VALUE_BYTES / taken / 1e6


def handed_over_ms(rabbit: EmbeddedRabbitStream) -> float:
    """The median over a group whose members go one after the other."""
    rabbit.publish("t", "x")
    clients = [Client(rabbit) for _ in range(MEMBERS)]
    for client in clients:
        client.send(frames.Subscribe(5, 0, "t", credit=10, properties=SINGLE_ACTIVE))
        client.until(frames.SubscribeResponse)
    times = []
    began = time.perf_counter()
    for client in clients:
        update = client.until(frames.ConsumerUpdate)
        assert isinstance(update, frames.ConsumerUpdate)
        client.send(frames.ConsumerUpdateResponse(update.correlation_id))
        client.until(frames.Deliver)
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
        client.socket.close()
    return statistics.median(times[1:]) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of the measurement of publishing")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    start_ms = started_ms()
    with EmbeddedRabbitStream() as rabbit:
        rabbit.create_stream("s", {"max-length-bytes": 10_000_000})
        rabbit.create_stream("t")
        results = {
            "start_ms": start_ms,
            "published_and_read_mb_per_s": published_mb_per_s(rabbit, arguments.seconds),
            "handover_ms": handed_over_ms(rabbit),
        }
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:30}{value:10.2f}")


if __name__ == "__main__":
    main()
