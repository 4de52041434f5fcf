"""What goes wrong around an application of stream threads."""

from __future__ import annotations


class StreamsError(Exception):
    """Something that the application should know."""


class IllegalStreamsState(StreamsError):
    """The client's state does not allow it: a second start, or a setting after the start."""
