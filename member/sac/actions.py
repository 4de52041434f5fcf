"""The actions that the machine of a single active consumer asks its driver to carry out."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from fencepost.member.sac.offsets import OffsetSpecification
from fencepost.member.sac.states import SacMemberEvent, SacMemberState


class SacCallback(enum.StrEnum):
    """The callbacks of the application, which run one at a time."""

    ACTIVATED = "activated"
    """It returns the start offset."""
    STEPPING_DOWN = "stepping down"
    """It finishes its messages and stores its offset; when it returns, another consumer may start."""
    LOST = "lost"
    """The connection is lost: another consumer may be active already."""


class Connect(msgspec.Struct, frozen=True):
    """Connect to a node of the stream. Connections are counted: the data of an earlier one is ignored."""

    connection: int


class SendSubscribe(msgspec.Struct, frozen=True):
    """Subscribe on that connection."""

    connection: int


class AnswerUpdate(msgspec.Struct, frozen=True):
    """Respond to a consumer update."""

    correlation_id: int
    offset: OffsetSpecification


class RunSacCallback(msgspec.Struct, frozen=True):
    """Call the application. Pass the outcome to `callback_finished`."""

    kind: SacCallback


class Hold(msgspec.Struct, frozen=True):
    """Hand over nothing that was received before."""


class Disconnect(msgspec.Struct, frozen=True):
    """Give the connection up, if there is one."""


class SacMoved(msgspec.Struct, frozen=True):
    """The machine moved along an arrow of its table."""

    event: SacMemberEvent
    source: SacMemberState
    target: SacMemberState


Action: TypeAlias = Connect | SendSubscribe | AnswerUpdate | RunSacCallback | Hold | Disconnect | SacMoved
