"""Decisions by ACLs in cases that a broker with a single client does not show."""

from __future__ import annotations

import pytest

from fencepost.coordinator.authorizer import Authorizer
from fencepost.coordinator.protocol.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)

Op, R = AclOperation, AclResourceType
DENY = AclPermissionType.DENY
PREFIXED = PatternType.PREFIXED


def acl(name: str, operation: AclOperation, principal: str = "User:a", **more: object) -> AclBinding:
    given = {"resource_type": R.TOPIC, "resource_name": name, "principal": principal, "operation": operation}
    return AclBinding(**{**given, **more})  # type: ignore[arg-type]


def authorizer(*acls: AclBinding, is_open: bool = False) -> Authorizer:
    made = Authorizer(["User:root"], allow_everyone_if_no_acl_found=is_open)
    for each in acls:
        made.create(each)
    return made


@pytest.mark.parametrize(
    ("acls", "asked", "allowed"),
    [
        ([acl("t", Op.READ)], ("User:a", "h", Op.READ, "t"), True),
        ([acl("t", Op.READ)], ("User:a", "h", Op.WRITE, "t"), False),
        ([acl("t", Op.READ)], ("User:b", "h", Op.READ, "t"), False),
        ([acl("t", Op.READ)], ("User:root", "h", Op.WRITE, "t"), True),
        ([acl("t", Op.READ)], ("User:a", "h", Op.DESCRIBE, "t"), True),
        ([acl("t", Op.ALTER_CONFIGS)], ("User:a", "h", Op.DESCRIBE_CONFIGS, "t"), True),
        ([acl("t", Op.READ)], ("User:a", "h", Op.DESCRIBE_CONFIGS, "t"), False),
        ([acl("t", Op.ALL)], ("User:a", "h", Op.DELETE, "t"), True),
        ([acl("t", Op.READ, host="10.0.0.1")], ("User:a", "10.0.0.2", Op.READ, "t"), False),
        ([acl("t", Op.READ, "User:*")], ("User:b", "h", Op.READ, "t"), True),
        ([acl("*", Op.READ)], ("User:a", "h", Op.READ, "t"), True),
        ([acl("t", Op.READ)], ("User:a", "h", Op.READ, "tt"), False),
        ([acl("t", Op.READ, pattern_type=PREFIXED)], ("User:a", "h", Op.READ, "tt"), True),
        ([acl("t", Op.READ), acl("*", Op.READ, permission_type=DENY)], ("User:a", "h", Op.READ, "t"), False),
        # What denies READ does not deny DESCRIBE.
        (
            [acl("t", Op.READ), acl("t", Op.READ, permission_type=DENY)],
            ("User:a", "h", Op.DESCRIBE, "t"),
            True,
        ),
    ],
)
def test_an_acl_decides(acls, asked, allowed):
    principal, host, operation, name = asked
    assert authorizer(*acls).authorize(principal, host, operation, R.TOPIC, name) is allowed


def test_what_has_no_acl_is_open_or_closed():
    for is_open in (True, False):
        made = authorizer(acl("t", Op.READ), is_open=is_open)
        assert made.authorize("User:b", "h", Op.READ, R.TOPIC, "other") is is_open
        assert made.authorize("User:b", "h", Op.READ, R.GROUP, "t") is is_open
        assert not made.is_idle
        made.delete(AclFilter())
        assert made.is_idle is is_open


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("t", Op.WRITE)], True),
        ([acl("t", Op.READ)], False),
        ([acl("t", Op.WRITE), acl("t", Op.WRITE, permission_type=DENY)], False),
        ([acl("tt", Op.WRITE), acl("t", Op.ALL, permission_type=DENY, pattern_type=PREFIXED)], False),
        ([acl("t", Op.WRITE, pattern_type=PREFIXED), acl("tt", Op.WRITE, permission_type=DENY)], True),
        ([acl("t", Op.WRITE), acl("*", Op.WRITE, permission_type=DENY)], False),
    ],
)
def test_a_producer_needs_any_topic_to_write_to(acls, allowed):
    assert authorizer(*acls).authorize_any("User:a", "h", Op.WRITE, R.TOPIC) is allowed


def test_operations_are_a_bit_field():
    made = authorizer(acl("t", Op.READ))
    assert made.operations("User:a", "h", R.TOPIC, "t") == 1 << Op.READ | 1 << Op.DESCRIBE
    # The constants of responses without an authorizer are the same field for a client that may do all.
    assert made.operations("User:root", "h", R.TOPIC, "t") == 3576
    assert made.operations("User:root", "h", R.CLUSTER, "kafka-cluster") == 8096
    assert made.operations("User:root", "h", R.GROUP, "g") == 3400
