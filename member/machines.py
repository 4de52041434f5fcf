"""All state machines of members, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.classic.states import CLASSIC_MEMBER
from fencepost.member.consumer.drafts import DRAFT_1, DRAFT_2
from fencepost.member.consumer.states import CONSUMER_MEMBER
from fencepost.member.sac.states import SAC_MEMBER
from fencepost.member.streams.client_states import STREAM_CLIENT
from fencepost.member.streams.heartbeats import STREAMS_MEMBER
from fencepost.member.streams.kafka4 import KAFKA_4_CLIENT, KAFKA_4_THREAD
from fencepost.member.streams.thread_states import GLOBAL_THREAD, STREAM_THREAD

MACHINES: Mapping[str, StateTable[Any, Any]] = {
    table.name: table
    for table in (
        CONSUMER_MEMBER,
        DRAFT_1,
        DRAFT_2,
        STREAM_THREAD,
        KAFKA_4_THREAD,
        GLOBAL_THREAD,
        STREAM_CLIENT,
        KAFKA_4_CLIENT,
        SAC_MEMBER,
        CLASSIC_MEMBER,
        STREAMS_MEMBER,
    )
}

OTHERS: Mapping[str, Mapping[str, StateTable[Any, Any]]] = {
    CONSUMER_MEMBER.name: {"kip848-draft1": DRAFT_1, "kip848-draft2": DRAFT_2},
    STREAM_THREAD.name: {"kafka-4": KAFKA_4_THREAD},
    STREAM_CLIENT.name: {"kafka-4": KAFKA_4_CLIENT},
}
"""Tables beside those of some machines, under the names of where they come from."""
