"""All state machines of members, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.consumer.drafts import DRAFT_1, DRAFT_2
from fencepost.member.consumer.states import CONSUMER_MEMBER

MACHINES: Mapping[str, StateTable[Any, Any]] = {
    table.name: table for table in (CONSUMER_MEMBER, DRAFT_1, DRAFT_2)
}
