"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31), versions 1 to 3.

Of what is asked only the number of parts is read. 2 is flexible, 3 brings a type of resource.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import acls


def decode_describe(values: dict[str, Any], context: RequestContext) -> acls.AclsRequest:
    """DescribeAcls, versions 1 to 3."""
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
    return acls.AclsRequest(parts=len(values["creations"]))


def encode_create(reply: acls.AclsResponse, shape: Shape) -> Any:
    """CreateAcls, versions 1 to 3."""
    result = shape.AclCreationResult(error_code=reply.error_code, error_message=reply.error_message)
    return shape.CreateAclsResponse(throttle_time=0, results=(result,) * reply.parts)


def decode_delete(values: dict[str, Any], context: RequestContext) -> acls.AclsRequest:
    """DeleteAcls, versions 1 to 3."""
    return acls.AclsRequest(parts=len(values["filters"]))


def encode_delete(reply: acls.AclsResponse, shape: Shape) -> Any:
    """DeleteAcls, versions 1 to 3."""
    result = shape.DeleteAclsFilterResult(
        error_code=reply.error_code, error_message=reply.error_message, matching_acls=()
    )
    return shape.DeleteAclsResponse(throttle_time=0, filter_results=(result,) * reply.parts)
