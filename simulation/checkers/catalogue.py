"""Every invariant by its short name: its statement, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.simulation.checkers.catalogue_streams import STREAMS_INVARIANTS
from fencepost.simulation.checkers.judgements import Invariant

_ALL: Final = (
    # The coordinator's state.
    Invariant(
        "one-owner",
        "No partition is assigned to, or still to be revoked from, two members.",
        "KIP-848, Reconciliation of the group; KAFKA-16147",
    ),
    Invariant(
        "owners-map",
        "The coordinator's map of partition owners lists exactly what its members hold.",
        "KAFKA-16147, KAFKA-19862",
    ),
    Invariant(
        "epochs-monotone",
        "Group and target epochs never fall. A member epoch falls only to -2.",
        "KIP-848, Group Epoch, Member Epoch",
    ),
    Invariant(
        "epoch-caused",
        "The group epoch rises by one for each change that affects targets, and for nothing else.",
        "KIP-848, Group Epoch, Static Membership",
    ),
    Invariant(
        "subscription-raises-epoch",
        "A member that changes its topic names or drops its pattern raises the group epoch.",
        "KIP-848, Group Epoch; KAFKA-19899",
    ),
    Invariant(
        "epochs-ordered",
        "Member epoch <= target epoch <= group epoch, and previous member epoch <= member epoch.",
        "KIP-848, Assignment Epoch",
    ),
    Invariant(
        "revocation-state",
        "A member is UNREVOKED exactly while partitions wait for it to release them.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "revocation-frozen",
        "While a member is UNREVOKED its epoch is fixed and unacknowledged partitions stay pending.",
        "KAFKA-16249, KAFKA-19974",
    ),
    Invariant(
        "revocation-bounded",
        "No member stays UNREVOKED longer than its rebalance timeout.",
        "KIP-848, Rebalance Timeout",
    ),
    Invariant(
        "stable-owns-target",
        "A member that reaches STABLE is assigned its whole target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "unreleased-waits",
        "An UNRELEASED member waits for a partition that another member holds.",
        "KAFKA-19449",
    ),
    Invariant(
        "assigned-in-target",
        "A reconciled member is assigned only partitions of its target and subscription.",
        "KAFKA-19431",
    ),
    Invariant(
        "assignment-epochs",
        "Each held partition has an assignment epoch between 0 and the member's epoch.",
        "KIP-1251",
    ),
    Invariant("target-exclusive", "No partition is in the targets of two members.", "KIP-848, Assignors"),
    Invariant(
        "target-covers",
        "A new target gives each existing subscribed partition to one of its subscribers.",
        "KIP-848, Assignors",
    ),
    Invariant(
        "target-balanced",
        "No topic's owner has two partitions more than another subscriber. Range assigns ranges.",
        "KIP-848, Assignors",
    ),
    Invariant(
        "target-sticky",
        "The uniform assignor takes a partition from a member only to restore the balance.",
        "KIP-848, Assignors",
    ),
    Invariant(
        "target-due",
        "A target is for the newest epoch, from the first heartbeat after the assignment interval.",
        "KIP-848, Target Assignment; KIP-1263",
    ),
    Invariant(
        "static-bijection", "Instance ids and static members map to each other one to one.", "KAFKA-20747"
    ),
    Invariant(
        "timers-armed",
        "Each member has a session timer, each revocation a rebalance timer, each round its timer.",
        "KIP-848, Member Session Management",
    ),
    Invariant(
        "members-kept",
        "A member is removed only if it leaves, or if its session or rebalance timeout expires.",
        "KIP-848, Member Session Management, Rebalance Timeout",
    ),
    Invariant(
        "empty-group",
        "An empty group has no partition owners, targets or resolved expressions.",
        "KIP-848, Group Epoch",
    ),
    Invariant(
        "metadata-hash",
        "The stored topic digest matches the topics at the time the group epoch was raised.",
        "KIP-1101",
    ),
    Invariant(
        "regexes-subscribed",
        "The group keeps resolved regular expressions only if a member subscribes to them.",
        "KIP-848, Regular Expressions",
    ),
    Invariant(
        "expressions-resolved",
        "Each expression resolves to the matching topics, on time, and not too often.",
        "KIP-848, Regular Expressions",
    ),
    Invariant(
        "bounded-memory",
        "The coordinator keeps nothing of former members. Maps and timers match the group's size.",
        "KAFKA-20601",
    ),
    # Requests and replies.
    Invariant(
        "reply-equals-state",
        "A response carries the stored epoch and exactly the assigned partitions.",
        "KIP-848, ConsumerGroupHeartbeat; KAFKA-16367",
    ),
    Invariant(
        "assignment-present",
        "The response to a join, a full heartbeat or a change carries the assignment, and no other does.",
        "KAFKA-16367",
    ),
    Invariant(
        "granted-after-release",
        "A response grants a partition only if no other member holds it.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "failed-changes-nothing",
        "A request that fails writes no record and changes no session.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "heartbeat-answers",
        "A heartbeat is accepted, or refused with the one right error, by its epoch.",
        "KIP-848, Member Epoch; KAFKA-19233",
    ),
    Invariant(
        "heartbeat-reconciles",
        "A heartbeat moves its member as close to the target as other members allow.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "commit-fenced",
        "A commit or fetch is refused if its member was removed or is stale, and only then.",
        "KIP-848, Offset Commit; KIP-1251",
    ),
    Invariant(
        "offsets-advance",
        "A member never commits an offset below one that it already committed.",
        "KIP-848, Offset Commit",
    ),
    Invariant(
        "heartbeat-recorded",
        "The coordinator keeps what a member last said about itself, and nothing else.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "commit-recorded",
        "The record of a commit has the offset as sent and the time of the commit.",
        "KIP-848, Offset Commit",
    ),
    Invariant(
        "offsets-kept",
        "Offsets of a subscribed topic stay. Those of a deleted topic go, staged ones too.",
        "KIP-848, Offsets",
    ),
    Invariant(
        "fetch-equals-commit",
        "OffsetFetch returns the offset that was committed last.",
        "KIP-848, OffsetFetch",
    ),
    Invariant(
        "told-equals-state",
        "Lists and descriptions show each group's epochs, members and partitions as they are.",
        "KIP-848, ConsumerGroupDescribe, ListGroups; KAFKA-20431",
    ),
    Invariant(
        "admin-changes",
        "An admin request removes exactly what it names, or gets the right error.",
        "KIP-848, DeleteGroups, OffsetDelete; KIP-345",
    ),
    # Transactions.
    Invariant(
        "transaction-offsets",
        "Offsets of a committed transaction count exactly once. Offsets of an aborted one do not count.",
        "KIP-98, KIP-447",
    ),
    Invariant(
        "transaction-staged",
        "Staged offsets stay until their transaction ends. They do not expire or get lost in a failover.",
        "KIP-447, KIP-98",
    ),
    Invariant(
        "transaction-stable-fetch",
        "A stable fetch marks exactly the offsets that an open transaction may change.",
        "KIP-447",
    ),
    Invariant(
        "transaction-fenced",
        "A replaced producer is refused with the right error. The newest producer is not refused.",
        "KIP-98, KIP-360, KIP-890",
    ),
    Invariant(
        "transaction-epochs",
        "No two producers get the same id and epoch, and producer epochs never fall.",
        "KIP-360, KIP-890",
    ),
    Invariant(
        "transaction-decided",
        "A transaction commits only if its producer asks. The decision reaches the group and is final.",
        "KIP-98, Transaction Coordinator",
    ),
    Invariant(
        "transaction-ends",
        "A transaction is aborted at its timeout, not earlier, and leaves no staged offsets.",
        "KIP-98, Transaction Timeout",
    ),
    Invariant(
        "exactly-once",
        "Each record counts exactly once over all committed transactions.",
        "KIP-129, KIP-447",
    ),
    # The journal.
    Invariant(
        "journal-replay",
        "The journal replays to the live state, after encoding and decoding and after compaction.",
        "KIP-848, Records; KAFKA-17306, KAFKA-19862",
    ),
    Invariant(
        "journal-batches",
        "Each outcome is one batch. A member's tombstones have the record types 8, 7, 5 in this order.",
        "KIP-848, Records",
    ),
    # The members.
    Invariant(
        "one-claimant",
        "No two members that the coordinator has not fenced believe that they own one partition.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "transitions", "Every move of a member machine is an arrow of its table.", "KIP-848, Client States"
    ),
    Invariant(
        "one-in-flight",
        "A member has at most one heartbeat in flight, and sends none outside a group.",
        "KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "frees-own-instance",
        "A static member whose own earlier join holds its instance id frees the id and continues.",
        "KIP-848, Static Membership; Kafka 4.3 refuses the join of a member that it still has",
    ),
    Invariant(
        "request-fields",
        "Joins, and heartbeats after a failure, carry all fields; others only what changed.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "owned-honest",
        "Heartbeats list what callbacks assigned and did not revoke. Applications see the same.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "epoch-as-answered",
        "Heartbeats and commits carry the newest epoch that the member received.",
        "KIP-848, Member Epoch; KAFKA-19335",
    ),
    Invariant(
        "heartbeats-go-on",
        "Heartbeats go on in callbacks, acknowledge at once, and stop when the application stops polling.",
        "KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "callbacks-balanced",
        "Each assigned partition is released exactly once, and callbacks never overlap.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "records-while-owned",
        "The application gets a partition's records only between its assigned and revoked callbacks.",
        "KAFKA-20332",
    ),
    Invariant(
        "commit-while-owned",
        "A member commits only partitions that it has not released. Each commit has offsets. None follows a"
        " fatal error.",
        "KAFKA-18641",
    ),
    Invariant(
        "commit-before-release",
        "A member commits what it processed before it releases a partition, awaits the response and retries.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "commit-within-processed",
        "A committed offset is never ahead of what its member processed.",
        "KAFKA-18641",
    ),
    Invariant(
        "retries-back-off",
        "A member whose requests fail waits longer before each retry, and asks for metadata rarely.",
        "KIP-580; KAFKA-19813, KAFKA-20253",
    ),
    Invariant(
        "searches-anew",
        "A member whose coordinator moved, or is silent, looks for it before it sends anything else.",
        "Kafka's group protocol, FindCoordinator",
    ),
    Invariant(
        "subscription-told",
        "Once faults end, the coordinator has each member's current subscription.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "leaves-told",
        "A member that leaves or stops polling sends a leave and awaits it. It does not join once closed.",
        "KIP-848, Member Epoch; KIP-1092",
    ),
    Invariant(
        "fenced-returns",
        "A fenced member joins again as soon as its on_lost callback has returned.",
        "KIP-848, Client States",
    ),
    Invariant(
        "gives-up-rightly",
        "A member gives up after an error that neither a retry nor a new join fixes, and only then.",
        "KIP-848, Client States",
    ),
    Invariant(
        "reconciles-on",
        "A member whose application polls keeps moving to its target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "starts-at-committed",
        "A new owner of a partition starts at the committed offset.",
        "KIP-848, Offset Commit",
    ),
    Invariant(
        "commits-go-on",
        "With auto-commit and polls, processed offsets are committed one interval later, and not sooner.",
        "KIP-848, Committing Offsets; enable.auto.commit",
    ),
    Invariant(
        "commits-end",
        "An application's commit ends within default.api.timeout.ms, with the result of its last attempt.",
        "KAFKA-10489; Kafka's consumer, commitSync",
    ),
    Invariant(
        "errors-raised",
        "A poll raises what a callback raised before the next one runs, and no error without a reason.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "poll-timeouts",
        "A member leaves when max.poll.interval.ms passes without a poll, and not earlier.",
        "KIP-62; KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "partitions-read",
        "While its application polls, a member returns records of every partition that it owns.",
        "Kafka's consumer, poll",
    ),
    Invariant(
        "at-least-once",
        "No record is skipped, neither between two owners nor by one.",
        "KIP-848, Offset Commit",
    ),
    # The end.
    Invariant(
        "progress",
        "Once faults end, every member is STABLE at the group epoch and owns its target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant("quiet", "Once the group has settled, nothing changes it again.", "KAFKA-20145"),
    Invariant(
        "gone-members",
        "Members that left or died are removed within their session timeout.",
        "KIP-848, Member Session Management",
    ),
    # Classic groups.
    Invariant(
        "classic-generations",
        "Each round raises the generation by one. The recorded generation never falls.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-assignment",
        "A leader assigns no partition twice, and none that another member owns. A sticky leader moves few.",
        "KIP-429",
    ),
    Invariant(
        "classic-answers",
        "Each request of a classic member is accepted, or refused with the one right error.",
        "KIP-345; Kafka's group membership protocol",
    ),
    Invariant(
        "classic-record",
        "The record of a Stable or Empty group matches its state.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-joins",
        "A member joins (again) for a reason, with its id and what it owns: nothing if it is eager.",
        "KIP-429",
    ),
    Invariant(
        "classic-rounds",
        "A round ends when all members have joined or its time is over: not earlier, not later.",
        "Kafka's group membership protocol; KIP-134",
    ),
    Invariant(
        "classic-joined",
        "Joined members get one generation, one leader, and the common protocol that most prefer.",
        "Kafka's group membership protocol; KIP-814",
    ),
    Invariant(
        "classic-synced",
        "Each member gets the assignment that its leader sent, once the log has it.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-members",
        "A member is removed only if it leaves, or misses its session, join or sync timeout.",
        "KIP-62, KIP-345, KIP-394",
    ),
    Invariant(
        "classic-migrates",
        "A group is upgraded by its first KIP-848 member, and downgraded when the last one leaves.",
        "KIP-848, Migration",
    ),
    # Single active consumers.
    Invariant(
        "sac-one-active",
        "The coordinator never has two consumers of a group that are active or may be active.",
        "RabbitMQ's stream coordinator, noconnection management",
    ),
    Invariant(
        "sac-exclusive",
        "A consumer becomes active only after the last one released, or the protocol gave it up.",
        "RabbitMQ's stream coordinator, SAC with Super Stream Partition",
    ),
    Invariant(
        "sac-stale-node",
        "Consumers of a node that left the cluster leave their groups by the next tick.",
        "RabbitMQ's stream coordinator, Stale Node Detection",
    ),
    Invariant(
        "sac-settled",
        "Once faults end, each group has one active consumer, the right one, and it knows.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-cause",
        "A consumer's state changes for the causes in its table, and for no others.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-choice",
        "A group that can choose has the right active consumer at once.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-told",
        "Each activation and each step-down is sent once, to the right consumer only.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-watched",
        "The coordinator monitors connections with consumers and their nodes, and asks returned nodes.",
        "RabbitMQ's stream coordinator, monitors",
    ),
    Invariant(
        "sac-replies",
        "The response to a command matches the group. A refused command has a reason and no effect.",
        "RabbitMQ's stream coordinator, commands",
    ),
    Invariant(
        "sac-derived",
        "What is stored of connections, nodes and timers matches the groups.",
        "RabbitMQ's stream coordinator, its index of connections",
    ),
    Invariant(
        "sac-timeout",
        "A lost connection is forgotten at the disconnected timeout: not earlier, not later.",
        "RabbitMQ's stream coordinator, noconnection management",
    ),
    Invariant(
        "sac-unblocked",
        "A group with a connected consumer has an active one again within the protocol's timeouts.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-callbacks",
        "The application is notified of each activation, step-down and loss, one at a time.",
        "RabbitMQ's stream protocol, ConsumerUpdate",
    ),
    Invariant(
        "sac-answers",
        "A consumer responds to each update once, in order, and only when the response is true.",
        "RabbitMQ's stream protocol, ConsumerUpdate",
    ),
    Invariant(
        "sac-records",
        "An active consumer continues after the stored offset and gets every message, in order, soon.",
        "RabbitMQ's stream protocol, ConsumerUpdate, Credit",
    ),
    Invariant(
        "sac-prompt",
        "A consumer connects, retries and closes on time, and gives up nothing without a reason.",
        "RabbitMQ's stream protocol; KIP-580",
    ),
    *STREAMS_INVARIANTS,
)

INVARIANTS: Final[Mapping[str, Invariant]] = {invariant.name: invariant for invariant in _ALL}


NOT_ON_REAL: Final = frozenset(name for name, invariant in INVARIANTS.items() if not invariant.on_real.judged)
"""The invariants by which real brokers are not judged."""
