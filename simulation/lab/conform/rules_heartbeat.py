"""The rules of heartbeats: which are refused, which epochs are accepted, what static members may do."""

from __future__ import annotations

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.validation import is_subset
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from fencepost.simulation.checkers.heartbeats import is_full
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
    """How many checks the request fails that need no group."""
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
    ConformRule("check.order", "of several faults the first check answers", lambda x: _faults(x) > 1),
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
        "a join brings its rebalance time-out",
        _invalid(lambda x: _joins(x) and x.request.rebalance_timeout_ms == -1),
    ),
    ConformRule(
        "check.join_owned_null",
        "a join says that it owns nothing",
        _invalid(lambda x: _joins(x) and x.request.topic_partitions is None),
    ),
    ConformRule(
        "check.join_owned_something",
        "a join owns nothing",
        _invalid(lambda x: _joins(x) and bool(x.request.topic_partitions)),
    ),
    ConformRule(
        "check.join_without_subscription",
        "a join brings topics or a regular expression",
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
        "only a join makes a group",
        _refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda x: x.request.member_epoch > 0),
    ),
    ConformRule(
        "check.leave_group_missing",
        "nobody leaves a group that is not there",
        _refused(ErrorCode.GROUP_ID_NOT_FOUND, lambda x: x.request.member_epoch < 0),
    ),
    ConformRule(
        "check.group_full",
        "a full group takes no new member",
        lambda x: x.code is ErrorCode.GROUP_MAX_SIZE_REACHED,
    ),
    ConformRule(
        "check.unknown_member",
        "a member that is not known must join first",
        _refused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            lambda x: x.request.member_epoch > 0 and x.request.instance_id is None,
        ),
    ),
    ConformRule(
        "check.invalid_regex",
        "a regular expression compiles",
        lambda x: x.code is ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
    ConformRule(
        "check.generated_id",
        "version 0 may leave the member's id to the broker",
        lambda x: _ok(x) and _joins(x) and not x.request.member_id,
    ),
)


def _dynamic(x: ConformExchange) -> ConsumerGroupMember | None:
    """The known member whose epoch is judged, if the static rules let it come so far."""
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
        "a member that is away returns under its id",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.holder is x.known,
    ),
    ConformRule(
        "static.return_changed",
        "a member that returns with other topics raises the epoch",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.bumped,
    ),
    ConformRule(
        "static.return_new_id",
        "a member that returns under a new id inherits everything, and no epoch moves",
        lambda x: _ok(x) and _joins(x) and _away(x.holder) and x.holder is not x.known,
    ),
    ConformRule(
        "static.unreleased_same_id",
        "a living static member cannot join again, not even itself",
        _refused(ErrorCode.UNRELEASED_INSTANCE_ID, lambda x: x.holder is x.known),
    ),
    ConformRule(
        "static.unreleased",
        "an instance id of a living member is refused",
        lambda x: x.code is ErrorCode.UNRELEASED_INSTANCE_ID,
    ),
    ConformRule(
        "static.join",
        "an unknown instance id joins",
        lambda x: _ok(x) and _joins(x) and _static(x) and x.holder is None,
    ),
    ConformRule(
        "static.unknown_instance",
        "an instance id that nobody has is unknown",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: _static(x) and x.request.member_epoch > 0),
    ),
    ConformRule(
        "static.leave_unknown_instance",
        "nobody leaves under an unknown instance id",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: _static(x) and x.request.member_epoch < 0),
    ),
    ConformRule(
        "static.leave_other_holder",
        "nobody leaves under another's instance id",
        _refused(ErrorCode.FENCED_INSTANCE_ID, lambda x: x.request.member_epoch < 0),
    ),
    ConformRule(
        "static.other_holder",
        "another's instance id is fenced",
        lambda x: x.code is ErrorCode.FENCED_INSTANCE_ID,
    ),
    ConformRule(
        "static.instance_omitted",
        "a static member may leave its instance id out",
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
        "a member that goes away lets go of what it had to revoke",
        lambda x: (
            _ok(x)
            and x.request.member_epoch == STATIC_LEAVE_EPOCH
            and (known := x.known) is not None
            and bool(known.pending_revocation)
        ),
    ),
    ConformRule(
        "static.away",
        "epoch -2 keeps the member's partitions, and no epoch moves",
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
        "the last member leaves an empty group behind",
        lambda x: _ok(x) and x.request.member_epoch == LEAVE_EPOCH and not x.after.members,
    ),
    ConformRule(
        "leave.member",
        "a member that leaves raises the group's epoch",
        lambda x: _ok(x) and x.request.member_epoch == LEAVE_EPOCH,
    ),
    ConformRule(
        "leave.unknown_member",
        "nobody leaves that is not there",
        _refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda x: x.request.member_epoch == LEAVE_EPOCH),
    ),
)


def _assignment_changed(x: ConformExchange) -> bool:
    known, member = x.known, x.member
    return member is not None and (known is None or known.assigned != member.assigned)


RESPONSES: tuple[ConformRule, ...] = (
    ConformRule(
        "response.interval",
        "a group's own heartbeat interval is told",
        lambda x: (
            _ok(x)
            and x.request.member_epoch >= 0
            and x.ours.heartbeat_interval_ms != x.config.group_consumer_heartbeat_interval_ms
        ),
    ),
    ConformRule(
        "response.changed",
        "a changed assignment is told whole",
        lambda x: _ok(x) and x.request.member_epoch > 0 and not is_full(x.request) and _assignment_changed(x),
    ),
    ConformRule(
        "response.full",
        "a full request is told its assignment",
        lambda x: _ok(x) and x.request.member_epoch > 0 and is_full(x.request),
    ),
    ConformRule("response.join", "a join is told its assignment", lambda x: _ok(x) and _joins(x)),
    ConformRule(
        "response.unchanged",
        "without a change there is no assignment in the answer",
        lambda x: _ok(x) and x.request.member_epoch > 0,
    ),
)
