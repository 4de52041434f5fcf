"""The API versions of older releases of Kafka, so that a broker can look like one of them.

Facts of the brokers of Apache Kafka, as each reports them by ApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.coordinator.codec.registry import SPOKEN, ApiKey, VersionCodec, codec_of
from fencepost.coordinator.protocol.cluster import ApiVersion
from fencepost.coordinator.protocol.errors import FencepostError

RELEASES: Final = (
    *("2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"),
    *("3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9"),
    *("4.0", "4.1"),
)
_NEWEST: Final[Mapping[ApiKey, str]] = {
    ApiKey.PRODUCE: "7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    ApiKey.FETCH: "10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
    ApiKey.LIST_OFFSETS: "4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10",
    ApiKey.METADATA: "7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    ApiKey.OFFSET_COMMIT: "6 2.3:7 2.4:8 3.7:9",
    ApiKey.OFFSET_FETCH: "5 2.4:6 2.5:7 3.0:8 3.7:9",
    ApiKey.FIND_COORDINATOR: "2 2.4:3 3.0:4 3.8:5 3.9:6",
    ApiKey.JOIN_GROUP: "3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9",
    ApiKey.HEARTBEAT: "2 2.3:3 2.4:4",
    ApiKey.LEAVE_GROUP: "2 2.4:4 3.2:5",
    ApiKey.SYNC_GROUP: "2 2.3:3 2.4:4 2.5:5",
    ApiKey.DESCRIBE_GROUPS: "2 2.3:3 2.4:5 4.0:6",
    ApiKey.LIST_GROUPS: "2 2.4:3 2.6:4 3.8:5",
    ApiKey.SASL_HANDSHAKE: "1",
    ApiKey.API_VERSIONS: "2 2.4:3 3.9:4",
    ApiKey.CREATE_TOPICS: "3 2.4:5 2.7:6 2.8:7",
    ApiKey.DELETE_TOPICS: "3 2.4:4 2.7:5 2.8:6",
    ApiKey.DELETE_RECORDS: "1 2.6:2",
    ApiKey.INIT_PRODUCER_ID: "1 2.4:2 2.5:3 2.7:4 3.8:5",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "2 2.3:3 2.8:4",
    ApiKey.ADD_PARTITIONS_TO_TXN: "1 2.7:2 2.8:3 3.6:4 3.8:5",
    ApiKey.ADD_OFFSETS_TO_TXN: "1 2.7:2 2.8:3 3.8:4",
    ApiKey.END_TXN: "1 2.7:2 2.8:3 3.8:4 4.0:5",
    ApiKey.TXN_OFFSET_COMMIT: "2 2.5:3 3.8:4 4.0:5",
    ApiKey.DESCRIBE_ACLS: "1 2.5:2 3.3:3",
    ApiKey.CREATE_ACLS: "1 2.5:2 3.3:3",
    ApiKey.DELETE_ACLS: "1 2.5:2 3.3:3",
    ApiKey.DESCRIBE_CONFIGS: "2 2.6:3 2.8:4",
    ApiKey.ALTER_CONFIGS: "1 2.8:2",
    ApiKey.DESCRIBE_LOG_DIRS: "1 2.6:2 3.2:3 3.3:4",
    ApiKey.SASL_AUTHENTICATE: "0 2.2:1 2.5:2",
    ApiKey.CREATE_PARTITIONS: "1 2.5:2 2.7:3",
    ApiKey.DELETE_GROUPS: "1 2.4:2",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "2.3:0 2.4:1",
    ApiKey.OFFSET_DELETE: "2.4:0",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "2.6:0 2.8:1",
    ApiKey.ALTER_CLIENT_QUOTAS: "2.6:0 2.8:1",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "2.7:0",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "2.7:0",
    ApiKey.DESCRIBE_CLUSTER: "2.8:0 3.7:1 4.0:2",
    ApiKey.DESCRIBE_PRODUCERS: "2.8:0",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0:0",
    ApiKey.LIST_TRANSACTIONS: "3.0:0 3.8:1 4.1:2",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "3.7:0 4.0:1",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "3.8:0 4.0:1",
    ApiKey.LIST_CONFIG_RESOURCES: "4.0:0 4.1:1",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "4.0:0",
}
"""The newest version of each API: that of 2.1, or none, and each release with a newer one."""


def max_versions(release: str) -> Mapping[int, int]:
    """Return the newest version of each API that brokers of a release speak.

    :raises FencepostError: for an unknown release.
    """
    if not isinstance(release, str) or release not in RELEASES:
        known = f"expected {RELEASES[0]} to {RELEASES[-1]}"
        raise FencepostError(f"as_release={release!r}: {known}")
    place = RELEASES.index(release)
    found: dict[int, int] = {}
    for key, text in _NEWEST.items():
        for change in text.split():
            since, _, version = change.rpartition(":")
            if not since or RELEASES.index(since) <= place:
                found[key] = int(version)
    return found


def codec_up_to(newest: Mapping[int, int], api_key: int, version: int) -> VersionCodec | None:
    """Return the translators of a version, or None if it is newer than these, or not spoken."""
    return codec_of(api_key, version) if version <= newest.get(api_key, -1) else None


def spoken_by(newest: Mapping[int, int]) -> tuple[ApiVersion, ...]:
    """Return the content of an ApiVersions response, capped to these versions."""
    return tuple(
        ApiVersion(each.api_key, each.min_version, min(each.max_version, newest[each.api_key]))
        for each in SPOKEN
        if newest.get(each.api_key, -1) >= each.min_version
    )
