"""The action of a member on each error, and the exception that it raises to the application."""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition


class RequestFailure(enum.Enum):
    """The reasons why a request got no response."""

    DISCONNECTED = "disconnected"
    TIMED_OUT = "timed out"


class ErrorRule(enum.Enum):
    """The rules for an error in a heartbeat's response."""

    FENCED = "give everything up and join again"
    RETRY = "try again after the back-off"
    REDISCOVER = "look the coordinator up and try again"
    REPORT = "raise to the application and try again after the back-off"
    FATAL = "give everything up and stop"


ERROR_RULES: dict[ErrorCode, ErrorRule] = {
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorRule.FENCED,
    ErrorCode.FENCED_MEMBER_EPOCH: ErrorRule.FENCED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorRule.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorRule.REDISCOVER,
    ErrorCode.NOT_COORDINATOR: ErrorRule.REDISCOVER,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ErrorRule.REPORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ErrorRule.FATAL,
    ErrorCode.INVALID_REQUEST: ErrorRule.FATAL,
    ErrorCode.UNSUPPORTED_ASSIGNOR: ErrorRule.FATAL,
    ErrorCode.GROUP_MAX_SIZE_REACHED: ErrorRule.FATAL,
    ErrorCode.UNSUPPORTED_VERSION: ErrorRule.FATAL,
    ErrorCode.UNRELEASED_INSTANCE_ID: ErrorRule.FATAL,
    ErrorCode.FENCED_INSTANCE_ID: ErrorRule.FATAL,
    ErrorCode.INVALID_REGULAR_EXPRESSION: ErrorRule.FATAL,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorRule.FATAL,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorRule.FATAL,
}
"""Rules for a heartbeat's errors, as in Kafka's client. An error that is not listed is FATAL."""


def heartbeat_rule(code: ErrorCode) -> ErrorRule:
    """Return the rule for an error of a heartbeat."""
    return ERROR_RULES.get(code, ErrorRule.FATAL)


class MemberError(Exception):
    """Raised to the application from poll; the member goes on. `code` is Kafka's."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code


class FatalMemberError(MemberError):
    """Raised to the application from every poll: the member has stopped for good."""


class CommitFailed(MemberError):
    """A commit was refused, or could not be made in time."""


class NoOffsetForPartition(MemberError):
    """Nothing is committed for a partition, and `auto_offset_reset` is to raise: from every poll."""

    _reason = "nothing is committed for {}"

    @classmethod
    def of(cls, partition: TopicPartition) -> NoOffsetForPartition:
        """Return the error about this partition."""
        name = f"{partition.topic}-{partition.partition}"
        return cls(ErrorCode.OFFSET_OUT_OF_RANGE, cls._reason.format(name))


class PositionOutOfRange(NoOffsetForPartition):
    """The log does not have a partition's position (any more), and `auto_offset_reset` is to raise."""

    _reason = "position of {} is outside of the log"


class CallbackFailed(Exception):
    """A rebalance callback raised. `__cause__` is its exception; the reconciliation is retried."""

    @classmethod
    def of(cls, callback: str, error: BaseException) -> CallbackFailed:
        """Return the failure of this callback, or the error itself if it names the callback already."""
        if isinstance(error, cls):
            return error
        failure = cls(f"{callback} raised {error!r}")
        failure.__cause__ = error
        return failure
