"""Progress: at the end the group has settled, and stays settled (invariant of progress).

Once faults end the group has the session timeout (to notice dead members), the longest rebalance timeout (to
take partitions back) and three heartbeat intervals (to reach all members). An application disturbs its group
itself if a callback takes longer than a heartbeat interval, or a batch longer than the poll interval. The
time starts again when the callback or the batch ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import NO_GENERATION, JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import read_assignment, read_subscription
from fencepost.coordinator.protocol.outcome import Outcome, ParkedResponse, Request, Response
from fencepost.member.consumer.states import FATAL, STABLE, UNSUBSCRIBED, ConsumerMemberEvent
from fencepost.simulation.judge.base import Finding, Judge, shown, shown_names
from fencepost.simulation.judge.targets import assignor_of, homogeneous, subscriptions_of
from fencepost.simulation.kernel.observers import MembersWorldView, StepEvent, Subscribed

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.classic.member import ClassicGroupMember
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.member.base.driver import MemberDriver
    from fencepost.simulation.kernel.observers import MemberView

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
POLL_TIMED_OUT, POLLED = ConsumerMemberEvent.POLL_TIMED_OUT, ConsumerMemberEvent.POLLED


def _members_run(
    group_id: str, members: Collection[ids.MemberId], live: Collection[ids.MemberId]
) -> Iterator[Finding]:
    """Check that all members that run are in the group, and no others."""
    for member_id in live:
        if member_id not in members:
            yield "progress", f"{member_id or 'a member without id'} runs, but is not a member of {group_id}"
    for member_id in members:
        if member_id not in live:
            yield "gone-members", f"{member_id} is a member of {group_id}, but no process runs under that id"


def _own_eyes(
    member_id: ids.MemberId,
    driver: MemberDriver | None,
    epoch: int,
    assigned: Collection[ids.TopicPartition],
    *,
    is_settled: bool,
) -> Iterator[Finding]:
    """Check that a member is settled if its coordinator says so, and owns its assignment there."""
    assert driver is not None
    if not is_settled or driver.member_epoch != epoch:
        yield (
            "progress",
            f"{member_id} believes to be {driver.state} at epoch {driver.member_epoch}; the coordinator has"
            f" it at epoch {epoch}",
        )
    if assigned != set(driver.assignment):
        yield (
            "progress",
            f"{member_id} owns {shown_names(driver.assignment)}, assigned is {shown_names(assigned)}",
        )


def unsettled(group: ConsumerGroup, live: Collection[ids.MemberId]) -> Iterator[Finding]:
    """Yield the reasons why a group has not settled; `live` are the ids of the members that run and
    subscribe."""
    epoch = group.group_epoch
    if group.members and group.assignment_epoch != epoch:
        yield (
            "progress",
            f"{group.group_id} is at epoch {epoch}, its target is of epoch {group.assignment_epoch}",
        )
    yield from _members_run(group.group_id, group.members, live)
    for member_id in live:
        member = group.members.get(member_id)
        if member is None:
            continue
        if member.state != ConsumerGroupMemberState.STABLE or member.member_epoch != epoch:
            yield (
                "progress",
                f"{member_id} of {group.group_id} is {member.state} at epoch {member.member_epoch},"
                f" the group is at {epoch}",
            )
        target = group.targets.get(member_id, ids.NO_PARTITIONS)
        if dict(member.assigned) != dict(target):
            yield (
                "progress",
                f"{member_id} of {group.group_id} is assigned {shown(member.assigned)}, its target is"
                f" {shown(target)}",
            )


def uncovered(group: ConsumerGroup, image: TopicsImage, default_assignor: str) -> Iterator[Finding]:
    """Check that the assignment covers each subscribed partition once, and evenly if that is promised."""
    members = group.members
    subscriptions = subscriptions_of(group, image)
    wanted: dict[ids.TopicId, int] = {}
    for topics in subscriptions.values():
        wanted.update((topic_id, image.by_id[topic_id].partitions) for topic_id in topics)
    given: Counter[tuple[ids.TopicId, int]] = Counter(
        (topic_id, number)
        for member in members.values()
        for topic_id, numbers in member.assigned.items()
        for number in numbers
    )
    for topic_id, count in sorted(wanted.items()):
        missing = [number for number in range(count) if given[topic_id, number] != 1]
        if missing:
            yield (
                "progress",
                f"{group.group_id}: partitions {missing[:12]} of {image.by_id[topic_id].name} are not"
                " owned exactly once",
            )
    even = members and homogeneous(members.values()) and len(set(subscriptions.values())) == 1
    if even and assignor_of(members.values(), default_assignor) == "uniform":
        sizes = [ids.partition_count(member.assigned) for member in members.values()]
        if max(sizes) - min(sizes) > 1:
            yield "progress", f"{group.group_id}: members own from {min(sizes)} to {max(sizes)} partitions"


_OF_OFFSETS: Final = (r.OffsetCommitKey, r.PendingOffsetCommitKey)
"""Keys of the records that members go on to write once their group has settled."""


class Liveness(Judge):
    """Checks progress, quiet and gone-members. `converged` shows afterwards if the group had settled.

    `is_processing` returns true if the application on a host has records that it has not finished with.
    """

    world: MembersWorldView

    def __init__(self, is_processing: Callable[[str], bool]) -> None:
        self.converged = False
        self._is_processing = is_processing
        self._calm_since_us: int | None = None
        self._faults_end_us: int | None = None
        self._callbacks: dict[str, int] = {}
        """Time at which the current callback of a host began, in µs."""
        self._late: set[str] = set()
        """Hosts whose application is busy with a batch for longer than its poll interval."""
        self._refused: set[str] = set()
        """Hosts whose process ended while the session of another one ran that may have its instance id."""
        self._taken_for_known: tuple[int, Mapping[str, int]] = (NO_GENERATION, {})
        """Sizes of topics when the leader of this generation came back to it."""
        self._resolved: dict[r.ConsumerGroupRegularExpressionKey, r.ConsumerGroupRegularExpressionValue] = {}

    def on_faults_end(self, now_us: int) -> None:
        """Start the bound."""
        self._calm_since_us = self._faults_end_us = now_us

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """End a callback with its process, as a batch. A process that was refused comes back late."""
        if what in ("start", "crash", "stopped"):
            self._callbacks.pop(host, None)
            self._late.discard(host)
        if what == "start" and host in self._refused:
            self._refused.remove(host)
            self._disturbed(now_us)

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """Note members that left because of their application, and come back when it polls again."""
        if event == POLL_TIMED_OUT and self._is_processing(host):
            self._late.add(host)
            self._disturbed(now_us)
        elif event == POLLED and host in self._late:
            self._late.remove(host)
            self._disturbed(now_us)
        elif target == FATAL and self._sessions_may_end(now_us):
            self._refused.add(host)

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[ids.TopicPartition], now_us: int
    ) -> None:
        """Note the duration of callbacks."""
        if phase == "begin":
            self._callbacks[host] = now_us
        else:
            self._slow(self._callbacks.pop(host, now_us), now_us)

    def _sessions_may_end(self, now_us: int) -> bool:
        """Return true if faults ended so recently that a static member's predecessor may not have been
        removed yet."""
        session_us = 1000 * self.world.config.group_consumer_session_timeout_ms
        return self._faults_end_us is not None and now_us <= self._faults_end_us + session_us

    def _slow(self, since_us: int, now_us: int) -> None:
        if now_us - since_us > 1000 * self.world.config.group_consumer_heartbeat_interval_ms:
            self._disturbed(now_us)

    def _disturbed(self, now_us: int) -> None:
        if self._calm_since_us is not None:
            self._calm_since_us = now_us

    def _over_time(self, now_us: int) -> bool:
        """Return true if the group may move no more."""
        if self._calm_since_us is None:
            return False
        bound_ms = self.world.settling_ms
        return bound_ms is not None and now_us > self._calm_since_us + 1000 * bound_ms

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check that after the bound only commits and refreshed expressions are written."""
        if type(event) is JoinGroupRequest:
            for effect in outcome.effects:
                if isinstance(effect, ParkedResponse):
                    self._take_for_known(effect.response)
            self._take_for_known(outcome.reply)
        records = outcome.records
        expressions = records and type(records[0].key) is r.ConsumerGroupRegularExpressionKey
        if expressions and self._refreshed(records, now_us):
            return
        if not self._over_time(now_us):
            return
        for record in records:
            if type(record.key) not in _OF_OFFSETS:
                self.report(
                    "quiet", f"{record.key} was written at {now_us / 1e6:.3f} s, after the group's bound"
                )
                return

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Note what no record of a real coordinator shows."""
        if isinstance(response, JoinGroupResponse):
            self._take_for_known(response)

    def _take_for_known(self, response: Response | Exception | None) -> None:
        """Note the topics of a static leader that comes back: it treats them as the assigned ones."""
        if isinstance(response, JoinGroupResponse) and response.skip_assignment:
            sizes = {name: topic.partitions for name, topic in self.world.topics.by_name.items()}
            self._taken_for_known = response.generation, sizes

    def _refreshed(self, records: Iterable[r.Record], now_us: int) -> bool:
        """Return true if expressions were resolved again because it was time to; each is written, as by
        Kafka.

        Only then they lose a topic that was deleted: the epoch is raised, and the group settles again.
        """
        interval_ms = self.world.config.group_consumer_regex_refresh_interval_ms
        due, changed = True, False
        for record in records:
            key, value = record.key, record.value
            if not isinstance(key, r.ConsumerGroupRegularExpressionKey):
                due = due and changed
            elif isinstance(value, r.ConsumerGroupRegularExpressionValue):
                old = self._resolved.get(key)
                self._resolved[key] = value
                due = due and old is not None and value.timestamp_ms - old.timestamp_ms >= interval_ms
                changed = changed or (old is not None and old.topics != value.topics)
        if due and changed:
            self._disturbed(now_us)
        return due

    def on_end(self, now_us: int) -> None:
        """Check that the group has settled, if it had enough time."""
        for since_us in self._callbacks.values():
            self._slow(since_us, now_us)
        if self._late:
            self._disturbed(now_us)
        findings = list(self._findings())
        self.converged = not findings
        if self._over_time(now_us + 1):  # the bound itself is enough
            self.report_all(findings)

    def _is_outside(self, host: str, state: str) -> bool:
        """Return true if a member does not count: it has failed for good, or has no subscription."""
        if state != UNSUBSCRIBED:
            return state == FATAL
        wanted = self.world.subscription_of(host)
        return wanted is None or not any(wanted)

    def _findings(self) -> Iterator[Finding]:
        coordinator = self.world.active
        if coordinator is None:
            yield "progress", "there is no active coordinator"
            return
        for name, each in self.world.members.items():
            if each.status in ("stopping", "frozen"):
                yield "progress", f"{name} is still {each.status}"
        live = {
            host.member_id: host
            for host in self.world.members.values()
            if host.status == "running" and host.driver is not None
        }
        joined = {
            member_id: host
            for member_id, host in live.items()
            if host.driver is not None and not self._is_outside(host.name, host.driver.state)
        }
        classic = coordinator.classic.groups.get(self.world.group_id)
        if classic is not None:
            generation, sizes = self._taken_for_known
            unnoticed = sizes if generation == classic.generation else {}
            yield from unsettled_classic(classic, joined, coordinator.image, unnoticed)
            for member_id, host in joined.items():
                yield from untold_to_classic(classic, member_id, self.world.subscription_of(host.name))
            return
        group = coordinator.groups.get(self.world.group_id)
        if group is None:
            if joined:
                yield "progress", f"{self.world.group_id} does not exist, but {sorted(joined)} run"
            return
        yield from unsettled(group, joined)
        yield from uncovered(group, coordinator.image, self.world.config.group_consumer_assignors[0])
        by_id = coordinator.image.by_id
        for member_id in sorted(joined):
            yield from untold(group, member_id, self.world.subscription_of(live[member_id].name))
            driver, member = live[member_id].driver, group.members.get(member_id)
            if member is not None and driver is not None:
                assigned = {
                    ids.TopicPartition(by_id[topic_id].name if topic_id in by_id else topic_id, number)
                    for topic_id, numbers in member.assigned.items()
                    for number in numbers
                }
                is_settled = driver.state == STABLE
                yield from _own_eyes(member_id, driver, member.member_epoch, assigned, is_settled=is_settled)


def untold(group: ConsumerGroup, member_id: ids.MemberId, wanted: Subscribed | None) -> Iterator[Finding]:
    """Check that the coordinator has stored the subscription of the application."""
    member = group.members.get(member_id)
    if member is None or wanted is None or member.classic is not None:
        return
    stored = frozenset(member.subscribed_topic_names), member.subscribed_topic_regex or None
    if stored != wanted:
        yield (
            "subscription-told",
            f"{member_id} subscribes to {_texts(*wanted)}, its coordinator has {_texts(*stored)}",
        )


def untold_to_classic(
    group: ClassicGroup, member_id: ids.MemberId, wanted: Subscribed | None
) -> Iterator[Finding]:
    """Check the same for a classic member, which resolves its expression itself."""
    member = group.members.get(member_id)
    if member is None or wanted is None or wanted[1] is not None:
        return
    for protocol in member.protocols:
        stored = frozenset(read_subscription(protocol.metadata).topics)
        if stored != wanted[0]:
            yield (
                "subscription-told",
                f"{member_id} subscribes to {_texts(*wanted)}, its group has {_texts(stored, None)}",
            )


def _texts(names: Collection[str], pattern: str | None) -> str:
    return " ".join((*sorted(names), *(() if pattern is None else (f"/{pattern}/",)))) or "nothing"


def unsettled_classic(
    group: ClassicGroup,
    live: Mapping[ids.MemberId, MemberView],
    image: TopicsImage,
    unnoticed: Mapping[str, int],
) -> Iterator[Finding]:
    """Findings of progress and gone-members; `live` are the hosts that run and subscribe, by member id.

    Partitions may have no owner below the number that their topic has in `unnoticed`.
    """
    if group.state is not ClassicGroupState.STABLE and (live or group.members):
        yield "progress", f"{group.group_id} is {group.state} in generation {group.generation}"
    yield from _members_run(group.group_id, group.members, live)
    for member_id, member in group.members.items():
        if member_id in live:
            driver = live[member_id].driver
            is_settled = getattr(driver, "is_settled", False)  # a member of another protocol is not
            yield from _own_eyes(
                member_id, driver, group.generation, _partitions(member), is_settled=is_settled
            )
    yield from _uncovered(group, image, unnoticed)


def _partitions(member: ClassicGroupMember) -> set[ids.TopicPartition]:
    given = read_assignment(member.assignment).partitions
    return {
        partition for topic, numbers in given.items() for partition in ids.topic_partitions(topic, numbers)
    }


def _uncovered(group: ClassicGroup, image: TopicsImage, unnoticed: Mapping[str, int]) -> Iterator[Finding]:
    """Check that each partition of a subscribed topic has one owner."""
    given = Counter(partition for member in group.members.values() for partition in _partitions(member))
    for topic in sorted(group.subscribed_topics or ()):
        known = image.by_name.get(topic)
        count = 0 if known is None else known.partitions
        missing = [
            partition.partition
            for partition in ids.topic_partitions(topic, range(count))
            if given[partition] != 1
            and not (given[partition] == 0 and partition.partition < unnoticed.get(topic, 0))
        ]
        if missing:
            yield (
                "progress",
                f"{group.group_id}: partitions {missing[:12]} of {topic} are not owned exactly once",
            )
