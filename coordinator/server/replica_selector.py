"""Which replica of a partition a consumer shall fetch from (KIP-392)."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.config import ReplicaSelector
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.logs import NO_REPLICA


def preferred_read_replica(
    selector: ReplicaSelector | None, rack_id: str, in_sync: Sequence[Node], leader_id: int
) -> int:
    """Return the follower that a client in `rack_id` shall fetch from; NO_REPLICA if it is the leader.

    All replicas in sync have the same records, so the highest id in the rack is taken. Kafka would take the
    one that caught up last.
    """
    if selector is not ReplicaSelector.RACK_AWARE or not rack_id:
        return NO_REPLICA
    same_rack = [node.node_id for node in in_sync if node.rack == rack_id]
    return max(same_rack) if same_rack and leader_id not in same_rack else NO_REPLICA
