"""The rules of heartbeats: which ones are refused, which epochs are accepted, what static members may do."""

from __future__ import annotations

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.validation import is_subset
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from fencepost.simulation.checkers.consumer_model import is_full
from fencepost.simulation.lab.conform.exchange import ConformExchange, ConformRule, Predicate

ASSIGNORS = frozenset({"uniform", "range"})


def _blank(text: str | None) -> bool:
    return text is not None and not text.strip()


def _refused(code: ErrorCode, when: Predicate) -> Predicate:
    return lambda x: x.code is code and when(x)


def _invalid(when: Predicate) -> Predicate:
    return _refused(ErrorCode.INVALID_REQUEST, when)


def _joins(x: ConformExchange) -> bool:
    return bool(x.request.member_epoch == JOIN_EPOCH)


def _ok(x: ConformExchange) -> bool:
    return x.code is ErrorCode.NONE


def _faults(x: ConformExchange) -> int:
    """Return the number of checks that the request fails and that need no group."""
    request = x.request
    return sum(
        (
            _blank(request.group_id),
            _blank(request.member_id) and (x.version > 0 or request.member_epoch > 0),
            _blank(request.instance_id),
            _blank(request.rack_id),
            _joins(x) and request.rebalance_timeout_ms == -1,
            _joins(x) and (request.topic_partitions is None or bool(request.topic_partitions)),
            request.member_epoch < STATIC_LEAVE_EPOCH,
            request.server_assignor is not None and request.server_assignor not in ASSIGNORS,
        )
    )


CHECKS: tuple[ConformRule, ...] = (
    ConformRule(
        "check.order", "if several checks fail, the first one decides the error", lambda x: _faults(x) > 1
    ),
    ConformRule(
        "check.member_id_blank",
        "version 1 needs a member id",
        _invalid(lambda x: _blank(x.request.member_id)),
    ),
    ConformRule(
        "check.group_id_blank", "a group id is not blank", _invalid(lambda x: _blank(x.request.group_id))
    ),
    ConformRule(
        "check.instance_id_blank",
        "an instance id is not blank",
        _invalid(lambda x: _blank(x.request.instance_id)),
    ),
    ConformRule(
        "check.rack_id_blank", "a rack id is not blank", _invalid(lambda x: _blank(x.request.rack_id))
    ),
    ConformRule(
        "check.join_without_timeout",
        "a join has a rebalance timeout",
        _invalid(lambda x: _joins(x) and x.request.rebalance_timeout_ms == -1),
    ),
    ConformRule(
        "check.join_owned_null",
        "a join has an empty list of owned partitions",
        _invalid(lambda x: _joins(x) and x.request.topic_partitions is None),
    ),
    ConformRule(
        "check.join_owned_something",
        "a join owns nothing",
        _invalid(lambda x: _joins(x) and bool(x.request.topic_partitions)),
    ),
    ConformRule(
        "check.join_without_subscription",
        "a join has topics or a regular expression",
        _invalid(
            lambda x: (
                _joins(x)
                and x.request.subscribed_topic_names is None
                and x.request.subscribed_topic_regex is None
            )
        ),
    ),
    ConformRule(
        "check.static_leave_without_instance",
        "epoch -2 needs an instance id",
        _invalid(lambda x: x.request.member_epoch == STATIC_LEAVE_EPOCH and x.request.instance_id is None),
    ),
    ConformRule(
        "check.epoch_below",
        "no epoch is below -2",
        _invalid(lambda x: x.request.member_epoch < STATIC_LEAVE_EPOCH),
    ),
    ConformRule(
        "check.unknown_assignor",
        "an assignor must be one of the broker's",
        lambda x: x.code is ErrorCode.UNSUPPORTED_ASSIGNOR,
    ),
    ConformRule(
        "check.group_missing",
        "only a join creates a group",
        _refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda x: x.request.member_epoch > 0),
    ),
    ConformRule(
        "check.leave_group_missing",
        "a leave of a missing group is refused",
        _refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda x: x.request.member_epoch < 0),
    ),
    ConformRule(
        "check.group_full",
        "a full group refuses new members",
        lambda x: x.code is ErrorCode.GROUP_MAX_SIZE_REACHED,
    ),
    ConformRule(
        "check.unknown_member",
        "an unknown member must join first",
        _refused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            lambda x: x.request.member_epoch > 0 and x.request.instance_id is None,
        ),
    ),
    ConformRule(
        "check.invalid_regex",
        "a regular expression must compile",
        lambda x: x.code is ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
    ConformRule(
        "check.generated_id",
        "in version 0 the broker may choose the member id",
        lambda x: _ok(x) and _joins(x) and not x.request.member_id,
    ),
)


def _dynamic(x: ConformExchange) -> ConsumerGroupMember | None:
    """Return the known member whose epoch is judged, if the static rules let it get that far."""
    known = x.known
    if known is None or x.request.member_epoch < 0:
        return None
    if x.request.instance_id is not None and x.holder is not known:
        return None
    return known


def _epoch_is_previous(x: ConformExchange) -> bool:
    known = _dynamic(x)
    return (
        known is not None
        and 0 < x.request.member_epoch < known.member_epoch
        and x.request.member_epoch == known.previous_member_epoch
    )


def _owned_is_assigned(x: ConformExchange) -> bool:
    known = x.known
    return known is not None and is_subset(x.request.topic_partitions, known.assigned)


def _is_current(x: ConformExchange) -> bool:
    known = _dynamic(x)
    return known is not None and known.member_epoch == x.request.member_epoch > 0


EPOCHS: tuple[ConformRule, ...] = (
    ConformRule(
        "epoch.rejoin",
        "epoch 0 of a known member is a rejoin (KAFKA-19233)",
        lambda x: _ok(x) and _joins(x) and x.request.instance_id is None and x.known is not None,
    ),
    ConformRule(
        "epoch.ahead",
        "an epoch above the member's is fenced",
        lambda x: (known := _dynamic(x)) is not None and x.request.member_epoch > known.member_epoch,
    ),
    ConformRule(
        "epoch.previous_with_owned",
        "the previous epoch is accepted with a list of assigned partitions",
        lambda x: _epoch_is_previous(x) and _owned_is_assigned(x),
    ),
    ConformRule(
        "epoch.previous_without_owned",
        "the previous epoch without a list is fenced",
        lambda x: _epoch_is_previous(x) and x.request.topic_partitions is None,
    ),
    ConformRule(
        "epoch.previous_owned_more",
        "the previous epoch with partitions that are not assigned is fenced",
        lambda x: (
            _epoch_is_previous(x) and x.request.topic_partitions is not None and not _owned_is_assigned(x)
        ),
    ),
    ConformRule(
        "epoch.stale",
        "an older epoch is fenced",
        lambda x: (
            (known := _dynamic(x)) is not None
            and 0 < x.request.member_epoch < known.member_epoch
            and x.request.member_epoch != known.previous_member_epoch
        ),
    ),
)


def _static(x: ConformExchange) -> bool:
    return x.request.instance_id is not None and bool(x.request.instance_id.strip())


def _away(member: ConsumerGroupMember | None) -> bool:
    return member is not None and member.member_epoch == STATIC_LEAVE_EPOCH


STATIC: tuple[ConformRule, ...] = (
    ConformRule(
        "static.return_same_id",
        "an absent member returns with its member id",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.holder is x.known,
    ),
    ConformRule(
        "static.return_changed",
        "a member that returns with other topics raises the epoch",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.bumped,
    ),
    ConformRule(
        "static.return_new_id",
        "a member that returns with a new member id inherits everything, and no epoch changes",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.holder is not x.known,
    ),
    ConformRule(
        "static.unreleased_same_id",
        "a static member whose session runs cannot rejoin, not even itself",
        _refused(ErrorCode.UNRELEASED_INSTANCE_ID, lambda x: x.holder is x.known),
    ),
    ConformRule(
        "static.unreleased",
        "a join with the instance id of a member whose session runs is refused",
        lambda x: x.code is ErrorCode.UNRELEASED_INSTANCE_ID,
    ),
    ConformRule(
        "static.join",
        "an unknown instance id joins",
        lambda x: _ok(x) and _joins(x) and _static(x) and x.holder is None,
    ),
    ConformRule(
        "static.unknown_instance",
        "an instance id without a member is unknown",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: _static(x) and x.request.member_epoch > 0),
    ),
    ConformRule(
        "static.leave_unknown_instance",
        "a leave with an unknown instance id is refused",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: _static(x) and x.request.member_epoch < 0),
    ),
    ConformRule(
        "static.leave_other_holder",
        "a leave with another member's instance id is refused",
        _refused(ErrorCode.FENCED_INSTANCE_ID, lambda x: x.request.member_epoch < 0),
    ),
    ConformRule(
        "static.other_holder",
        "another member's instance id is fenced",
        lambda x: x.code is ErrorCode.FENCED_INSTANCE_ID,
    ),
    ConformRule(
        "static.instance_omitted",
        "a static member may omit its instance id",
        lambda x: (
            _ok(x)
            and _is_current(x)
            and x.request.instance_id is None
            and (known := x.known) is not None
            and known.instance_id is not None
        ),
    ),
    ConformRule(
        "static.away_frees_pending",
        "a member that leaves temporarily releases what it had to revoke",
        lambda x: (
            _ok(x)
            and x.request.member_epoch == STATIC_LEAVE_EPOCH
            and (known := x.known) is not None
            and bool(known.pending_revocation)
        ),
    ),
    ConformRule(
        "static.away",
        "epoch -2 keeps the member's partitions, and no epoch changes",
        lambda x: _ok(x) and x.request.member_epoch == STATIC_LEAVE_EPOCH,
    ),
    ConformRule(
        "static.leave_for_good",
        "epoch -1 frees the instance id",
        lambda x: (
            _ok(x)
            and x.request.member_epoch == LEAVE_EPOCH
            and (known := x.known) is not None
            and known.instance_id is not None
        ),
    ),
)

LEAVING: tuple[ConformRule, ...] = (
    ConformRule(
        "leave.last",
        "when the last member leaves, the group is empty",
        lambda x: _ok(x) and x.request.member_epoch == LEAVE_EPOCH and not x.after.members,
    ),
    ConformRule(
        "leave.member",
        "a member that leaves raises the group epoch",
        lambda x: _ok(x) and x.request.member_epoch == LEAVE_EPOCH,
    ),
    ConformRule(
        "leave.unknown_member",
        "a leave of an unknown member is refused",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: x.request.member_epoch == LEAVE_EPOCH),
    ),
)


def _assignment_changed(x: ConformExchange) -> bool:
    known, member = x.known, x.member
    return member is not None and (known is None or known.assigned != member.assigned)


RESPONSES: tuple[ConformRule, ...] = (
    ConformRule(
        "response.interval",
        "the response has the group's own heartbeat interval",
        lambda x: (
            _ok(x)
            and x.request.member_epoch >= 0
            and x.ours.heartbeat_interval_ms != x.config.group_consumer_heartbeat_interval_ms
        ),
    ),
    ConformRule(
        "response.changed",
        "the response has a changed assignment in full",
        lambda x: _ok(x) and x.request.member_epoch > 0 and not is_full(x.request) and _assignment_changed(x),
    ),
    ConformRule(
        "response.full",
        "the response to a full heartbeat has the assignment",
        lambda x: _ok(x) and x.request.member_epoch > 0 and is_full(x.request),
    ),
    ConformRule("response.join", "the response to a join has the assignment", lambda x: _ok(x) and _joins(x)),
    ConformRule(
        "response.unchanged",
        "without a change the response has no assignment",
        lambda x: _ok(x) and x.request.member_epoch > 0,
    ),
)
