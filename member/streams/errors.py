"""Errors around an application of stream threads."""

from __future__ import annotations


class StreamsError(Exception):
    """An error for the application."""


class IllegalStreamsState(StreamsError):
    """The client's state does not allow it: a second start, or a setting after the start."""


class MissingSourceTopic(StreamsError):
    """A source topic does not exist: the group's leader reports it, or its coordinator for five minutes."""


class TaskAssignmentFailed(StreamsError):
    """The leader of the group could not assign tasks, or its assignment can't be read."""
