"""Handlers of requests about ACLs and users of SCRAM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from fencepost.coordinator.authorizer import Authorizer
from fencepost.coordinator.protocol import acls, sasl
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.sasl.credentials import ITERATIONS, SCRAM_HASHES, Credentials
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import Work, in_turns


def describe_acls(
    services: Services, request: acls.DescribeAclsRequest, asked: Asked
) -> acls.DescribeAclsResponse:
    """Return the ACLs that the filter matches."""
    if (authorizer := services.rights.authorizer) is None:
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
            if rights.authorizer is None:
                raise ProtocolError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
            results.append(change(rights.authorizer, part))
            rights.changed()
        except ProtocolError as error:
            results.append(refused(error_code=error.code, error_message=error.message or None))
        yield 10
    return tuple(results)


_HASHES: Final = dict(enumerate(SCRAM_HASHES.values(), 1))
"""The names of hashes by Kafka's numbers of mechanisms."""
_MIN_ITERATIONS: Final = ITERATIONS
_MAX_ITERATIONS: Final = 16_384


def describe_scram(
    services: Services, request: sasl.DescribeUserScramCredentialsRequest, asked: Asked
) -> sasl.DescribeUserScramCredentialsResponse:
    """Return the mechanisms of the users, without anything about their passwords."""
    known = services.rights.credentials
    results = []
    everyone = sorted(name for name in known.users if known.iterations(name))
    for name, times in Counter(request.users or everyone).items():
        found = known.iterations(name)
        infos = tuple((number, found[each]) for number, each in _HASHES.items() if each in found)
        code, message = ErrorCode.NONE, None
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif not infos:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {name}"
        results.append(
            sasl.DescribedUser(
                user=name, error_code=code, error_message=message, credential_infos=() if message else infos
            )
        )
    return sasl.DescribeUserScramCredentialsResponse(error_message="", results=tuple(results))


def alter_scram(
    services: Services, request: sasl.AlterUserScramCredentialsRequest, asked: Asked
) -> sasl.AlterUserScramCredentialsResponse:
    """Change each user by itself, and none that is named twice, as Kafka's `ScramControlManager`."""
    known = services.rights.credentials
    wrong: dict[str, tuple[ErrorCode, str]] = {}
    changes: dict[str, sasl.ScramDeletion] = {}
    for each in (*request.deletions, *request.upsertions):
        if each.name in wrong:
            continue
        if changes.pop(each.name, None) is not None:
            wrong[each.name] = (
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        elif (problem := _problem(known, each)) is not None:
            wrong[each.name] = problem
        else:
            changes[each.name] = each
    for name, each in changes.items():
        hash_name = _HASHES[each.mechanism]
        if isinstance(each, sasl.ScramUpsertion):
            known.put(hash_name, name, each.salt, each.salted_password, each.iterations)
        else:
            known.delete(hash_name, name)
    return sasl.AlterUserScramCredentialsResponse(
        results=(
            *(sasl.AlteredUser(user=name) for name in changes),
            *(
                sasl.AlteredUser(user=name, error_code=code, error_message=message)
                for name, (code, message) in wrong.items()
            ),
        )
    )


def _problem(known: Credentials, change: sasl.ScramDeletion) -> tuple[ErrorCode, str] | None:
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not change.name:
        return unacceptable, "Username must not be empty"
    if change.mechanism not in _HASHES:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, sasl.ScramUpsertion):
        if change.iterations < _MIN_ITERATIONS:
            return unacceptable, "Too few iterations"
        return (unacceptable, "Too many iterations") if change.iterations > _MAX_ITERATIONS else None
    if _HASHES[change.mechanism] not in known.iterations(change.name):
        return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    return None
