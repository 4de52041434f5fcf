"""What no client sends, but anybody could: answered as Kafka 4.3 answers it. Real sockets on a real loop."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from tests.kio_objects import milliseconds
from tests.unit.coordinator.wire.raw_client import Wire, nested

pytestmark = pytest.mark.real
TIMEOUT = milliseconds(5_000)

FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 3,
    "permission_type": 3,
}
GIVEN = {
    "resource_type": 2,
    "resource_name": "orders",
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("resource_type_filter", "resource_type"),
        ("pattern_type_filter", "resource_pattern_type"),
        ("operation", "operation"),
        ("permission_type", "permission_type"),
    ],
)
async def test_a_right_of_no_known_kind_closes_the_connection(broker, version, asked, given):
    """0 stands for unknown; what is merely new to the broker may be asked for."""
    for key, fields in (
        (29, FILTER | {asked: 0}),
        (30, {"creations": (nested(30, version, "AclCreation", **(GIVEN | {given: 0})),)}),
        (31, {"filters": (nested(31, version, "DeleteAclsFilter", **(FILTER | {asked: 0})),)}),
    ):
        wire = await Wire.to(broker)
        wire.send(key, version, **fields)
        assert await wire.ended(), key
    wire = await Wire.to(broker)
    assert (await wire.ask(29, version, **(FILTER | {asked: 99}))).error_code.name == "security_disabled"


@pytest.mark.parametrize("version", [10, 11])
async def test_metadata_of_these_versions_is_not_told_by_ids_alone(wire, broker, version):
    known = uuid_from_topic_id(broker.cluster.image.by_name["orders"].topic_id)
    topics = tuple(
        nested(3, version, "MetadataRequestTopic", name=name, topic_id=topic_id)
        for name, topic_id in ((None, known), ("orders", None))
    )
    more = {"include_cluster_authorized_operations": False} if version == 10 else {}
    reply = await wire.ask(3, version, topics=topics, **more)
    assert {topic.error_code.name for topic in reply.topics} == {"invalid_request"}


async def test_a_coordinator_that_is_found_comes_with_a_word_for_no_error(wire):
    for version in range(1, 4):
        assert (await wire.ask(10, version, key="g")).error_message == "NONE"
    for version in range(4, 7):
        (found,) = (await wire.ask(10, version, coordinator_keys=("g",))).coordinators
        assert found.error_message == ""
