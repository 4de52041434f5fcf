"""The same requests about offsets to our broker and to Kafka's: what is told, and in which order."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.both import TRY_AGAIN, Peer, answers_of_both, fields_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

Topics = tuple[tuple[str, tuple[int, ...]], ...]
OWN, MORE = "own", "more"
"""Two topics that there are, of one partition and of three; all others that are asked about are not there."""

MIXED: tuple[Topics, ...] = (
    ((OWN, (0,)), ("no", (0,)), (MORE, (1, 0))),
    (("no", (1, 0)), (OWN, (0,)), ("none", (0,)), (MORE, (0,))),
    ((MORE, (9, 1, -1, 0)), ("no", (0,)), (OWN, (0, 7))),
    ((MORE, (0,)), (OWN, (7,)), (MORE, (1,)), ("no", (0,))),
    ((MORE, (9,)), (OWN, (0,)), (MORE, (0, 1))),
    ((MORE, (1,)), (OWN, (0,)), (MORE, (0,))),
    (("no", (0,)), ("none", (0,)), ("no", (1, 0))),
    ((OWN, (0, 0)), (MORE, (1, 1, 9, 1))),
    ((OWN, (0, 0)),),
    ((OWN, ()), ("no", ()), (MORE, (0,))),
    ((OWN, ()), ("no", ())),
    ((OWN, ()),),
    (),
)
FITS, TOO_LARGE = "x" * 4096, "x" * 4097
REPEATED = (
    ((0, 1, FITS), (0, 2, TOO_LARGE)),
    ((0, 3, TOO_LARGE), (0, 4, "")),
    ((0, 5, ""), (1, 6, TOO_LARGE), (0, 7, TOO_LARGE), (1, 8, "")),
    ((0, 9, TOO_LARGE), (0, 10, TOO_LARGE), (1, 11, "")),
    ((0, 12, ""), (9, 13, TOO_LARGE), (0, 14, FITS), (0, 15, TOO_LARGE)),
)
"""Numbers of partitions, offsets and metadata of one request each."""
MEMBERS = (("group", -1, ""), ("group", 5, "m"), ("", 5, "m"))
"""A group, an epoch, a member: nobody, one that is not known, and one in a group without a name. Nobody's
commit to that group would stay with Kafka for good: nothing can delete it."""


class Committer(Peer):
    """Commits, fetches and deletes offsets of the topics above."""

    async def begin(self) -> None:
        await super().begin()
        self.names = {OWN: self.topic, MORE: f"{self.topic}-more"}
        await self.create(self.names[MORE], 3)
        await self.until_found(self.names[MORE])
        found = (await self.ask_plain(3, 12, topics=[{"name": name} for name in self.names.values()])).topics
        self.seen: dict[Any, str] = {name: label for label, name in self.names.items()}
        self.ids = {self.seen[topic.name]: topic.topic_id for topic in found}
        self.ids |= {label: uuid.UUID(int=number) for number, label in enumerate(("no", "none"), 77)}
        self.seen |= {topic_id: label for label, topic_id in self.ids.items()}
        await self.commit(9, ((OWN, (0,)), (MORE, (1, 2))))

    def reference(self, label: str, *, by_id: bool) -> dict[str, Any]:
        return {"topic_id": self.ids[label]} if by_id else {"name": self.names.get(label, label)}

    def asked_topics(self, topics: Topics, *, by_id: bool = False, **position: Any) -> list[dict[str, Any]]:
        return [
            {
                **self.reference(label, by_id=by_id),
                "partitions": [{"partition_index": number, **position} for number in numbers],
            }
            for label, numbers in topics
        ]

    def told(self, topics: Any) -> list[Any]:
        """Of each topic what is said of its partitions."""
        answers = []
        for topic in topics:
            key = getattr(topic, "name", None) or topic.topic_id
            partitions = [
                (one.partition_index, one.error_code.name, getattr(one, "committed_offset", None))
                for one in topic.partitions
            ]
            answers.append((self.seen.get(key, key), partitions))
        return answers

    async def settled(self, key: int, version: int, **fields: Any) -> Any:
        """The topics of an answer that no coordinator will answer otherwise in a moment."""

        def code(reply: Any) -> str:
            codes = {one.error_code.name for topic in reply.topics for one in topic.partitions}
            return next(iter(codes & TRY_AGAIN), "")

        reply = await self.until_settled(code, key, version, **fields_of(key, version, **fields))
        return self.told(reply.topics)

    async def commit_with(self, version: int, epoch: int, topics: Any) -> Any:
        """A commit in the transaction of this producer, which is no member."""
        return await self.settled(
            *(28, version),
            transactional_id=self.transactional_id,
            producer_id=self.producer,
            producer_epoch=epoch,
            group_id=self.group,
            generation_id=-1,
            member_id="",
            topics=topics,
        )

    async def commit(
        self, version: int, topics: Topics, group: str = "group", epoch: int = -1, member: str = ""
    ) -> Any:
        return await self.settled(
            *(8, version),
            group_id=group and self.group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            topics=self.asked_topics(
                topics, by_id=version >= 10, committed_offset=3 + version, committed_metadata=""
            ),
        )


async def commits(peer: Committer) -> AsyncIterator[Any]:
    for version in (8, 9, 10):
        for topics in MIXED:
            for who in MEMBERS:
                yield version, topics, who, await peer.commit(version, topics, *who)


async def commits_in_transactions(peer: Committer) -> AsyncIterator[Any]:
    peer.producer = (await peer.init()).producer_id
    for version in (3, 5):
        for topics in MIXED:
            for group, epoch, member in MEMBERS:
                answer = await peer.settled(
                    *(28, version),
                    transactional_id=peer.transactional_id,
                    producer_id=peer.producer,
                    producer_epoch=0,
                    group_id=group and peer.group,
                    generation_id=epoch,
                    member_id=member,
                    topics=peer.asked_topics(topics, committed_offset=3, committed_metadata=""),
                )
                yield version, topics, group, member, answer
    yield await peer.end(0, commit=False)


def repeated(peer: Committer, positions: Any, *, by_id: bool, at_once: bool) -> list[dict[str, Any]]:
    """The positions in one topic, or each in a topic of its own."""
    partitions = [
        {"partition_index": number, "committed_offset": offset, "committed_metadata": metadata}
        for number, offset, metadata in positions
    ]
    topic = peer.reference(MORE, by_id=by_id)
    if at_once:
        return [{**topic, "partitions": partitions}]
    return [{**topic, "partitions": [one]} for one in partitions]


async def committed(peer: Committer) -> Any:
    reply = await peer.ask_plain(
        9, 7, group_id=peer.group, topics=[{"name": peer.names[MORE], "partition_indexes": (0, 1)}]
    )
    return [(one.committed_offset, len(one.metadata)) for one in reply.topics[0].partitions]


async def repeated_commits(peer: Committer) -> AsyncIterator[Any]:
    for version in (8, 9, 10):
        for positions in REPEATED:
            for at_once, (epoch, member) in itertools.product((True, False), ((-1, ""), (5, "m"))):
                topics = repeated(peer, positions, by_id=version >= 10, at_once=at_once)
                who = {"generation_id_or_member_epoch": epoch, "member_id": member}
                answer = await peer.settled(8, version, group_id=peer.group, **who, topics=topics)
                yield version, positions, at_once, member, answer, await committed(peer)


async def repeated_commits_in_transactions(peer: Committer) -> AsyncIterator[Any]:
    for version, positions, at_once in itertools.product((3, 5), REPEATED, (True, False)):
        producer = await peer.init()
        peer.producer, epoch = producer.producer_id, producer.producer_epoch
        if version < 5:
            assert await peer.add_offsets(epoch) == "none"
        answer = await peer.commit_with(
            version, epoch, repeated(peer, positions, by_id=False, at_once=at_once)
        )
        ended = await peer.end(epoch, commit=True)
        await peer.init()  # answered once the offsets of the transaction count
        yield version, positions, at_once, answer, ended, await committed(peer)


async def commits_under_other_ids(peer: Committer) -> AsyncIterator[Any]:
    """Under the producer's own id, another one, one that nobody has and none, at epochs around its own."""
    own, other = peer.transactional_id, f"{peer.transactional_id}-other"
    others = {"other": other, "unknown": f"{own}-unknown", "empty": ""}
    for version in (3, 4, 5):
        beside = await peer.init(other)
        producer = await peer.init()
        peer.producer, epoch = producer.producer_id, producer.producer_epoch

        async def commit(name: str, offset: int, at: int = epoch, member: str = "", version=version) -> Any:
            return await peer.settled(
                *(28, version),
                transactional_id=name,
                producer_id=peer.producer,
                producer_epoch=at,
                group_id=peer.group,
                generation_id=3 if member else -1,
                member_id=member,
                topics=peer.asked_topics(((OWN, (0,)),), committed_offset=offset, committed_metadata=""),
            )

        for label, name in others.items():
            yield version, "before", label, await commit(name, 1)
        if version < 5:
            yield version, "own, not added", await commit(own, 1)
            assert await peer.add_offsets(epoch) == "none"
            for label, name in others.items():
                yield version, "added", label, await commit(name, 2)
        yield version, "own", await commit(own, 3)
        for offset, (label, name) in enumerate(others.items(), 4):
            yield version, "open", label, await commit(name, offset)
            yield version, "no such member", label, await commit(name, 9, member="m")
            for at in (epoch - 1, epoch + 1):
                yield version, at - epoch, label, await commit(name, 9, at)
        peer.producer = beside.producer_id
        yield version, "another's", await commit(own, 9, beside.producer_epoch)
        peer.producer = producer.producer_id
        yield await peer.end(epoch, commit=True, version=3 if version < 5 else 5)
        await peer.init()  # answered once the offsets of the transaction count
        reply = await peer.ask_plain(
            9, 7, group_id=peer.group, topics=[{"name": peer.topic, "partition_indexes": (0,)}]
        )
        yield version, peer.told(reply.topics)


async def commits_to_a_topic_that_goes(peer: Committer) -> AsyncIterator[Any]:
    """A topic is deleted before the transaction ends that has an offset of it."""
    gone = f"{peer.topic}-gone"
    await peer.create(gone, 1)
    await peer.until_found(gone)
    producer = await peer.init()
    peer.producer, epoch = producer.producer_id, producer.producer_epoch

    async def fetched(stable: bool) -> Any:
        topics = [{"name": gone, "partition_indexes": (0,)}]
        reply = await peer.ask_plain(9, 7, group_id=peer.group, topics=topics, require_stable=stable)
        (found,) = reply.topics[0].partitions
        return found.error_code.name, found.committed_offset

    one = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    await peer.commit_with(5, epoch, [{"name": gone, "partitions": [one]}])
    yield "open", await fetched(True), await fetched(False)
    await peer.ask_plain(20, 5, topic_names=(gone,), timeout=5_000)
    deadline = time.monotonic() + 60
    while (await fetched(True))[0] != "none":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    yield await peer.end(epoch, commit=True, version=5)
    await peer.init()  # answered once the offsets of the transaction count
    yield "over", await fetched(True), await fetched(False)


def _each_once(topics: list[Any]) -> list[Any]:
    """What is told, without partitions that were told before: our endpoint answers those once."""
    seen: set[tuple[str, int]] = set()
    once = []
    for name, partitions in topics:
        new = list({each[0]: each for each in partitions if (name, each[0]) not in seen}.values())
        seen.update((name, each[0]) for each in new)
        if new or not partitions:
            once.append((name, new))
    return once


async def fetches(peer: Committer) -> AsyncIterator[Any]:
    for version in (1, 2, 7, 8, 9, 10):
        for topics in (*MIXED, None):
            if topics is None and version < 2:
                continue
            wanted = topics and [
                {**peer.reference(label, by_id=version >= 10), "partition_indexes": numbers}
                for label, numbers in topics
            ]
            fields: dict[str, Any] = {"group_id": peer.group, "topics": wanted}
            if version >= 8:
                fields = {"groups": [fields]}
            reply = await peer.ask_plain(9, version, **fields)
            (answer,) = reply.groups if version >= 8 else (reply,)
            told = _each_once(peer.told(answer.topics))
            if topics is None:  # Kafka tells all there is in the order of its hash maps
                told = sorted((name, sorted(partitions)) for name, partitions in told)
            yield version, topics, told


async def deletions(peer: Committer) -> AsyncIterator[Any]:
    for topics in MIXED:
        for group in (peer.group, "no-such-group", ""):
            wanted = peer.asked_topics(topics)
            reply = await peer.ask_plain(47, 0, group_id=group, topics=wanted)
            yield topics, group == peer.group, reply.error_code.name, peer.told(reply.topics)


@pytest.mark.parametrize(
    "script",
    [
        *(commits, commits_in_transactions, repeated_commits, repeated_commits_in_transactions),
        *(commits_under_other_ids, commits_to_a_topic_that_goes),
        *(fetches, deletions),
    ],
    ids=lambda script: script.__name__,
)
async def test_kafka_answers_in_the_same_order(script, ours, cluster):
    for mine, kafkas in await answers_of_both(script, Committer, ours.servers, cluster.bootstrap_servers):
        assert mine == kafkas
