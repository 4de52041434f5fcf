"""Whatever clients do, in any order: a group has one reader at most, and one in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.codes import OffsetType, ResponseCode
from fencepost.coordinator.rabbit_codec.fields import NONE, WireOffsetSpecification

STREAMS = ("plain", "x-0", "x-1", "x-2")


class Party:
    """Clients that come, subscribe, answer early or late, and go in any way."""

    def __init__(self, rig: Any, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.clients: list[Any] = []
        self.owed: list[tuple[Any, frames.ConsumerUpdate]] = []
        """Questions that are not answered."""
        rig.streams("plain")
        rig.super_stream("x", 3)

    def step(self) -> None:
        """Something happens."""
        steps = [self.connect, self.subscribe, self.subscribe, self.answer, self.answer, self.answer]
        self.rng.choice([*steps, self.publish, self.credit, self.unsubscribe, self.leave])()
        self.collect()
        self.check()

    def connect(self) -> None:
        if len(self.clients) < 5:
            self.clients.append(self.rig.client())

    def subscribe(self) -> None:
        if self.clients:
            client, stream = self.rng.choice(self.clients), self.rng.choice(STREAMS)
            properties = {"super_stream": "x"} if stream.startswith("x") else {}
            name = self.rng.choice(("app", "other"))
            client.join(stream, self.rng.randrange(4), name, **properties)

    def answer(self) -> None:
        """Mostly in order, as clients do."""
        if self.owed:
            place = 0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.owed))
            client, question = self.owed.pop(place)
            where = self.rng.choice([NONE, WireOffsetSpecification(OffsetType.OFFSET, self.rng.randrange(9))])
            client.send(frames.ConsumerUpdateResponse(question.correlation_id, offset=where))

    def publish(self) -> None:
        if self.clients:
            stream = self.rng.randrange(len(STREAMS))
            self.rng.choice(self.clients).publish(STREAMS[stream], b"x", publisher_id=stream)

    def credit(self) -> None:
        if self.clients:
            self.rng.choice(self.clients).send(frames.Credit(self.rng.randrange(4), 5))

    def unsubscribe(self) -> None:
        if self.clients:
            self.rng.choice(self.clients).code(frames.Unsubscribe, self.rng.randrange(4))

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.rng.randrange(len(self.clients)))
            match self.rng.randrange(3):
                case 0:
                    client.lose()
                case 1:
                    assert client.code(frames.Close, 1, "OK") is ResponseCode.OK
                    client.lose()
                case 2:
                    client.send(frames.Open(1, "/"))  # makes no sense now
                    client.lose()

    def collect(self) -> None:
        """Clients read what they were sent."""
        for client in self.clients:
            asked = [each for each in client.got if isinstance(each, frames.ConsumerUpdate)]
            self.owed += [(client, each) for each in asked]
            client.got.clear()
        self.owed = [(client, each) for client, each in self.owed if client in self.clients]

    def check(self) -> None:
        """One reader at most in each group, and groups of those that are there."""
        readers: dict[tuple[str, str], int] = {}
        there = set()
        for session in self.rig.cluster.sessions:
            for consumer in session.consumers.values():
                key = (consumer.stream.name, consumer.name)
                there.add((*key, session.number, consumer.subscription_id))
                readers[key] = readers.get(key, 0) + consumer.is_reading
                assert consumer.is_active or not consumer.is_reading
        assert max(readers.values(), default=0) <= 1, readers
        known = {
            (key.stream, key.consumer_name, int(one.connection.partition("@")[0]), one.subscription_id)
            for key, group in self.rig.cluster.groups.coordinator.state.groups.items()
            for one in group.consumers
        }
        assert known == there

    def settle(self) -> None:
        """All answer."""
        while self.owed:
            client, question = self.owed.pop(0)
            client.send(frames.ConsumerUpdateResponse(question.correlation_id))
            self.collect()
            self.check()


@pytest.mark.parametrize("seed", range(30))
def test_groups_have_one_reader_whatever_happens(rig: Any, seed: int) -> None:
    party = Party(rig, seed)
    for _ in range(150):
        party.step()
    party.settle()
    groups = rig.cluster.groups.coordinator.state.groups
    for key, group in groups.items():
        reading = [
            one
            for one in group.consumers
            if rig.cluster.groups.session_of(one.connection).consumers[one.subscription_id].is_reading
        ]
        assert len(reading) == 1, key
    for client in party.clients:
        client.lose()
    assert groups == {}
    assert not any(stream.readers for stream in rig.cluster.virtual_hosts["/"].streams.values())
