"""Every invariant by its short name: what must hold, by which source, and what differs on real brokers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec


class Invariant(msgspec.Struct, frozen=True):
    """A rule that must hold after every event (or, for `progress` and its like, at the end)."""

    name: str
    source: str
    """A section of KIP-848, or the defect from which it was learned."""
    summary: str
    judged_on_real: bool
    """False if real brokers and their members, which are observed through their journal, are not judged."""
    on_real: str
    """The difference of their judgement from a simulated run, or the reason why there is none."""


_ROW: Final = re.compile(r"^([a-z\d-]+) \((.+)\)\n {4}(.+)\n(?: {4}([+-]) (.+)\n)?", re.MULTILINE)
_ROWS: Final = """\
# The coordinator's state
one-owner (KIP-848, Reconciliation of the group; KAFKA-16147)
    No partition is assigned to, or still to be revoked from, two members.
owners-map (KAFKA-16147, KAFKA-19862)
    The coordinator's map of partition owners lists exactly what its members hold.
    + The map of owners is derived from the journal.
epochs-monotone (KIP-848, Group Epoch, Member Epoch)
    Group and target epochs never fall. A member epoch falls only to -2.
epoch-caused (KIP-848, Group Epoch, Static Membership)
    The group epoch rises by one for each change that affects targets, and for nothing else.
    + Only that there is a cause. Several changes may appear as one.
subscription-raises-epoch (KIP-848, Group Epoch; KAFKA-19899)
    A member that changes its topic names or drops its pattern raises the group epoch.
epochs-ordered (KIP-848, Assignment Epoch)
    Member epoch <= target epoch <= group epoch, and previous member epoch <= member epoch.
revocation-state (KIP-848, Reconciliation of the group)
    A member is UNREVOKED exactly while partitions wait for it to release them.
revocation-frozen (KAFKA-16249, KAFKA-19974)
    While a member is UNREVOKED its epoch is fixed and unacknowledged partitions stay pending.
    + Only that the epoch is fixed. The journal has no acknowledgements.
revocation-bounded (KIP-848, Rebalance Timeout)
    No member stays UNREVOKED longer than its rebalance timeout.
    + With five seconds of tolerance, because a broker's timers are not exact.
stable-owns-target (KIP-848, Reconciliation of the group)
    A member that reaches STABLE is assigned its whole target.
unreleased-waits (KAFKA-19449)
    An UNRELEASED member waits for a partition that another member holds.
    + After each outcome that can be separated from the next one in its batch.
assigned-in-target (KAFKA-19431)
    A reconciled member is assigned only partitions of its target and subscription.
    + Except for topics that changed within the last second.
assignment-epochs (KIP-1251)
    Each held partition has an assignment epoch between 0 and the member's epoch.
target-exclusive (KIP-848, Assignors)
    No partition is in the targets of two members.
target-covers (KIP-848, Assignors)
    A new target gives each existing subscribed partition to one of its subscribers.
    + Except for topics that changed within the last second.
target-balanced (KIP-848, Assignors)
    No topic's owner has two partitions more than another subscriber. Range assigns ranges.
    + Ranges, except for topics that changed within the last second.
target-sticky (KIP-848, Assignors)
    The uniform assignor takes a partition from a member only to restore the balance.
    + Except for topics that changed within the last second.
target-due (KIP-848, Target Assignment; KIP-1263)
    A target is for the newest epoch, from the first heartbeat after the assignment interval.
    - An assignor that runs in the background may be late.
static-bijection (KAFKA-20747)
    Instance ids and static members map to each other one to one.
timers-armed (KIP-848, Member Session Management)
    Each member has a session timer, each revocation a rebalance timer, each round its timer.
    - The journal has no timers.
members-kept (KIP-848, Member Session Management, Rebalance Timeout)
    A member is removed only if it leaves, or if its session or rebalance timeout expires.
    - The journal does not say when a member sent its last heartbeat.
empty-group (KIP-848, Group Epoch)
    An empty group has no partition owners, targets or resolved expressions.
metadata-hash (KIP-1101)
    The stored topic digest matches the topics at the time the group epoch was raised.
    - Kafka uses a digest of its own (XXH3), private to its journal.
regexes-subscribed (KIP-848, Regular Expressions)
    The group keeps resolved regular expressions only if a member subscribes to them.
expressions-resolved (KIP-848, Regular Expressions)
    Each expression resolves to the matching topics, on time, and not too often.
    - The journal has no requests.
bounded-memory (KAFKA-20601)
    The coordinator keeps nothing of former members. Maps and timers match the group's size.
    + Only what the journal keeps of members. It has no timers or last-contact times.

# Requests and replies
reply-equals-state (KIP-848, ConsumerGroupHeartbeat; KAFKA-16367)
    A response carries the stored epoch and exactly the assigned partitions.
    + For responses that members report: the journal has their epoch and partitions.
assignment-present (KAFKA-16367)
    The response to a join, a full heartbeat or a change carries the assignment, and no other does.
    - The journal has no requests.
granted-after-release (KIP-848, Reconciliation of the group)
    A response grants a partition only if no other member holds it.
    - A response carries what is in the journal, and `one-owner` judges that.
failed-changes-nothing (KIP-848, ConsumerGroupHeartbeat)
    A request that fails writes no record and changes no session.
    - The journal has no requests.
heartbeat-answers (KIP-848, Member Epoch; KAFKA-19233)
    A heartbeat is accepted, or refused with the one right error, by its epoch.
    - The journal has no requests.
heartbeat-reconciles (KIP-848, Reconciliation of the group)
    A heartbeat moves its member as close to the target as other members allow.
    - The journal has no requests.
commit-fenced (KIP-848, Offset Commit; KIP-1251)
    A commit or fetch is refused if its member was removed or is stale, and only then.
    - The journal has no requests.
offsets-advance (KIP-848, Offset Commit)
    A member never commits an offset below one that it already committed.
    - The journal does not say which member committed.
heartbeat-recorded (KIP-848, ConsumerGroupHeartbeat)
    The coordinator keeps what a member last said about itself, and nothing else.
    - The journal has no requests.
commit-recorded (KIP-848, Offset Commit)
    The record of a commit has the offset as sent and the time of the commit.
    - The journal has no requests.
offsets-kept (KIP-848, Offsets)
    Offsets of a subscribed topic stay. Those of a deleted topic go, staged ones too.
    + Except while topics change.
fetch-equals-commit (KIP-848, OffsetFetch)
    OffsetFetch returns the offset that was committed last.
    - The journal has no requests.
told-equals-state (KIP-848, ConsumerGroupDescribe, ListGroups; KAFKA-20431)
    Lists and descriptions show each group's epochs, members and partitions as they are.
    - The journal has no requests.
admin-changes (KIP-848, DeleteGroups, OffsetDelete; KIP-345)
    An admin request removes exactly what it names, or gets the right error.
    - The journal has no requests.

# Transactions
transaction-offsets (KIP-98, KIP-447)
    Offsets of a committed transaction count exactly once. Offsets of an aborted one do not count.
    - Members of a real run have no transactional producers.
transaction-staged (KIP-447, KIP-98)
    Staged offsets stay until their transaction ends. They do not expire or get lost in a failover.
    - Members of a real run have no transactional producers.
transaction-stable-fetch (KIP-447)
    A stable fetch marks exactly the offsets that an open transaction may change.
    - Members of a real run have no transactional producers.
transaction-fenced (KIP-98, KIP-360, KIP-890)
    A replaced producer is refused with the right error. The newest producer is not refused.
    - Members of a real run have no transactional producers.
transaction-epochs (KIP-360, KIP-890)
    No two producers get the same id and epoch, and producer epochs never fall.
    - Members of a real run have no transactional producers.
transaction-decided (KIP-98, Transaction Coordinator)
    A transaction commits only if its producer asks. The decision reaches the group and is final.
    - Members of a real run have no transactional producers.
transaction-ends (KIP-98, Transaction Timeout)
    A transaction is aborted at its timeout, not earlier, and leaves no staged offsets.
    - Members of a real run have no transactional producers.
exactly-once (KIP-129, KIP-447)
    Each record counts exactly once over all committed transactions.
    - Members of a real run have no transactional producers.

# The journal
journal-replay (KIP-848, Records; KAFKA-17306, KAFKA-19862)
    The journal replays to the live state, after encoding and decoding and after compaction.
    + Only that each record can follow the records before it.
journal-batches (KIP-848, Records)
    Each outcome is one batch. A member's tombstones have the record types 8, 7, 5 in this order.

# The members
one-claimant (KIP-848, Reconciliation of the group)
    No two members that the coordinator has not fenced believe that they own one partition.
transitions (KIP-848, Client States)
    Every move of a member machine is an arrow of its table.
    + For groups after each outcome, and for fencepost's own members.
one-in-flight (KIP-848, Consumer Heartbeats)
    A member has at most one heartbeat in flight, and sends none outside a group.
    + Only for fencepost's own members. Other clients do not report it.
frees-own-instance (KIP-848, Static Membership; Kafka 4.3 refuses the join of a member that it still has)
    A static member whose own earlier join holds its instance id frees the id and continues.
    + Only for fencepost's own members. Other clients do not report it.
request-fields (KIP-848, ConsumerGroupHeartbeat)
    Joins, and heartbeats after a failure, carry all fields; others only what changed.
    + Only for fencepost's own members. Other clients do not report it.
owned-honest (KIP-848, ConsumerGroupHeartbeat)
    Heartbeats list what callbacks assigned and did not revoke. Applications see the same.
    + Only for fencepost's own members. Other clients do not report it.
epoch-as-answered (KIP-848, Member Epoch; KAFKA-19335)
    Heartbeats and commits carry the newest epoch that the member received.
    + Only for fencepost's own members. Other clients do not report it.
heartbeats-go-on (KIP-848, Consumer Heartbeats)
    Heartbeats go on in callbacks, acknowledge at once, and stop when the application stops polling.
    - A busy machine may delay a process, which is not the process's fault.
callbacks-balanced (KIP-848, Rebalance Listener)
    Each assigned partition is released exactly once, and callbacks never overlap.
records-while-owned (KAFKA-20332)
    The application gets a partition's records only between its assigned and revoked callbacks.
commit-while-owned (KAFKA-18641)
    A member commits only partitions that it has not released, with offsets, and none after a fatal error.
commit-before-release (KIP-848, Rebalance Listener)
    A member commits what it processed before it releases a partition, awaits the response and retries.
commit-within-processed (KAFKA-18641)
    A committed offset is never ahead of what its member processed.
retries-back-off (KIP-580; KAFKA-19813, KAFKA-20253)
    A member whose requests fail waits longer before each retry, and asks for metadata rarely.
    + Only for fencepost's own members. Other clients do not report it.
searches-anew (Kafka's group protocol, FindCoordinator)
    A member whose coordinator moved, or is silent, looks for it before it sends anything else.
    - The journal does not say when a member looks for its coordinator.
subscription-told (KIP-848, ConsumerGroupHeartbeat)
    Once faults end, the coordinator has each member's current subscription.
    - The journal does not say what applications last subscribed to.
leaves-told (KIP-848, Member Epoch; KIP-1092)
    A member that leaves or stops polling sends a leave and awaits it. It does not join once closed.
    + Only for fencepost's own members. Other clients do not report it.
fenced-returns (KIP-848, Client States)
    A fenced member joins again as soon as its on_lost callback has returned.
    - A busy machine may delay a process, which is not the process's fault.
gives-up-rightly (KIP-848, Client States)
    A member gives up after an error that neither a retry nor a new join fixes, and only then.
    + Only for fencepost's own members. Other clients do not report it.
reconciles-on (KIP-848, Reconciliation of the group)
    A member whose application polls keeps moving to its target.
    - The journal does not say when applications poll.
starts-at-committed (KIP-848, Offset Commit)
    A new owner of a partition starts at the committed offset.
    - The journal does not say when a member fetched offsets.
commits-go-on (KIP-848, Committing Offsets; enable.auto.commit)
    With auto-commit and polls, processed offsets are committed one interval later, and not sooner.
    - The journal does not say when applications poll.
commits-end (KAFKA-10489; Kafka's consumer, commitSync)
    An application's commit ends within default.api.timeout.ms, with the result of its last attempt.
    - The journal does not say when applications poll.
errors-raised (KIP-848, Rebalance Listener)
    A poll raises what a callback raised before the next one runs, and no error without a reason.
    - The journal does not say when applications poll.
poll-timeouts (KIP-62; KIP-848, Consumer Heartbeats)
    A member leaves when max.poll.interval.ms passes without a poll, and not earlier.
    - The journal does not say when applications poll.
partitions-read (Kafka's consumer, poll)
    While its application polls, a member returns records of every partition that it owns.
    - The journal does not say when applications poll.
at-least-once (KIP-848, Offset Commit)
    No record is skipped, neither between two owners nor by one.

# The end
progress (KIP-848, Reconciliation of the group)
    Once faults end, every member is STABLE at the group epoch and owns its target.
quiet (KAFKA-20145)
    Once the group has settled, nothing changes it again.
gone-members (KIP-848, Member Session Management)
    Members that left or died are removed within their session timeout.
    + Only at the end of a run. The journal does not say when a member sent its last heartbeat.

# Classic groups
classic-generations (Kafka's group membership protocol)
    Each round raises the generation by one. The recorded generation never falls.
    + For recorded generations.
classic-assignment (KIP-429)
    A leader assigns no partition twice, and none that another member owns. A sticky leader moves few.
    + For recorded assignments.
classic-answers (KIP-345; Kafka's group membership protocol)
    Each request of a classic member is accepted, or refused with the one right error.
    - The journal has no requests.
classic-record (Kafka's group membership protocol)
    The record of a Stable or Empty group matches its state.
    - The journal has no requests.
classic-joins (KIP-429)
    A member joins (again) for a reason, with its id and what it owns: nothing if it is eager.
    + Only for fencepost's own members. Other clients do not report it.
classic-rounds (Kafka's group membership protocol; KIP-134)
    A round ends when all members have joined or its time is over: not earlier, not later.
    - The journal has no requests.
classic-joined (Kafka's group membership protocol; KIP-814)
    Joined members get one generation, one leader, and the common protocol that most prefer.
    - The journal has no requests.
classic-synced (Kafka's group membership protocol)
    Each member gets the assignment that its leader sent, once the log has it.
    - The journal has no requests.
classic-members (KIP-62, KIP-345, KIP-394)
    A member is removed only if it leaves, or misses its session, join or sync timeout.
    - The journal has no requests.
classic-migrates (KIP-848, Migration)
    A group is upgraded by its first KIP-848 member, and downgraded when the last one leaves.
    - The journal has no requests.

# Single active consumers
sac-one-active (RabbitMQ's stream coordinator, noconnection management)
    The coordinator never has two consumers of a group that are active or may be active.
    - A Kafka broker has no streams with single active consumers.
sac-exclusive (RabbitMQ's stream coordinator, SAC with Super Stream Partition)
    A consumer becomes active only after the last one released, or the protocol gave it up.
    - A Kafka broker has no streams with single active consumers.
sac-stale-node (RabbitMQ's stream coordinator, Stale Node Detection)
    Consumers of a node that left the cluster leave their groups by the next tick.
    - A Kafka broker has no streams with single active consumers.
sac-settled (RabbitMQ's stream coordinator, Single Active Consumer)
    Once faults end, each group has one active consumer, the right one, and it knows.
    - A Kafka broker has no streams with single active consumers.
sac-cause (RabbitMQ's stream coordinator, Single Active Consumer)
    A consumer's state changes for the causes in its table, and for no others.
    - A Kafka broker has no streams with single active consumers.
sac-choice (RabbitMQ's stream coordinator, Single Active Consumer)
    A group that can choose has the right active consumer at once.
    - A Kafka broker has no streams with single active consumers.
sac-told (RabbitMQ's stream coordinator, Single Active Consumer)
    Each activation and each step-down is sent once, to the right consumer only.
    - A Kafka broker has no streams with single active consumers.
sac-watched (RabbitMQ's stream coordinator, monitors)
    The coordinator monitors connections with consumers and their nodes, and asks returned nodes.
    - A Kafka broker has no streams with single active consumers.
sac-replies (RabbitMQ's stream coordinator, commands)
    The response to a command matches the group. A refused command has a reason and no effect.
    - A Kafka broker has no streams with single active consumers.
sac-derived (RabbitMQ's stream coordinator, its index of connections)
    What is stored of connections, nodes and timers matches the groups.
    - A Kafka broker has no streams with single active consumers.
sac-timeout (RabbitMQ's stream coordinator, noconnection management)
    A lost connection is forgotten at the disconnected timeout: not earlier, not later.
    - A Kafka broker has no streams with single active consumers.
sac-unblocked (RabbitMQ's stream coordinator, Single Active Consumer)
    A group with a connected consumer has an active one again within the protocol's timeouts.
    - A Kafka broker has no streams with single active consumers.
sac-callbacks (RabbitMQ's stream protocol, ConsumerUpdate)
    The application is notified of each activation, step-down and loss, one at a time.
    - A Kafka broker has no streams with single active consumers.
sac-answers (RabbitMQ's stream protocol, ConsumerUpdate)
    A consumer responds to each update once, in order, and only when the response is true.
    - A Kafka broker has no streams with single active consumers.
sac-records (RabbitMQ's stream protocol, ConsumerUpdate, Credit)
    An active consumer continues after the stored offset and gets every message, in order, soon.
    - A Kafka broker has no streams with single active consumers.
sac-prompt (RabbitMQ's stream protocol; KIP-580)
    A consumer connects, retries and closes on time, and gives up nothing without a reason.
    - A Kafka broker has no streams with single active consumers.

# Streams applications and their groups
streams-transitions (KIP-457, KIP-696)
    Threads and clients move only along their tables, and ignore only the moves listed there.
streams-terminal (KIP-696)
    ERROR and NOT_RUNNING are final and follow their PENDING states.
streams-closed (KIP-671, KIP-696)
    When a client ends, its threads are dead, its services stopped and its locks released.
streams-error-cause (KIP-696)
    PENDING_ERROR follows a handler's return value or a status from the group.
streams-error-due (KIP-671)
    A client shuts down if its handler returned SHUTDOWN_CLIENT or raised.
streams-live-threads (KIP-671, KIP-663)
    The number of live threads is started plus added plus replaced minus removed.
streams-dead-left (KAFKA-12738)
    A dead thread has closed its member and the member's connections.
streams-derived (KIP-457; KAFKA-14717)
    The client's state follows from its threads' states.
streams-reconnects (KIP-457)
    A thread that is connected again returns to its earlier state.
streams-listener (KAFKA-16955, KAFKA-6621)
    The listener is called for every step of the client, in order.
streams-shutdown-cause (KIP-1071, Status)
    The group sends a shutdown status only if a handler asked for it.
streams-shutdown-reaches (KIP-671)
    A shutdown takes every reachable client to ERROR in time.
    + From the first client that the group notified.
streams-at-least-once (KAFKA-15429)
    No record is skipped, and no offset is committed before its record is processed.
streams-settles (KIP-1071, Reconciliation)
    Once faults end, clients run, and the group has exactly their threads as members.
streams-one-owner (KIP-1071, Reconciliation)
    No active task is assigned to, or still to be released by, two members.
    - A streams group on real brokers is observed only through its clients.
streams-reconciles (KIP-1071, Reconciliation)
    A member first releases tasks, then gets free ones of its target. If it missed them, it rejoins.
    - A streams group on real brokers is observed only through its clients.
streams-epochs (KIP-1071, Group Epoch)
    The group epoch rises once for each cause and nothing else. Member epochs never fall.
    - A streams group on real brokers is observed only through its clients.
streams-target (KIP-1071, Assignors)
    A target has each active task once. No member has more than its share, and no process less.
    - A streams group on real brokers is observed only through its clients.
streams-sticky (KIP-1071, Assignors)
    A member keeps its tasks up to its share. Members that stood by for a task come next.
    - A streams group on real brokers is observed only through its clients.
streams-standby (KIP-1071, Assignors; KAFKA-20899)
    Each stateful task has its standbys, in other processes, and those with the least load take them.
    - A streams group on real brokers is observed only through its clients.
streams-topics (KIP-1071, Topology Configuration)
    All missing internal topics are created, and no others.
    - A streams group on real brokers is observed only through its clients.
streams-answers (KIP-1071, Heartbeat; KAFKA-19233)
    A heartbeat is accepted, or refused with the one right error and without effect.
    - A streams group on real brokers is observed only through its clients.
streams-replies (KIP-1071, Heartbeat)
    A response carries the stored epoch, changed tasks, and the group's current statuses.
    - A streams group on real brokers is observed only through its clients.
streams-described (KIP-1071, StreamsGroupDescribe; KAFKA-19661)
    A description of a group shows its stored state. Without a group it is an error.
    - A streams group on real brokers is observed only through its clients.
streams-sessions (KIP-1071, Member Session Management)
    A member is removed when it leaves or its timeout expires: not earlier, not later.
    - A streams group on real brokers is observed only through its clients.
streams-delays (KIP-1071, Initial Rebalance Delay; KIP-1263)
    The first target waits for the initial delay, later ones for the interval, and no longer.
    - A streams group on real brokers is observed only through its clients.
streams-bookkeeping (KIP-1071; KAFKA-19862)
    Stored members, timers and task processes match the group.
    - A streams group on real brokers is observed only through its clients.
streams-commits (KIP-1071, Offset Commit; KIP-1251)
    A member commits at its epoch, or for tasks that it has kept since. It fetches the last commit.
    - A streams group on real brokers is observed only through its clients.
streams-endpoints (KIP-1071, Interactive Queries)
    The endpoint map lists what each process has, and is sent to members with an older map.
    - A streams group on real brokers is observed only through its clients.
"""
"""A row has name, source and sentence, and for real brokers what differs (+) or why it is not judged (-)."""

INVARIANTS: Final[Mapping[str, Invariant]] = {
    name: Invariant(name, source, summary, sign != "-", note)
    for name, source, summary, sign, note in _ROW.findall(_ROWS)
}


NOT_ON_REAL: Final = frozenset(name for name, each in INVARIANTS.items() if not each.judged_on_real)
"""The invariants by which real brokers are not judged."""
