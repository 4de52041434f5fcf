"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31), versions 1 to 3.

Of what is asked only the number of parts is read, and that each type, operation and permission is one: 0
stands for unknown. 2 is flexible, 3 brings a type of resource.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import acls

_UNKNOWN = 0
_FILTERED = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
_GIVEN = ("resource_type", "resource_pattern_type", "operation", "permission_type")


def _check(part: dict[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in names if part[name] == _UNKNOWN]
    if unknown:
        raise MalformedFrame(f"unknown {', '.join(unknown)}")


def decode_describe(values: dict[str, Any], context: RequestContext) -> acls.AclsRequest:
    """DescribeAcls, versions 1 to 3."""
    _check(values, _FILTERED)
    return acls.AclsRequest()


def encode_describe(reply: acls.AclsResponse, shape: Shape) -> Any:
    """DescribeAcls, versions 1 to 3."""
    return shape.DescribeAclsResponse(
        throttle_time=0,
        error_code=reply.error_code,
        error_message=reply.error_message,
        resources=(),
    )


def decode_create(values: dict[str, Any], context: RequestContext) -> acls.AclsRequest:
    """CreateAcls, versions 1 to 3."""
    for creation in values["creations"]:
        _check(creation, _GIVEN)
    return acls.AclsRequest(parts=len(values["creations"]))


def encode_create(reply: acls.AclsResponse, shape: Shape) -> Any:
    """CreateAcls, versions 1 to 3."""
    result = shape.AclCreationResult(error_code=reply.error_code, error_message=reply.error_message)
    return shape.CreateAclsResponse(throttle_time=0, results=(result,) * reply.parts)


def decode_delete(values: dict[str, Any], context: RequestContext) -> acls.AclsRequest:
    """DeleteAcls, versions 1 to 3."""
    for each in values["filters"]:
        _check(each, _FILTERED)
    return acls.AclsRequest(parts=len(values["filters"]))


def encode_delete(reply: acls.AclsResponse, shape: Shape) -> Any:
    """DeleteAcls, versions 1 to 3."""
    result = shape.DeleteAclsFilterResult(
        error_code=reply.error_code, error_message=reply.error_message, matching_acls=()
    )
    return shape.DeleteAclsResponse(throttle_time=0, filter_results=(result,) * reply.parts)
