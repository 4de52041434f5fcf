"""The answers to everything about access control lists: that there are none, as Kafka says it.

Tools take that for a cluster without rights, and go on.
"""

from __future__ import annotations

from fencepost.coordinator.protocol.acls import AclsRequest, AclsResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.server.services import Asked, Services


def describe_acls(services: Services, request: AclsRequest, asked: Asked) -> AclsResponse:
    """As a broker answers by itself."""
    return _none(request, "No Authorizer is configured on the broker")


def alter_acls(services: Services, request: AclsRequest, asked: Asked) -> AclsResponse:
    """As a controller answers, which brokers ask."""
    return _none(request, "No Authorizer is configured.")


def _none(request: AclsRequest, message: str) -> AclsResponse:
    code = ErrorCode.SECURITY_DISABLED
    return AclsResponse(parts=request.parts, error_code=code, error_message=message)
