"""Handlers of CreateAcls, DescribeAcls and DeleteAcls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fencepost.coordinator.authorizer import Authorizer
from fencepost.coordinator.protocol import acls
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import Work, in_turns


def describe_acls(
    services: Services, request: acls.DescribeAclsRequest, asked: Asked
) -> acls.DescribeAclsResponse:
    """Return the ACLs that the filter matches."""
    authorizer = None if services.rights is None else services.rights.authorizer
    if authorizer is None:
        return acls.DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
        )
    return acls.DescribeAclsResponse(error_message="", acls=tuple(authorizer.find(request)))


@in_turns
def create_acls(
    services: Services, request: acls.CreateAclsRequest, asked: Asked
) -> Work[acls.CreateAclsResponse]:
    """Create each ACL by itself."""

    def create(authorizer: Authorizer, acl: acls.AclBinding) -> acls.CreatedAcl:
        authorizer.create(acl)
        return acls.CreatedAcl()

    results = yield from _each(services, request.creations, create, acls.CreatedAcl)
    return acls.CreateAclsResponse(results=results)


@in_turns
def delete_acls(
    services: Services, request: acls.DeleteAclsRequest, asked: Asked
) -> Work[acls.DeleteAclsResponse]:
    """Delete what each filter matches."""

    def delete(authorizer: Authorizer, wanted: acls.AclFilter) -> acls.DeletedAcls:
        return acls.DeletedAcls(acls=tuple(authorizer.delete(wanted)))

    results = yield from _each(services, request.filters, delete, acls.DeletedAcls)
    return acls.DeleteAclsResponse(filter_results=results)


def _each(
    services: Services,
    parts: Sequence[Any],
    change: Callable[[Authorizer, Any], Any],
    refused: type[acls.CreatedAcl | acls.DeletedAcls],
) -> Work[tuple[Any, ...]]:
    """Return a result for each part, once the ACLs are changed."""
    rights, results = services.rights, []
    for part in parts:
        try:
            if rights is None or rights.authorizer is None:
                raise ProtocolError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
            results.append(change(rights.authorizer, part))
            rights.changed()
        except ProtocolError as error:
            results.append(refused(error_code=error.code, error_message=error.message or None))
        yield 10
    return tuple(results)
