"""The actions that the machine of a client asks its shell to carry out, and its messages to listeners, in
order."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class Level(enum.StrEnum):
    """The kinds of machine."""

    CLIENT = "client"
    THREAD = "thread"
    GLOBAL = "global thread"


class StreamsMoved(msgspec.Struct, frozen=True, gc=False):
    """A machine took an arrow of its table. Listeners receive them in this order."""

    level: Level
    name: str
    """The thread's name, or the client's."""
    event: str
    source: str
    target: str


class MoveRefused(msgspec.Struct, frozen=True, gc=False):
    """A forbidden move that is not an error: nothing has changed. To be logged."""

    level: Level
    name: str
    event: str
    source: str
    target: str


class StartThread(msgspec.Struct, frozen=True, gc=False):
    """Run this thread; it calls `thread_started` first."""

    thread: str
    asks_for_shutdown: bool = False
    """Its member sends a request to shut the application down from its first request on."""


class EndThread(msgspec.Struct, frozen=True, gc=False):
    """Let this thread stop after its current record, and close; `thread_ended` follows."""

    thread: str


class StartGlobalThread(msgspec.Struct, frozen=True, gc=False):
    """Run the global thread; `global_ready` follows once it has caught up, or `global_failed`."""


class EndGlobalThread(msgspec.Struct, frozen=True, gc=False):
    """Let the global thread stop; `global_ended` follows."""


class StartServices(msgspec.Struct, frozen=True, gc=False):
    """Start the cleaner of the state directory and the recorder of metrics."""


class EndServices(msgspec.Struct, frozen=True, gc=False):
    """Stop both, before any thread is asked to stop."""


class CloseResources(msgspec.Struct, frozen=True, gc=False):
    """Close the store and unlock the state directory: no thread lives. `resources_closed` follows."""


class AskForShutdown(msgspec.Struct, frozen=True, gc=False):
    """Let this thread's member request the shutdown of the application, from now on and when it leaves."""

    thread: str


class Complain(msgspec.Struct, frozen=True, gc=False):
    """A problem for the operator of the application: to be logged."""

    text: str
    error: bool = False
    """True for an error; a warning otherwise."""


Action: TypeAlias = (
    StreamsMoved
    | MoveRefused
    | StartThread
    | EndThread
    | StartGlobalThread
    | EndGlobalThread
    | StartServices
    | EndServices
    | CloseResources
    | AskForShutdown
    | Complain
)
