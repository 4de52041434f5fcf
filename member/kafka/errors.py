"""A member's errors as aiokafka's exceptions, which programs written for aiokafka know how to catch."""

from __future__ import annotations

import ssl

from aiokafka import errors

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.base.errors import (
    CommitFailed,
    MemberError,
    NoOffsetForPartition,
    PositionOutOfRange,
)

_NOT_A_MEMBER = (
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
"""Errors of a commit which mean that the partition may belong to another member now."""


_OF_AUTHENTICATION = (
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.IllegalSaslStateError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    ssl.SSLCertVerificationError,
)


class AuthenticationError(errors.KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types
    """A broker does not accept the credentials, or its certificate is not accepted. A retry does not help."""

    retriable = False


def as_connection_error(what: object, reason: Exception) -> errors.KafkaConnectionError:
    """The exception to raise if no broker can be connected to, with the reason for the first one."""
    kind = AuthenticationError if isinstance(reason, _OF_AUTHENTICATION) else errors.KafkaConnectionError
    return kind(f"{what}: {str(reason) or type(reason).__name__}")


def as_kafka_error(error: MemberError) -> errors.KafkaError:
    """Return aiokafka's exception for this one; a code that aiokafka does not know is a KafkaError."""
    if isinstance(error, PositionOutOfRange):
        return errors.OffsetOutOfRangeError(str(error))
    if isinstance(error, NoOffsetForPartition):
        return errors.NoOffsetForPartitionError(str(error))
    if isinstance(error, CommitFailed) and error.code in _NOT_A_MEMBER:
        return errors.CommitFailedError(str(error))
    kind = errors.for_code(int(error.code))
    if kind is errors.UnknownError and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
        return errors.KafkaError(str(error))
    return kind(str(error))
