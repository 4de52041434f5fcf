"""The trace's schema: one row per event, for all worlds. Columns and kinds of rows are declared only here.

The Arrow schema, Spark's DDL, the checks of files, the JSON documents, the columns of a page and the tables
of docs/traces.md derive from these declarations. No column holds nulls: a blank stands for no value.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

from fencepost.coordinator.protocol.ids import TopicPartition

LOG_WORLD: Final = "kafka"
"""The world of rows that come from Kafka's own log of groups, which has no requests and no judges."""
GENERATION: Final = "generation"
"""The first word of a `group.epoch` of a classic group in such a log: it has only a rebalance's end."""


class ColumnType(NamedTuple):
    """The type of a column: its name in Spark's DDL, and the blank value, which stands for no value."""

    ddl: str
    blank: Any


TEXT: Final = ColumnType("string", "")
LONG: Final = ColumnType("bigint", 0)
INT: Final = ColumnType("int", -1)
PARTITIONS: Final = ColumnType("array<struct<topic: string, partition: int>>", ())


class TraceColumn(NamedTuple):
    """One column of the trace."""

    type: ColumnType
    meaning: str
    required: bool = False
    """True if a JSON document without it is not a row. All others may be left out if they are blank."""


class Row(NamedTuple):
    """One event. `run_id` is kept apart from the rows: it is the same for all, and not in the digest."""

    seq: Annotated[int, TraceColumn(LONG, "The number of the row in its run, from 1.", required=True)]
    t_us: Annotated[int, TraceColumn(LONG, "Virtual microseconds since the start of the run.", required=True)]
    world: Annotated[
        str, TraceColumn(TEXT, "`simulated`. Other worlds write the same schema.", required=True)
    ]
    group: Annotated[str, TraceColumn(TEXT, "The group's id.")]
    actor: Annotated[
        str,
        TraceColumn(
            TEXT, "The subject of the event. It is usually a host, whose name stays the same over restarts."
        ),
    ]
    kind: Annotated[str, TraceColumn(TEXT, "The kind of event: one of the kinds below.", required=True)]
    state_from: Annotated[str, TraceColumn(TEXT, "The state before a transition.")]
    state_to: Annotated[str, TraceColumn(TEXT, "The state after a transition.")]
    member_epoch: Annotated[int, TraceColumn(INT, "The member epoch after the event, or -1.")]
    group_epoch: Annotated[int, TraceColumn(INT, "The group epoch after the event, or -1.")]
    partitions: Annotated[
        tuple[TopicPartition, ...],
        TraceColumn(PARTITIONS, "List of (topic, partition). The kind says which partitions."),
    ]
    error: Annotated[
        str,
        TraceColumn(
            TEXT,
            ("Kafka's error, Disconnected, RequestTimedOut, CallbackFailed, a violated invariant, or empty."),
        ),
    ]
    detail: Annotated[str, TraceColumn(TEXT, "Further details. The kind says which.")]


def columns_of(row: type) -> dict[str, TraceColumn]:
    """Return the columns of a file of such rows, by name and in order: `run_id`, then the row's fields."""
    fields = get_type_hints(row, include_extras=True)
    run_id = TraceColumn(TEXT, "The run. The digest does not include this column.", required=True)
    return {"run_id": run_id} | {name: get_args(hint)[1] for name, hint in fields.items()}


def ddl_of(columns: Mapping[str, TraceColumn]) -> str:
    """Return these columns as Spark declares them."""
    return ", ".join(f"`{name}` {column.type.ddl}" for name, column in columns.items())


COLUMNS: Final[Mapping[str, TraceColumn]] = columns_of(Row)
"""The columns of a trace, by name and in their order."""

TRACE_DDL: Final = ddl_of(COLUMNS)
"""The columns of a trace, as Spark declares them."""


_MEMBER: Final = "the member's host"
_MEMBER_OR_SAC: Final = "the member's host, or a single active consumer's client and stream"
_BROKER: Final = "the coordinator's host"
_TRANSITION: Final = {"state_from": "the state before", "state_to": "the state after"}
_MACHINE: Final = _TRANSITION | {"detail": "the event from the machine's table"}


class RowKind(enum.StrEnum):
    """The kinds of rows: the event, its actor, and the meaning of the columns that such rows fill.

    Columns that no kind names may be filled in rows of every kind.
    """

    event: str
    actor: str
    columns: Mapping[str, str]

    def __new__(cls, value: str, event: str, actor: str, columns: Mapping[str, str] | None = None) -> RowKind:
        """A member whose value is the column `kind`."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.event, kind.actor, kind.columns = event, actor, columns or {}
        return kind

    RUN_START = (
        "run.start",
        "The run begins.",
        "",
        {
            "detail": (
                "the scenario's name, the seed, and the number of members at the start; from Kafka's own log"
                " the group's name, and in the place of a fourth word the time of its first record"
            )
        },
    )
    FAULTS_END = (
        "run.faults_end",
        "The last fault is over. The time to settle is measured from here.",
        "",
    )
    RUN_END = "run.end", "The run is over.", ""
    HEARTBEAT = (
        "heartbeat",
        ("The coordinator responded to a heartbeat, or to another group request of the classic protocol."),
        _MEMBER,
        {
            "member_epoch": "the epoch in the response, or in the refused request",
            "partitions": "the assignment in the response (in the classic protocol: of SyncGroup)",
            "error": "the error in the response",
            "detail": (
                "join (or JoinGroup), full (or SyncGroup), ack, keepalive or leave, then the bytes of "
                "request and response, such as `ack 152+49`. The bytes of a keepalive follow from the "
                "names"
            ),
        },
    )
    REQUEST_LOST = (
        "request.lost",
        "A request did not reach its broker.",
        _MEMBER,
        {"detail": "the request and the broker"},
    )
    RESPONSE_LOST = (
        "response.lost",
        "A broker carried out a request, and its response was lost.",
        _MEMBER,
        {"detail": "the request and the broker"},
    )
    MEMBER_STATE = (
        "member.state",
        (
            "A member's state machine moved. A single active consumer reads in ACTIVE. It holds its "
            "stream until it leaves STEPPING_DOWN."
        ),
        _MEMBER_OR_SAC,
        {"member_epoch": "the member's epoch", "partitions": "the member's partitions"} | _MACHINE,
    )
    CALLBACK_BEGIN = (
        "callback.begin",
        (
            "A rebalance callback begins. With revoked or lost, its partitions cannot be fetched any "
            "more. With stepping down or lost, a single active consumer reads nothing new."
        ),
        _MEMBER_OR_SAC,
        {
            "partitions": "the callback's partitions",
            "detail": "assigned, revoked or lost; of a single active consumer activated, stepping down"
            " or lost; from Kafka's own log also taken: another member has them, since an unknown time",
        },
    )
    CALLBACK_END = (
        "callback.end",
        "A rebalance callback ends. After assigned, its partitions can be fetched.",
        _MEMBER_OR_SAC,
        {
            "partitions": "the callback's partitions",
            "error": (
                "the callback raised. It, or its opposite, is called again, except if the member releases"
                " everything, in the classic protocol, and for a single active consumer"
            ),
            "detail": "as for `callback.begin`",
        },
    )
    GROUP_STATE = ("group.state", "The group changed its state.", _BROKER, _TRANSITION)
    GROUP_EPOCH = (
        "group.epoch",
        (
            "The group epoch was raised. The epoch of a classic group is its generation, which is "
            "raised when members begin to join."
        ),
        _BROKER,
        {
            "state_to": "the group's state after that step",
            "detail": (
                "the cause: a heartbeat's cause, timeout (of a member), topics (changed), expressions "
                "(resolved), or asked (by the program that drives the group). From Kafka's own log: what the "
                "records show, and of a classic group `generation:` with its new and missing members"
            ),
        },
    )
    TARGET = (
        "group.target",
        (
            "A new target assignment exists (in a classic group: the leader's assignment). "
            "`group_epoch` is its epoch."
        ),
        _BROKER,
    )
    ASSIGNMENT = (
        "assignment",
        (
            "The coordinator wrote the assignment of a consumer group's member. Blank if the member "
            "is removed."
        ),
        _MEMBER,
        {
            "state_to": "the member's state at the coordinator",
            "member_epoch": "the member's epoch",
            "partitions": "the assigned partitions, and those that the member must still release",
            "detail": "the member's id",
        },
    )
    MEMBER_REMOVED = (
        "member.removed",
        ("The coordinator removed a member. It is fenced until the coordinator accepts its next join."),
        "the member's host, or its id if another member already runs there",
        {
            "detail": (
                "left, session, rebalance or replaced; fenced if a test called `fence`; join or sync for a "
                "classic member that did not send JoinGroup or SyncGroup within its rebalance timeout; gone "
                "if Kafka's own log does not say which"
            )
        },
    )
    COMMIT = (
        "commit",
        "An OffsetCommit got its response, or the member gave it up.",
        _MEMBER,
        {
            "member_epoch": "the epoch in the request",
            "partitions": "the committed partitions",
            "error": "the error in the response, or the reason why there is no response",
            "detail": "the offsets",
        },
    )
    OPERATION = (
        "operation",
        "An operator got the response to a request about the group, or gave it up.",
        "`operator`",
        {
            "error": "the error in the response, or the reason why there is no response",
            "detail": "the request and its result",
        },
    )
    TRANSACTION = (
        "transaction",
        (
            "The transaction coordinator wrote a record or refused a request, or the end of a "
            "transaction reached its group."
        ),
        ("the transactional id, which is its member's host; the group's coordinator if an end reaches it"),
        {
            "state_from": "the state of the transactional id before",
            "state_to": "the state after; Committed or Aborted if an end reaches the group",
            "partitions": "the partitions whose staged offsets count from now on",
            "error": "the error of a refused request",
            "detail": "the producer's id and epoch, the refused request, or the offsets that count",
        },
    )
    RECORDS = (
        "records",
        "The application finished processing records.",
        _MEMBER,
        {
            "partitions": "the partition of the records",
            "detail": (
                "the offsets, and the end of the log if it is known: `4..6 of 9` means records 4 and 5, "
                "and the next record would get 9"
            ),
        },
    )
    COORDINATOR = (
        "coordinator",
        "The state of a coordinator's host changed.",
        _BROKER,
        {"detail": "load, active, resign, crash or restart"},
    )
    HOST = (
        "host",
        "The state of a member's host changed.",
        _MEMBER,
        {"detail": "start, stop, stopped, crash, freeze or thaw"},
    )
    SAC_CONSUMER = (
        "sac.consumer",
        "A single active consumer changed its status at the coordinator.",
        "the consumer's client and stream",
        {
            "state_from": "the status before",
            "state_to": "the status after",
            "partitions": "the stream, with partition 0 unless it belongs to a super stream",
            "detail": "the command or event, and the connection",
        },
    )
    NODE = ("node", "A node of a stream cluster changed.", "the node", {"detail": "crash, restart or left"})
    CLIENT_STATE = (
        "client.state",
        "A client of a Streams application changed its state.",
        "the client",
        _MACHINE,
    )
    THREAD_STATE = ("thread.state", "A thread of such a client changed its state.", "the thread", _MACHINE)
    THREAD_FAILED = (
        "thread.failed",
        "An exception left a thread, and its handler decided.",
        "the thread",
        {"detail": "what the handler returned, and where the exception came from"},
    )
    FAULT = (
        "fault",
        "A fault began or ended. In an embedded Kafka: a test called one of its methods.",
        "the kind of the fault, or the method",
        {
            "state_to": "begin or end; met if a request met a call that waited for it",
            "detail": "what the fault hits, or the arguments",
        },
    )
    TEST = (
        "test",
        "The test that drives an embedded Kafka ended. Only timelines of tests have such a row.",
        "",
        {"state_to": "ended or failed", "error": "the exception's class", "detail": "the exception"},
    )
    TOPIC = (
        "topic",
        "A topic changed.",
        "the topic",
        {"detail": "created, grown or deleted, and the current number of partitions"},
    )
    VIOLATION = (
        "violation",
        "A judge found a violated invariant.",
        "",
        {"error": "the invariant", "detail": "the explanation"},
    )


CLOCK_ADVANCED: Final = "clock.advance"
"""The actor of the fault by which a test moves its Kafka's clock; the detail begins with the seconds."""


def is_steady(row: Row) -> bool:
    """Return true for an accepted heartbeat that changed nothing."""
    return row.kind == RowKind.HEARTBEAT and row.detail.startswith("keepalive") and not row.error


def kinds_of(column: str) -> Iterator[RowKind]:
    """Return the kinds whose rows fill this column; all kinds if none names it."""
    using = [kind for kind in RowKind if column in kind.columns or (column == "actor" and kind.actor)]
    yield from using or RowKind
