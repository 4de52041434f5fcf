"""Every invariant by its short name: what it says, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fencepost.simulation.checkers.judgements import RealJudgement, judgement_of


class Invariant(msgspec.Struct, frozen=True):
    """Something that must hold after every event (or, for `progress` and its like, at the end)."""

    name: str
    summary: str
    source: str
    """A section of KIP-848, or the defect that taught it."""

    @property
    def on_real(self) -> RealJudgement:
        """Whether and how a real broker and its members are judged by it."""
        return judgement_of(self.name)


_ALL: Final = (
    # The coordinator's state.
    Invariant(
        "one-owner",
        "No partition is assigned to, or still to be revoked from, two members.",
        "KIP-848, Reconciliation of the group; KAFKA-16147",
    ),
    Invariant(
        "owners-map",
        "The coordinator's map of holders is exactly what its members hold.",
        "KAFKA-16147, KAFKA-19862",
    ),
    Invariant(
        "epochs-monotone",
        "Group and target epochs never fall; a member's falls only to -2.",
        "KIP-848, Group Epoch, Member Epoch",
    ),
    Invariant(
        "epoch-caused",
        "The group epoch is raised by one for a change of what targets depend on, and for nothing else.",
        "KIP-848, Group Epoch, Static Membership",
    ),
    Invariant(
        "subscription-raises-epoch",
        "A member that gives other names, or gives up its pattern, raises the group epoch.",
        "KIP-848, Group Epoch; KAFKA-19899",
    ),
    Invariant(
        "epochs-ordered",
        "Member epoch <= target epoch <= group epoch; the previous epoch <= the member's.",
        "KIP-848, Assignment Epoch",
    ),
    Invariant(
        "revocation-state",
        "A member is UNREVOKED exactly while partitions wait for its release.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "revocation-frozen",
        "While UNREVOKED the epoch stays; unacknowledged partitions stay pending.",
        "KAFKA-16249, KAFKA-19974",
    ),
    Invariant(
        "revocation-bounded",
        "Nobody stays UNREVOKED beyond its rebalance timeout.",
        "KIP-848, Rebalance Timeout",
    ),
    Invariant(
        "stable-owns-target",
        "A member that reaches STABLE is assigned its whole target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "unreleased-waits",
        "An UNRELEASED member waits for a partition that somebody else holds.",
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
        "No owner of a topic has two partitions more than another subscriber; range keeps its ranges.",
        "KIP-848, Assignors",
    ),
    Invariant(
        "target-sticky",
        "The uniform assignor takes a partition from a member only for the sake of balance.",
        "KIP-848, Assignors",
    ),
    Invariant(
        "target-due",
        "A target is for the newest epoch, made with the first heartbeat after the assignment interval.",
        "KIP-848, Target Assignment; KIP-1263",
    ),
    Invariant(
        "static-bijection", "Instance ids and static members name each other, one to one.", "KAFKA-20747"
    ),
    Invariant(
        "timers-armed",
        "Members have session timers, UNREVOKED ones a rebalance timer of their epoch, rounds theirs.",
        "KIP-848, Member Session Management",
    ),
    Invariant(
        "members-kept",
        "A member is removed when it leaves, or when its session or rebalance timeout has passed.",
        "KIP-848, Member Session Management, Rebalance Timeout",
    ),
    Invariant(
        "empty-group",
        "An empty group has no holders, targets or resolved expressions.",
        "KIP-848, Group Epoch",
    ),
    Invariant(
        "metadata-hash",
        "The stored digest of topics is that of the image when the epoch is raised.",
        "KIP-1101",
    ),
    Invariant(
        "regexes-subscribed",
        "Resolved regular expressions are ones that members subscribe to.",
        "KIP-848, Regular Expressions",
    ),
    Invariant(
        "expressions-resolved",
        "Expressions are resolved to the topics that match, in time, and not more often than they may be.",
        "KIP-848, Regular Expressions",
    ),
    Invariant(
        "bounded-memory",
        "Nothing is kept of members that went; maps and timers are no larger than the group.",
        "KAFKA-20601",
    ),
    # Requests and replies.
    Invariant(
        "reply-equals-state",
        "A reply tells the stored epoch and exactly the assigned partitions.",
        "KIP-848, ConsumerGroupHeartbeat; KAFKA-16367",
    ),
    Invariant(
        "assignment-present",
        "Joins, full heartbeats and changes are answered with the assignment.",
        "KAFKA-16367",
    ),
    Invariant(
        "granted-after-release",
        "A partition is told to a member only when nobody else holds it.",
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
        "A heartbeat takes its member as far towards the target as other members allow.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "commit-fenced",
        "A commit or fetch by a removed or stale member is refused, any other is not.",
        "KIP-848, Offset Commit; KIP-1251",
    ),
    Invariant(
        "offsets-advance",
        "A member never commits an offset before one that it has committed already.",
        "KIP-848, Offset Commit",
    ),
    Invariant(
        "commit-recorded",
        "What is accepted of a commit is on record as it was sent, at the time of the commit.",
        "KIP-848, Offset Commit",
    ),
    Invariant("offsets-kept", "No committed offset of a subscribed topic disappears.", "KIP-848, Offsets"),
    Invariant(
        "fetch-equals-commit", "An offset fetch answers what was committed last.", "KIP-848, OffsetFetch"
    ),
    Invariant(
        "told-equals-state",
        "Lists and descriptions tell each group, its epochs, members and partitions as they are.",
        "KIP-848, ConsumerGroupDescribe, ListGroups; KAFKA-20431",
    ),
    Invariant(
        "admin-changes",
        "Requests of administrators remove exactly what they name, or are refused with the right error.",
        "KIP-848, DeleteGroups, OffsetDelete; KIP-345",
    ),
    # Transactions.
    Invariant(
        "transaction-offsets",
        "Exactly the staged offsets of a committed transaction count, once; of an aborted one none does.",
        "KIP-98, KIP-447",
    ),
    Invariant(
        "transaction-staged",
        "Staged offsets stay until their transaction ends: nothing expires, and a failover loses none.",
        "KIP-447, KIP-98",
    ),
    Invariant(
        "transaction-stable-fetch",
        "A fetch of stable offsets names exactly those that an open transaction may change.",
        "KIP-447",
    ),
    Invariant(
        "transaction-fenced",
        "A producer that was replaced is refused, with the one right error; the newest one is not.",
        "KIP-98, KIP-360, KIP-890",
    ),
    Invariant(
        "transaction-epochs",
        "No two producers get the same id and epoch, and epochs never fall.",
        "KIP-360, KIP-890",
    ),
    Invariant(
        "transaction-decided",
        "A transaction commits only if its producer asks; what is decided reaches its group, and stays.",
        "KIP-98, Transaction Coordinator",
    ),
    Invariant(
        "transaction-ends",
        "A transaction is aborted after its timeout, not before, and leaves nothing staged.",
        "KIP-98, Transaction Timeout",
    ),
    Invariant(
        "exactly-once",
        "Over all committed transactions each record counts once: none twice, and none is skipped.",
        "KIP-129, KIP-447",
    ),
    # The journal.
    Invariant(
        "journal-replay",
        "The journal, encoded and decoded, replays to the live state; compacted too.",
        "KIP-848, Records; KAFKA-17306, KAFKA-19862",
    ),
    Invariant(
        "journal-batches",
        "An outcome is one batch; a member's tombstones come in the order 8, 7, 5.",
        "KIP-848, Records",
    ),
    # The members.
    Invariant(
        "one-claimant",
        "No two members that the coordinator has not fenced believe they own one partition.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "transitions", "Every move of a member machine is an arrow of its table.", "KIP-848, Client States"
    ),
    Invariant(
        "one-in-flight",
        "One heartbeat at a time, and none outside of a membership.",
        "KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "frees-own-instance",
        "A static member does not give up because of an instance id that it holds itself: it frees the id.",
        "KIP-848, Static Membership; Kafka 4.3 refuses the join of a member that it still has",
    ),
    Invariant(
        "request-fields",
        "Joins, and heartbeats after a failure, carry everything.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "owned-honest",
        "A heartbeat lists exactly the partitions between assigned and revoked callbacks.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "epoch-as-answered",
        "Heartbeats and commits carry the newest epoch that was received.",
        "KIP-848, Member Epoch; KAFKA-19335",
    ),
    Invariant(
        "heartbeats-go-on",
        "Heartbeats do not wait for callbacks, and stop when polls do.",
        "KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "callbacks-balanced",
        "Each assigned partition is let go exactly once; callbacks never overlap.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "records-while-owned",
        "Records come only between a partition's assigned end and its revoked begin.",
        "KAFKA-20332",
    ),
    Invariant(
        "commit-while-owned", "A member commits only partitions that it has not let go.", "KAFKA-18641"
    ),
    Invariant(
        "commit-before-release",
        "What was processed is committed before a partition is let go.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "commit-within-processed",
        "A committed offset is never ahead of what its member processed.",
        "KAFKA-18641",
    ),
    Invariant(
        "retries-back-off",
        "A member whose requests fail waits longer and longer before it tries again.",
        "KIP-580; KAFKA-19813, KAFKA-20253",
    ),
    Invariant(
        "searches-anew",
        "A member that asked a broker which is not the coordinator looks for it before it sends anything.",
        "Kafka's group protocol, FindCoordinator",
    ),
    Invariant(
        "subscription-told",
        "Once faults end the coordinator has each subscription as its application has it.",
        "KIP-848, ConsumerGroupHeartbeat",
    ),
    Invariant(
        "leaves-told",
        "A member that closes, unsubscribes or does not poll tells its coordinator that it leaves.",
        "KIP-848, Member Epoch; KIP-1092",
    ),
    Invariant(
        "fenced-returns",
        "A member that was fenced joins again as soon as its on_lost callback has ended.",
        "KIP-848, Client States",
    ),
    Invariant(
        "gives-up-rightly",
        "A member stops for good only after an error that neither a retry nor a join mends.",
        "KIP-848, Client States",
    ),
    Invariant(
        "reconciles-on",
        "A member whose application polls does not stop on its way to its target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant(
        "starts-at-committed",
        "A new owner of a partition reads on at the committed offset.",
        "KIP-848, Offset Commit",
    ),
    Invariant(
        "commits-go-on",
        "With auto-commit what is processed is committed an interval later, if the member polls.",
        "KIP-848, Committing Offsets; enable.auto.commit",
    ),
    Invariant(
        "commits-end",
        "A commit that an application waits for ends within default.api.timeout.ms.",
        "KAFKA-10489; Kafka's consumer, commitSync",
    ),
    Invariant(
        "errors-raised",
        "That a callback raised is raised by a poll of its application.",
        "KIP-848, Rebalance Listener",
    ),
    Invariant(
        "poll-timeouts",
        "A member leaves for want of polls once max.poll.interval.ms is over, and not before.",
        "KIP-62; KIP-848, Consumer Heartbeats",
    ),
    Invariant(
        "partitions-read",
        "While its application polls, a member hands over records of all that it owns.",
        "Kafka's consumer, poll",
    ),
    Invariant(
        "at-least-once", "No record is skipped between two owners, or by one.", "KIP-848, Offset Commit"
    ),
    # The end.
    Invariant(
        "progress",
        "Once faults end every member is STABLE at the group's epoch and owns its target.",
        "KIP-848, Reconciliation of the group",
    ),
    Invariant("quiet", "Once the group has settled nothing moves it again.", "KAFKA-20145"),
    Invariant(
        "gone-members",
        "Members that left or died are removed within their session timeout.",
        "KIP-848, Member Session Management",
    ),
    # Classic groups.
    Invariant(
        "classic-generations",
        "Each round raises the generation by one; what is on record of it never falls.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-assignment",
        "A leader gives no partition to two members, and none away that another says it has.",
        "KIP-429",
    ),
    Invariant(
        "classic-answers",
        "Each request of a classic member is refused with the one right error, or accepted.",
        "KIP-345; Kafka's group membership protocol",
    ),
    Invariant(
        "classic-record",
        "A group that is Stable or Empty is what its record says.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-joins",
        "A member joins with exactly what it owns: with nothing if its assignor is eager.",
        "KIP-429",
    ),
    Invariant(
        "classic-rounds",
        "A round ends when all members have joined or its time is over, neither before nor later.",
        "Kafka's group membership protocol; KIP-134",
    ),
    Invariant(
        "classic-joined",
        "Members that joined get one generation, one leader, and a protocol that all offer and most prefer.",
        "Kafka's group membership protocol; KIP-814",
    ),
    Invariant(
        "classic-synced",
        "Each member of a generation gets the assignment that its leader sent, once the log has it.",
        "Kafka's group membership protocol",
    ),
    Invariant(
        "classic-members",
        "A member is removed only if it leaves, or if its session or its time to join or sync is over.",
        "KIP-62, KIP-345, KIP-394",
    ),
    Invariant(
        "classic-migrates",
        "A group changes its protocol with the first member of the newer one, and back with the last.",
        "KIP-848, Migration",
    ),
    # Single active consumers.
    Invariant(
        "sac-one-active",
        "A group never has two consumers that are active, or may be, in the coordinator's eyes.",
        "RabbitMQ's stream coordinator, noconnection management",
    ),
    Invariant(
        "sac-exclusive",
        "Nobody becomes active before the one before has let go, or was given up as the protocol has it.",
        "RabbitMQ's stream coordinator, SAC with Super Stream Partition",
    ),
    Invariant(
        "sac-stale-node",
        "No consumer of a node that left the cluster stays in a group beyond the next tick.",
        "RabbitMQ's stream coordinator, Stale Node Detection",
    ),
    Invariant(
        "sac-settled",
        "Once faults end each group has one active consumer, the right one, and it knows.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-cause",
        "A consumer's state changes only by what can change it, and then it does.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-choice",
        "A group that can choose has an active consumer at once, and the right one.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-told",
        "Whoever becomes active, or is to step down, is told so once, and nobody else is told anything.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-watched",
        "Connections with consumers, and their nodes, are watched, and asked when their node is back.",
        "RabbitMQ's stream coordinator, monitors",
    ),
    Invariant(
        "sac-replies",
        "A command is answered by what the group is; one that is refused has a reason, and changes nothing.",
        "RabbitMQ's stream coordinator, commands",
    ),
    Invariant(
        "sac-derived",
        "What is kept of connections, nodes and timers is what the groups say of them.",
        "RabbitMQ's stream coordinator, its index of connections",
    ),
    Invariant(
        "sac-timeout",
        "A lost connection is forgotten after the disconnected timeout, neither before nor later.",
        "RabbitMQ's stream coordinator, noconnection management",
    ),
    Invariant(
        "sac-unblocked",
        "No group with a connected consumer is without an active one beyond the timeouts that there are.",
        "RabbitMQ's stream coordinator, Single Active Consumer",
    ),
    Invariant(
        "sac-callbacks",
        "An application is told of each activation, step-down and loss, one at a time.",
        "RabbitMQ's stream protocol, ConsumerUpdate",
    ),
    Invariant(
        "sac-answers",
        "Each update is answered once, in its order, and only when it is so.",
        "RabbitMQ's stream protocol, ConsumerUpdate",
    ),
    Invariant(
        "sac-records",
        "An active consumer goes on behind the stored offset, and gets every message, in order and soon.",
        "RabbitMQ's stream protocol, ConsumerUpdate, Credit",
    ),
    Invariant(
        "sac-prompt",
        "A consumer connects, calls back and closes in its time, and gives nothing up without a reason.",
        "RabbitMQ's stream protocol; KIP-580",
    ),
    # Streams applications.
    Invariant(
        "streams-transitions",
        "Threads and clients move along their tables; what they refuse is refused there.",
        "KIP-457, KIP-696",
    ),
    Invariant(
        "streams-terminal",
        "ERROR and NOT_RUNNING are left never, and come after their PENDING states.",
        "KIP-696",
    ),
    Invariant(
        "streams-closed",
        "At its end a client's threads are dead, its services stopped, nothing is locked.",
        "KIP-671, KIP-696",
    ),
    Invariant(
        "streams-error-cause",
        "PENDING_ERROR follows an answer of the handler, or what the group has said.",
        "KIP-696",
    ),
    Invariant(
        "streams-error-due",
        "A client whose handler answered SHUTDOWN_CLIENT, or failed, shuts down.",
        "KIP-671",
    ),
    Invariant(
        "streams-live-threads",
        "As many threads live as were started, added and replaced, less those removed.",
        "KIP-671, KIP-663",
    ),
    Invariant(
        "streams-dead-left",
        "A thread that is dead has closed its member.",
        "KAFKA-12738",
    ),
    Invariant(
        "streams-derived",
        "The client's state is what its threads' states make it.",
        "KIP-457; KAFKA-14717",
    ),
    Invariant(
        "streams-reconnects",
        "A thread that is connected again goes back to where it was.",
        "KIP-457",
    ),
    Invariant(
        "streams-listener",
        "The listener hears every step of the client, in its order.",
        "KAFKA-16955, KAFKA-6621",
    ),
    Invariant(
        "streams-shutdown-cause",
        "The group tells nobody to shut down unless a handler asked for it.",
        "KIP-1071, Status",
    ),
    Invariant(
        "streams-shutdown-reaches",
        "A shutdown brings every client that can be reached to ERROR in time.",
        "KIP-671",
    ),
    Invariant(
        "streams-at-least-once",
        "No record is skipped, and no offset committed before its record is processed.",
        "KAFKA-15429",
    ),
    Invariant(
        "streams-settles",
        "Once faults end clients run, and the group has exactly their threads as members.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-one-owner",
        "No active task is assigned to, or still to be given up by, two members.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-reconciles",
        "A member gets what is free of its target, and gives up the rest first.",
        "KIP-1071, Reconciliation",
    ),
    Invariant(
        "streams-epochs",
        "The group epoch is raised once for each cause and for nothing else; a member's never falls.",
        "KIP-1071, Group Epoch",
    ),
    Invariant(
        "streams-target",
        "A target has each task active once, and nobody with more than its share.",
        "KIP-1071, Assignors",
    ),
    Invariant(
        "streams-sticky",
        "A member keeps its tasks up to its share; nothing moves where nothing changed.",
        "KIP-1071, Assignors",
    ),
    Invariant(
        "streams-standby",
        "Each task with state stands by in as many other processes as configured, or as there are.",
        "KIP-1071, Assignors; KAFKA-20899",
    ),
    Invariant(
        "streams-topics",
        "Internal topics that are missing are created, all of them and no others.",
        "KIP-1071, Topology Configuration",
    ),
    Invariant(
        "streams-answers",
        "A heartbeat is accepted, or refused with the one right error, and then changes nothing.",
        "KIP-1071, Heartbeat; KAFKA-19233",
    ),
    Invariant(
        "streams-replies",
        "A reply tells the stored epoch, the tasks when they changed, and what holds of the group.",
        "KIP-1071, Heartbeat",
    ),
    Invariant(
        "streams-sessions",
        "A member is removed when it leaves or its time is over, neither before nor later.",
        "KIP-1071, Member Session Management",
    ),
    Invariant(
        "streams-delays",
        "The first target waits for the initial delay, the next ones for the interval, and no longer.",
        "KIP-1071, Initial Rebalance Delay; KIP-1263",
    ),
    Invariant(
        "streams-bookkeeping",
        "What is kept of members, their timers and their tasks' processes is what the group says.",
        "KIP-1071; KAFKA-19862",
    ),
    Invariant(
        "streams-commits",
        "A member commits at its epoch, or for tasks that it has had since; it fetches what was committed.",
        "KIP-1071, Offset Commit; KIP-1251",
    ),
    Invariant(
        "streams-endpoints",
        "The map of endpoints tells what each process has, and comes to whoever has an older one.",
        "KIP-1071, Interactive Queries",
    ),
)

INVARIANTS: Final[Mapping[str, Invariant]] = {invariant.name: invariant for invariant in _ALL}


NOT_ON_REAL: Final = frozenset(name for name, invariant in INVARIANTS.items() if not invariant.on_real.judged)
"""What real brokers are not judged by."""
