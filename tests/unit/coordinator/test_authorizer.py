"""Decisions by ACLs in cases that a broker with a single client does not show."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.authorizer import IMPLIED_BY, Authorizer
from fencepost.coordinator.protocol.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from tests.growth import lines

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


NAMES = st.text("ab*", min_size=1, max_size=3)
WHO = st.sampled_from(["User:a", "User:b", "User:*"])
HOSTS = st.sampled_from(["h", "i", "*"])
ACLS = st.builds(
    acl,
    NAMES,
    st.sampled_from([Op.READ, Op.DESCRIBE, Op.ALL]),
    WHO,
    host=HOSTS,
    pattern_type=st.sampled_from([PatternType.LITERAL, PREFIXED]),
    permission_type=st.sampled_from([DENY, AclPermissionType.ALLOW]),
)


def by_one_after_the_other(
    acls: list[AclBinding], principal: str, operation: AclOperation, name: str
) -> bool:
    """A plain account of StandardAuthorizer: look at all ACLs."""
    about = [
        each
        for each in acls
        if (
            name.startswith(each.resource_name)
            if each.pattern_type == PREFIXED
            else each.resource_name in (name, "*")
        )
    ]
    own = [each for each in about if each.principal in (principal, "User:*") and each.host in ("h", "*")]
    if any(each.permission_type == DENY and each.operation in (operation, Op.ALL) for each in own):
        return False
    wanted = {operation, Op.ALL, *IMPLIED_BY.get(operation, ())}
    return not about or any(each.permission_type != DENY and each.operation in wanted for each in own)


@given(st.lists(ACLS, max_size=12), st.sampled_from(["User:a", "User:b"]), NAMES, st.randoms())
def test_acls_are_found_without_looking_at_all(
    acls: list[AclBinding], principal: str, name: str, draws: random.Random
) -> None:
    made = authorizer(*acls, is_open=True)
    left = list(dict.fromkeys(acls))
    while True:
        for operation in (Op.READ, Op.DESCRIBE, Op.WRITE):
            expected = by_one_after_the_other(left, principal, operation, name)
            assert made.authorize(principal, "h", operation, R.TOPIC, name) == expected
            bit = made.operations(principal, "h", R.TOPIC, name) >> operation & 1
            assert bit == expected
        assert made.is_idle == (not left)
        if not left:
            return
        gone = left.pop(draws.randrange(len(left)))
        fields = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation")
        wanted = {each: getattr(gone, each) for each in (*fields, "permission_type")}
        assert made.delete(AclFilter(**wanted)) == [gone]


@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PREFIXED])
def test_a_decision_costs_the_same_with_many_acls(pattern: PatternType) -> None:
    def with_acls(count: int) -> int:
        made = authorizer(
            *(
                acl(f"topic-{number:05}", Op.READ, f"User:{number}", pattern_type=pattern)
                for number in range(count)
            ),
            *(acl("*", Op.READ, f"User:{number}") for number in range(count)),
        )
        return lines(lambda: made.operations("User:7", "h", R.TOPIC, "topic-00007"))

    assert with_acls(2_000) == with_acls(20)
