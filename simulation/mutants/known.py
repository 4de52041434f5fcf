"""Known bugs that are edits of a function's source."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.mutants.source_edits import parse_mutants

EDITS: Final = tuple(
    parse_mutants(r"""
rejoin-fenced | heartbeat-answers | lossy-network | KAFKA-19233
    Epoch 0 of a known member counts as a smaller epoch, so the member cannot join again.
    coordinator.consumer.validation:check_epoch: if epoch in (JOIN_EPOCH, member.member_epoch): => if epoch ==
        member.member_epoch:
owner-by-epoch | one-owner owners-map one-claimant | CHURN | franz-go kfake #1438
    Ownership is matched by epoch, which two members can share.
    coordinator.consumer.heartbeat:evaluate: taken=group.partition_epochs.taken if => taken=(lambda topic,
        numbers: {n for n in group.partition_epochs.taken(topic, numbers) if group.partition_epochs.of(topic,
        n) != new.member_epoch}) if
target-told-early | granted-after-release reply-equals-state one-claimant | CHURN | crabka #521
    A member receives its target before the old owner has released it.
    coordinator.consumer.heartbeat:evaluate: return Evaluated(reconciled, records, effects) => return
        Evaluated(msgspec.structs.replace(reconciled, assigned=target.partitions), records, effects)
lost-reply-fenced | heartbeat-answers | LOSSES | KIP-848, Member Epoch
    A member whose epoch-raising response was lost is fenced, though it owns nothing too much.
    coordinator.consumer.validation:check_epoch: if epoch == member.previous_member_epoch <
        member.member_epoch and is_subset(owned, member.assigned): => if False:
lost-assignment-not-repeated | assignment-present | LOSSES | franz-go eca3a457, KAFKA-16367
    A sent assignment counts as delivered, so a full heartbeat does not return it again.
    coordinator.consumer.heartbeat:_reply: == JOIN_EPOCH or full or old => == JOIN_EPOCH or old
epoch-moves-in-revocation | revocation-frozen | slow-callbacks-and-poll-timeouts scale-up-and-down |
        KAFKA-19974
    A member that has revoked and must revoke again gets the next epoch at once.
    coordinator.consumer.reconcile:_next: member.member_epoch, keep, revoke => min(target_epoch,
        member.member_epoch + (member.state is UNREVOKED)), keep, revoke
unsubscribed-topic-assigned | assigned-in-target | mixed-subscriptions | KAFKA-19431
    A target is applied with topics that the member has unsubscribed from in the meantime.
    with config.group.consumer.assignment.interval.ms=5000
    coordinator.consumer.reconcile:reconcile: if not subscribed >= target.keys(): => if False:
null-releases | revocation-frozen one-claimant | CHURN | franz-go 0af2689c
    A heartbeat without a partition list counts as one with an empty list.
    coordinator.consumer.reconcile:releases: return False => return True
stale-instance-entry | static-bijection | static-rolling-deploy | KAFKA-20747
    The instance id of a removed member still points to that member.
    coordinator.consumer.group:ConsumerGroup._forget_instance: * => pass
contacts-leak | bounded-memory timers-armed | CHURN | KAFKA-20601
    Timers and last-contact times of removed members are kept.
    coordinator.epoch_groups:SoftState._forget: * => pass
away-and-revoking | revocation-state | static-leave-while-revoking
    A static member that leaves for a while keeps partitions that it had to release.
    coordinator.consumer.leaving:_away: pending_revocation=NO_PARTITIONS =>
        pending_revocation=member.pending_revocation
    & member.assigned.items() => member.assignment_epochs.items()
subscription-not-stored | heartbeat-recorded | mixed-subscriptions regex-subscriptions
    The coordinator ignores a known member's new subscription.
    coordinator.consumer.member:ConsumerGroupMember.with_heartbeat: else tuple(sorted(set(names))) => else
        self.subscribed_topic_names or tuple(sorted(set(names)))
away-in-a-failover | gone-members | static-failover
    A coordinator that loads keeps static members that are away, for good.
    coordinator.consumer.soft:ConsumerSoftState.rebuild: super().rebuild(groups, now_ms) =>
        super().rebuild(groups, now_ms); [self.timers.cancel(GroupTimerKey(GroupTimerKind.SESSION, group_id,
        member_id)) for group_id, group in groups.items() for member_id, member in group.members.items() if
        member.member_epoch == -2]
foreign-partitions-accepted | heartbeat-answers | foreign-members
    The previous epoch is accepted from a member that lists partitions of others.
    coordinator.consumer.validation:check_epoch: and is_subset(owned, member.assigned) => and owned is not
        None
keepalive-after-lost-reply | request-fields | LOSSES | franz-go eca3a457; KIP-848, ConsumerGroupHeartbeat
    After a lost response the member sends only keepalives, so it never gets what was in it.
    member.consumer.heartbeats:Heartbeats.failed: self._sent.forget() => pass
commit-ahead-of-processing | commit-within-processed | slow-callbacks-and-poll-timeouts CHURN | KAFKA-18641
    A member commits records that the application has not processed yet.
    member.base.positions:Positions.uncommitted: if delivered: => if True:
    member.base.machine:MemberMachine.poll_end: return () if self._nothing_follows(now_ms) else =>
        self._auto_commit(now_ms); return
records-after-revocation | records-while-owned | slow-callbacks-and-poll-timeouts CHURN | KAFKA-20332
    The application gets records of a partition while the partition is being revoked.
    member.base.positions:Positions.suspend: * => pass
released-and-still-listed | owned-honest callbacks-balanced | CHURN | franz-go d5ceeb73
    Heartbeats keep listing released partitions.
    member.consumer.reconciliation:Assignment.end_revoked: * => self.unconfirmed = {}
static-member-locks-itself-out | frees-own-instance | static-rolling-deploy | Kafka 4.3:
        UNRELEASED_INSTANCE_ID after a join whose response was lost
    A static member gives up when its own earlier join still holds its instance id.
    member.consumer.machine:ConsumerMember._release_instance: * =>
        self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, "")
empty-commit-blocks | commits-go-on | steady CHURN | KAFKA-16203
    After an auto-commit with nothing to commit, no other auto-commit follows.
    with application.auto_commit_interval=1s
    member.base.machine:MemberMachine._auto_commit: self.commits.delay_auto(now_ms) =>
        self.commits.delay_auto(now_ms if offsets else 2**62)
no-leave-beside-heartbeat | leaves-told | rolling-deploy scale-up-and-down | KAFKA-16639
    A member that closes while a heartbeat is in flight never sends its leave.
    with network.latency=1s
    member.consumer.heartbeats:Heartbeats.leave_request: if not self.may_be_member => if self.in_flight is not
        None or not self.may_be_member
retries-at-once | retries-back-off | coordinator-crash-loop coordinator-failover | KAFKA-4777
    Failed requests are sent again without a wait.
    member.base.backoff:Backoff.next_ms: * => return 1
fenced-for-good | fenced-returns | frozen-members partitioned-members | KAFKA-16178
    A fenced member drops its partitions and never joins again.
    member.consumer.machine:ConsumerMember._progress: self._join(E.RELEASED, now_ms) => return False
polls-missed-late | poll-timeouts | slow-callbacks-and-poll-timeouts
    A member whose application does not poll stays in the group for twice the poll interval.
    member.base.application:Polls.end: now_ms + self._config.max_poll_interval_ms => now_ms + 2 *
        self._config.max_poll_interval_ms
committed-offset-forgotten | starts-at-committed | CHURN
    A new owner starts at the beginning of the log instead of the committed offset.
    member.base.positions:Positions.fetched: found = response.offsets.get(partition) => found = None
partition-left-out | partitions-read | steady CHURN
    A member that owns several partitions never fetches one of them.
    member.base.positions:Positions.fetchable: return self._fetchable => return
        dict(list(self._fetchable.items())[len(self._fetchable) > 1 :])
subscription-kept-secret | subscription-told | regex-subscriptions swarm
    A member in a group does not send its changed subscription.
    member.consumer.machine:ConsumerMember.subscribe: self._announced = subscription => return ()
loading-is-fatal | gives-up-rightly | coordinator-crash-loop coordinator-failover broker-failures
    A member gives up when the coordinator is still loading.
    member.base.errors:heartbeat_rule: return => return ErrorRule.FATAL if code is
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else
stopped-by-callback | reconciles-on | slow-callbacks-and-poll-timeouts swarm
    After a callback that raised, the member stops moving to its target.
    member.base.application:Polls.begin: self.waits_for_next = False => pass
commits-to-the-wrong-broker | searches-anew | coordinator-failover manual-commits
    A commit is sent again and again to a broker that is not the coordinator.
    member.base.lookups:CoordinatorLookup.note: self.lost(now_ms) => pass
failed-commit-never-ends | commits-end | frozen-members partitioned-members coordinator-crash-loop |
        KAFKA-10489
    An application whose commit fails waits forever.
    with application.commit=sync
    member.base.machine:MemberMachine._commit_ended: self.out.put(CommitFinished(commit.commit_id, error)) =>
        error or self.out.put(CommitFinished(commit.commit_id, error))
errors-swallowed | errors-raised | slow-callbacks-and-poll-timeouts
    The application does not get the exception that its callback raised.
    member.base.actions:Outbox.raise_to_application: self.actions.append => if fatal: self.actions.append
    & self.wakes = True => self.wakes = self.wakes or fatal
silent-coordinator-kept | searches-anew | lossy-network manual-commits | KAFKA-17293
    A member whose heartbeats get no response sends them to the same broker again and again.
    member.consumer.machine:ConsumerMember.request_failed: self.instance.may_be_held()
        self.coordinator.lost(now_ms) => self.instance.may_be_held()
released-before-the-response | commit-before-release | CHURN
    A member commits, and releases its partitions before the response to the commit.
    member.consumer.reconciliation:Reconciler._commit: return PassResult.GOES_ON => return
        self._revoke(current)
restless-assignor | target-sticky | CHURN
    The assignor ignores the previous target.
    coordinator.assign.uniform:_all_to_one: held = spec.targets.get(member) => held = None
    coordinator.assign.uniform:_uniform_equal: old = spec.targets.get => old = {}.get
    coordinator.assign.uniform_mixed:_Balancer.__init__: spec.targets.get(member, NO_PARTITIONS) =>
        NO_PARTITIONS
waits-for-itself | unreleased-waits | churn | KAFKA-19449
    Partitions that a member must revoke itself count as held by another member.
    with group.members=2
    with application.callback={median="8s", p99="20s"}
    coordinator.consumer.reconcile:_next: .difference(member.pending_revocation.get(topic_id, ())) =>
revocation-without-state | revocation-state | regex-subscriptions swarm
    A member that must revoke topics it unsubscribed from stays STABLE.
    coordinator.consumer.reconcile:_shrink: MEMBER_TABLE.next(member.state, REVOKE) => member.state
target-ahead | epochs-ordered | CHURN
    A target gets an epoch one above the group epoch.
    coordinator.consumer.target:compute_target: spec = _group_spec( => epoch += 1; spec = _group_spec(
target-epoch-restarts | epochs-monotone assignment-epochs | CHURN
    Target epochs start again from 1.
    coordinator.consumer.target:compute_target: spec = _group_spec( => epoch = 1 + epoch % 3; spec =
        _group_spec(
regex-topics-unnoticed | progress metadata-hash | growing-topics | KAFKA-18916
    The coordinator ignores changes of topics that only a regular expression matches.
    with group.topics=[]
    with group.pattern=".*"
    coordinator.consumer.group:ConsumerGroup.is_subscribed_to: or topic in self.counts.by_regex =>
expressions-kept | regexes-subscribed | regex-subscriptions
    The resolution of a regular expression stays after its last subscriber left.
    coordinator.consumer.leaving:removal_records: records.extend(regular_expressions.end_unused(group,
        counts)) => regular_expressions.end_unused(group, counts)
other-digest | metadata-hash | CHURN
    The digest of the group's topics does not depend on the topics.
    coordinator.consumer.heartbeat:evaluate: digest = metadata_hash(counts.topics(), around.image) => digest =
        7 + len(counts.topics())
commits-unfenced | commit-fenced | frozen-members LOSSES
    The coordinator accepts any commit, whatever its member and epoch.
    coordinator.consumer.groups:check_commit: * => return None
offset-one-too-far | at-least-once fetch-equals-commit | CHURN
    A fetched offset skips a record.
    coordinator.offsets.fetch:_position: offset=value.offset, => offset=value.offset + 1,
tombstones-out-of-order | journal-batches | CHURN
    A member's tombstones are written in the wrong order.
    coordinator.epoch_groups:EpochGroup.member_tombstones: member.assignment_key, self.target_key =>
        self.target_key, member.assignment_key
tombstone-needs-a-member | journal-replay | CHURN | KAFKA-17306
    A tombstone fails the load if compaction has already removed its member.
    coordinator.consumer.group:ConsumerGroup.apply_current_assignment: if value is None: => if value is None
        and old is None: raise ValueError(f"{key.member_id} is not there")\nif value is None:
silent-in-callbacks | heartbeats-go-on | slow-callbacks-and-poll-timeouts
    A member sends no heartbeat while a callback runs.
    member.consumer.machine:ConsumerMember._keeps_session: return self.state in ACTIVE or (self.state is
        states.PREPARE_LEAVING and => return self.callbacks.running is None and (self.state in ACTIVE or
        self.state is states.PREPARE_LEAVING and
sessions-never-end | gone-members progress | crash-and-return swarm
    Dead members stay in the group.
    coordinator.epoch_groups:SoftState.session_is_over: self.retry_later(key, now_ms) return True =>
        self.retry_later(key, now_ms + 60_000); return False
members-rewritten | quiet | steady rolling-deploy
    Every heartbeat writes the member's record again.
    coordinator.consumer.member:ConsumerGroupMember.with_heartbeat: if names is None and
        self._says_nothing_new(request): => if False:
    & return self if found == self else found => return found
stable-too-soon | stable-owns-target | CHURN
    A member becomes STABLE once it has the free part of its target.
    coordinator.consumer.reconcile:_next: state = MEMBER_TABLE.next(member.state, step) => state =
        MEMBER_TABLE.next(member.state, SETTLE)
last-subscription-kept | empty-group | rolling-deploy crash-and-return
    The subscription of the last member stays after that member left.
    with group.members=1
    coordinator.consumer.subscription:SubscriptionCounts.replace: count(self.by_name, old_names, -1) => last =
        self.by_name.copy(); count(self.by_name, old_names, -1)
    & count(self.by_name, new_names, 1) => count(self.by_name, new_names, 1); self.by_name = self.by_name or
        last
subscribed-offsets-expire | offsets-kept | rolling-deploy steady | KAFKA-4682
    Offsets expire although members subscribe to their topics.
    with duration=5m
    with config.offsets.retention.minutes=1
    with config.offsets.retention.check.interval.ms=30000
    coordinator.offsets.expiry:expired: if not is_subscribed(topic) => if True
fenced-and-joining | transitions | frozen-members LOSSES
    A fenced member joins before it has released what it owned.
    member.consumer.machine:ConsumerMember._move: CONSUMER_MEMBER.check(self.state, event, target) => target =
        S.JOINING if event is E.FENCED and target is S.FENCED else target
heartbeats-overlap | one-in-flight | LOSSES
    A due heartbeat does not wait for the response to the previous one.
    member.consumer.machine:ConsumerMember._heartbeat_due_ms: if heartbeats.in_flight is not None or not => if
        not
half-sessions | members-kept | coordinator-failover partitioned-members crash-and-return
    Sessions last half the session timeout.
    coordinator.epoch_groups:SoftState._session_end_ms: + length_ms => + length_ms // 2
sessions-go-on | members-kept | coordinator-crash-loop rolling-deploy
    A new coordinator counts session time from before it loaded.
    coordinator.consumer.soft:ConsumerSoftState.rebuild: super().rebuild(groups, now_ms) =>
        super().rebuild(groups, now_ms); [self._arm_session(group_id, member_id, contact) for group_id, soft
        in self.groups.items() for member_id, contact in soft.contacts.items() if not setattr(contact,
        "last_ms", contact.last_ms - 30_000)]
return-rebalances | epoch-caused | static-rolling-deploy
    A static member that returns with the same subscription raises the group epoch.
    coordinator.consumer.heartbeat:_change: raises_epoch=names_changed => raises_epoch=replaced_id(group, new)
        is not None or names_changed
departure-raises-nothing | epoch-caused | CHURN
    A removed member does not raise the group epoch, so no member gets its partitions.
    coordinator.consumer.leaving:removal_records:
        records.append(Record(ConsumerGroupMetadataKey(group.group_id), value)) => pass
targets-too-often | target-due | CHURN
    Each change computes a target at once and ignores the assignment interval.
    coordinator.assign.spec:may_assign_again: * => return True
heartbeat-moves-nobody | heartbeat-reconciles | CHURN
    A heartbeat without a partition list does not move its member to the target.
    coordinator.consumer.reconcile:reconcile: if not subscription_changed and member => if owned is None or
        not subscription_changed and member
mixed-from-scratch | target-sticky | mixed-subscriptions
    If subscriptions differ, the assignor ignores the previous target.
    coordinator.assign.uniform_mixed:_Balancer.__init__: spec.targets.get(member, NO_PARTITIONS) =>
        NO_PARTITIONS
mixed-unbalanced | target-balanced | mixed-subscriptions
    If subscriptions differ, the assignor takes nothing from members that have too much.
    coordinator.assign.uniform_mixed:_Balancer._balance: * => return False
ranges-by-member-id | target-balanced | range-assignor
    The range assignor orders static members by member id, which changes with each restart.
    coordinator.assign.range_:_ordered: instances = spec.instance_ids => instances = {}
new-topics-wait | expressions-resolved | regex-subscriptions
    A topic that an expression matches is found only at the next refresh.
    coordinator.consumer.regular_expressions:to_resolve: or version < newest_topics =>
eager-keeps-partitions | classic-joins | classic-rolling-deploy
    A member with an eager assignor joins again without releasing its partitions.
    with group.partition_assignment_strategy=range
    member.classic.ownership:ClassicOwnership.prepare: if self.cooperative: => if True:
cooperative-gives-at-once | classic-assignment | classic-rolling-deploy | KIP-429
    A leader with the cooperative assignor assigns partitions that other members still own.
    member.classic.assignors.sticky:CooperativeStickyAssignor.assign: if set(holders.get(each, ())) <=
        {member_id} =>
generations-restart | classic-generations | classic-rolling-deploy
    Generation 3 is followed by generation 1.
    coordinator.classic.group:ClassicGroup.next_generation: self.generation += 1 => self.generation =
        self.generation % 3 + 1
any-generation | classic-answers commit-fenced | classic-rolling-deploy
    The coordinator accepts heartbeats and commits of any generation.
    coordinator.classic.sessions:check_generation: if generation != group.generation: => if False:
last-assignment-written | classic-record | classic-rolling-deploy
    The record of a generation has the previous generation's assignment.
    coordinator.classic.member:ClassicGroupMember.record: assignment=assignment => assignment=self.assignment
upgraded-with-nothing | one-claimant classic-migrates | rolling-migration
    Members of a classic group that becomes a consumer group count as owning nothing.
    coordinator.migration.upgrade:_member: read_assignment(member.assignment) => read_assignment(b"")
first-members-alone | classic-rounds | classic-rolling-deploy
    The initial delay of an empty group is not extended when more members join.
    coordinator.classic.rounds:join_time_over: if group.initial_delay is not None and group.new_member_added:
        => if False:
generation-never-synced | timers-armed | classic-slow-members | KAFKA-12890
    A generation whose leader left waits forever for its assignment.
    coordinator.classic.step:ClassicStep.set_timer: self.timers.set( => kind.name == "SYNC" or
        self.timers.set(
late-sync-stays | classic-members | classic-slow-members | KAFKA-12890
    Members that did not send SyncGroup in time stay in the group.
    coordinator.classic.rounds:sync_time_over: step.remove(member) => pass
static-return-unwritten | classic-record | classic-static-members | KAFKA-10284
    No record has the new member id of a static member that returned.
    coordinator.classic.step:ClassicStep.write: self.records += => if self.group.state != "Stable":
        self.records +=
returned-leader-assigns | classic-joined | classic-static-members | KAFKA-13435
    A static leader that returned is not told to keep the assignment.
    coordinator.classic.join:_in_generation: skip_assignment=skip_assignment and leads =>
        skip_assignment=False
late-sync-gets-nothing | classic-synced | classic-static-members | KAFKA-9801
    A static member that returns to a Stable group gets an empty assignment.
    coordinator.classic.sync:_assignment: assignment=assignment => assignment=b"" if group.state == "Stable"
        else assignment
never-downgraded | classic-migrates | rolling-migration
    A consumer group stays one after its last KIP-848 member left.
    coordinator.migration.downgrade:may_downgrade: * => return False
id-forgotten-with-generation | classic-joins | classic-static-members classic-slow-members | KAFKA-13419
    A member that gets ILLEGAL_GENERATION joins as a new one, and its old self stays in the group.
    member.classic.machine:ClassicMember._fenced: "" if forget_id else self.member_id => ""
revoked-and-not-joined | reconciles-on | classic-rolling-deploy
    A member with a cooperative assignor revokes partitions and does not join again.
    member.classic.ownership:ClassicOwnership.reconcile: self.rejoin_wanted = self.cooperative => pass
expression-outlives-its-protocol | classic-migrates | static-migration | KAFKA-19720
    A static member that comes back with the classic protocol keeps its regular expression.
    with group.pattern="orders|payments"
    coordinator.consumer.heartbeat:evaluate: replaced = replaced_id(group, new) => new =
        msgspec.structs.replace(new, subscribed_topic_regex=old.subscribed_topic_regex) if new.classic else
        new\nreplaced = replaced_id(group, new)
sac-no-handover | sac-exclusive | sac-churn | RabbitMQ's stream coordinator, SAC with Super Stream Partition
    A consumer of a super stream becomes active before the last one has stepped down.
    coordinator.sac.draft:GroupDraft._step_down_if_wrong: _E.STEP_DOWN_ASKED, C_DEACTIVATING => _E.RELEASED,
        C_WAITING
    & self._notify(current, active=False) => self._notify(current, active=False); self._activate(target);
        self._notify(target, active=True)
sac-stale-kept | sac-stale-node | sac-stale-nodes | RabbitMQ's stream coordinator, Stale Node Detection
    Consumers of a node that left the cluster stay in their groups, even active ones.
    coordinator.sac.coordinator:_purge: * => return OK
sac-disconnected-ignored | sac-one-active | sac-node-failures | RabbitMQ's stream coordinator, noconnection
        management
    A group chooses a new consumer while a disconnected one may still be active.
    coordinator.sac.draft:GroupDraft.current: if each in statuses => if each in statuses and each is not
        D_ACTIVE
    coordinator.sac.draft:GroupDraft.target: if D_ACTIVE in statuses: => if False:
sac-return-not-evaluated | sac-settled | sac-node-failures sac-stale-nodes | RabbitMQ's stream coordinator,
        evaluate impacted groups
    A forgotten active consumer returns and is not asked to step down.
    coordinator.sac.draft:GroupDraft._reconcile: or (status is C_ACTIVE and not blocked) =>
    & self._notify(place, active=False) => pass
    & place in mine and not blocked => place in mine
sac-lost-is-gone | sac-cause | sac-node-failures sac-stale-nodes | RabbitMQ's stream coordinator, before its
        machine version 5
    Consumers of an unreachable node leave their groups at once.
    coordinator.sac.draft:GroupDraft.lose_connection: * => self.end_connection(connection)
sac-lost-step-down-waits | sac-choice | sac-node-failures | RabbitMQ's stream coordinator, its machine version
        5
    A consumer whose node is lost during a step-down leaves its group without an active one.
    coordinator.sac.draft:GroupDraft.lose_connection: if stepping_down: => if False:
sac-chosen-again-untold | sac-told | sac-churn sac-node-failures | RabbitMQ's stream coordinator, before July
        2026
    A consumer that steps down and is chosen again is not activated.
    coordinator.sac.draft:GroupDraft.activate: = self.current(), self.target() => = self.current(),
        self.target(); again = target is not None and self.consumers[target].status is C_DEACTIVATING
    & self._notify(target, active=True) => again or self._notify(target, active=True)
sac-forgotten-not-asked | sac-watched | sac-node-failures | RabbitMQ's stream coordinator, its machine version
        8
    A node that returns is not asked about connections that were lost with it.
    coordinator.sac.coordinator:_node_up: step.first += => if step.state.is_indexed(connection): step.first +=
    & if connection in step.state.strays: => if False:
sac-return-not-indexed | sac-derived | sac-node-failures | RabbitMQ's stream coordinator, its machine version
        8
    The coordinator misses the end of a connection that was lost and returned.
    coordinator.sac.coordinator:_reconnected: step.rebuilt = True => pass
    & return OK => step.index[connection] = (); return OK
sac-registered-waiting | sac-replies | sac-churn
    The response to a registration always says that another consumer is active.
    coordinator.sac.coordinator:_register: reply = sac.SacReply(is_active=group.register(command, present)) =>
        group.register(command, present); reply = sac.SacReply(is_active=False)
sac-leader-forgets | sac-timeout | sac-node-failures | RabbitMQ's stream coordinator, timers of a new leader
    A new leader gives lost connections no time to return.
    coordinator.sac.state:SacState.restart_timers: now_ms + min( => now_ms + 0 * min(
sac-never-forgotten | sac-timeout | sac-node-failures sac-stale-nodes
    Lost connections are never forgotten and block their groups.
    coordinator.sac.coordinator:SacCoordinator.next_deadline: * => return None
sac-step-down-unheard | sac-unblocked | sac-churn | RabbitMQ's stream coordinator, SAC with Super Stream
        Partition
    After a step-down the group does not choose the next consumer.
    coordinator.sac.coordinator:_activate: * => return OK
sac-loss-untold | sac-callbacks | sac-churn
    The application is not notified that its consumer lost the connection.
    member.sac.consumer:SingleActiveConsumer._call: phase = "end" => if kind is SacCallback.LOST: return
        self._callback_over(None)\nphase = "end"
sac-answers-at-once | sac-answers | sac-churn
    A consumer responds to a step-down before the application has released the partition.
    member.sac.machine:SacMember.consumer_update: return self._done() => actions = self._done(); return
        actions if active else (AnswerUpdate(correlation_id, NONE), *actions)
sac-offset-too-far | sac-records | sac-churn
    A consumer starts one message after the next one.
    member.sac.consumer:SingleActiveConsumer._stored_or: at(stored + 1) => at(stored + 2)
sac-chunk-from-its-start | sac-records | sac-chunks
    A consumer hands over the messages of a chunk that lie before the chosen offset.
    member.sac.machine:SacMember.delivered: return begin => return first
sac-retry-storm | sac-prompt | sac-churn sac-node-failures
    A consumer reconnects at once after each failure.
    member.base.backoff:Backoff.next_ms: * => return 1
replaced-thread-leaks | streams-dead-left | streams-failures | KAFKA-12738
    A replaced thread leaves its member in the group, which then has tasks without a thread.
    member.streams.application.worker:Worker._end: await self.member.close( => if self._clean: await
        self.member.close(
thread-replaced-twice | streams-live-threads | streams-failures | KIP-671
    Two threads replace a failed one, so each failure adds a thread.
    member.streams.client:StreamsClient._replace: self.replaced += 1 => self.replaced += 1;
        self._launch(self._new_thread())
shutdown-lost-with-its-requester | streams-shutdown-reaches | streams-shutdown | KAFKA-12375, KAFKA-19190
    Only the failed thread asks for the shutdown, and it dies before it can.
    member.streams.client:StreamsClient._ask_all: if thread.launched and thread.state is not T.DEAD: => if
        thread.state is T.PENDING_SHUTDOWN:
    member.streams.heartbeats:StreamsHeartbeats.request: shutdown_application=self =>
        shutdown_application=request.member_epoch >= 0 and self
shutdown-without-carrier | streams-shutdown-reaches | streams-single-threads | KAFKA-12537
    A client's only thread asks for the shutdown, and no other thread reads the response.
    member.streams.client:StreamsClient._launch: thread.launched = True => if self.shutdown_requested:
        thread.shut_down(); return thread.ended()\nthread.launched = True
    member.streams.client:StreamsClient.thread_ended: if self.shutdown_requested and => if False and
shutdown-told-once | streams-shutdown-reaches | streams-missed-round | KIP-671
    A classic member that got a shutdown does not pass it on to members that missed the round.
    member.classic.assignors.streams:StreamsAssignor._repeat: * => self.shutdown_requested = True
    member.streams.application.worker:Worker._finish_round: or client.shutdown_told) => and not
        client.shutdown_told)
failing-handler-is-no-answer | streams-error-due | streams-failures | Kafka's own behaviour
    A handler that raises ends only its thread, and the client continues without it.
    member.streams.handler:Handlers.ask: except BaseException as raised: return => except BaseException as
        raised: return HandlerDecision(None) or
ending-threads-count | streams-derived | streams-failures | KAFKA-14717
    A thread that is being removed keeps its client in REBALANCING.
    member.streams.client:StreamsClient._derived: * => states = {each.state for each in self.threads.values()
        if each.state is not T.DEAD}\nreturn S.RUNNING if states <= {T.RUNNING} else S.REBALANCING
connection-back-means-running | streams-reconnects | streams-failures | KIP-457
    A reconnected thread becomes RUNNING even if it was in a rebalance.
    member.streams.thread:StreamThread.connection: self._hidden) => S.RUNNING)
steps-last-to-first | streams-transitions | streams-failures
    The consequences of an input are carried out in reverse order.
    member.streams.application.driver:StreamsDriver.carry_out: self._queue.extend(actions) => for action in
        reversed(actions): self._PERFORM[type(action)](self, action)
no-threads-is-an-error | streams-error-cause | streams-failures | KIP-696, before
    The death of the last thread moves a client to ERROR without a handler's decision.
    with group.threads=1
    member.streams.client:StreamsClient.thread_ended: if self.shutdown_requested and => if
no-thread-without-threads | streams-live-threads | streams-no-threads
    A client that has lost its last thread adds none when it is asked to.
    member.streams.client:StreamsClient.add_thread: if not self.is_running: => if not self.live: return None,
        ()\nif not self.is_running:
delay-taken-for-shutdown | streams-shutdown-cause streams-settles | streams-failures | KIP-1071, Status
    A member treats the status of a delayed assignment as a shutdown.
    member.streams.heartbeats:StreamsHeartbeats.shutdown_requested: SHUTDOWN_APPLICATION => ASSIGNMENT_DELAYED
services-go-on | streams-closed | streams-failures | KIP-671
    The state directory cleaner and the recorder outlive their client.
    member.streams.application.services:Service.stop: * => pass
failed-batch-committed | streams-at-least-once | streams-failures | KAFKA-15429
    A batch counts as processed too early, and a failed thread commits it.
    member.streams.application.worker:Worker._process: self._engine, batch.partition => self._engine,
        batch.partition; self._processed[partition] = batch.next_offset
    member.streams.application.worker:Worker._end: try: => self._clean = True\ntry:
aborted-offsets-count | transaction-offsets exactly-once | transactions
    The offsets of an aborted transaction count like committed ones.
    coordinator.offsets.transactions:ended: if commit and not => if not
staged-after-plain | transaction-offsets | transactions-and-plain-commits
    A staged offset wins over a plain commit that came after it.
    coordinator.offsets.store:OffsetStore.is_overtaken: * => return False
staged-offsets-expire | transaction-staged | transactions-and-plain-commits
    An offset expires although an open transaction has staged another one for its partition.
    coordinator.offsets.expiry:expired: if not store.is_pending(group_id, TopicPartition(topic, partition)) =>
        if True
unstable-not-told | transaction-stable-fetch exactly-once | transactions | KIP-447
    A stable fetch does not mark offsets that an open transaction may change.
    coordinator.offsets.fetch:fetch: if request.require_stable and store.pending(request.group_id): => if
        False:
unstable-taken | exactly-once | transactions | KIP-447
    A member starts at offsets that an open transaction may still change.
    member.base.positions:Positions.fetched: or response.unstable: => :
replaced-producer-accepted | transaction-fenced | transactions
    A replaced producer may continue under its transactional id.
    coordinator.transactions.epochs:check_producer: if epoch != now.producer_epoch: => if False:
epoch-given-twice | transaction-epochs | transactions
    A new producer gets the epoch of the previous one.
    coordinator.transactions.epochs:initialized: producer_epoch=now.producer_epoch + 1 =>
        producer_epoch=max(0, now.producer_epoch)
group-not-told | transaction-decided | transactions | KAFKA-17507
    A transaction counts as complete before its group has the marker.
    coordinator.transactions.coordinator:TransactionCoordinator._markers: groups=value.groups => groups=()
decided-and-forgotten | transaction-ends | transactions-slow-markers
    A coordinator that loads does not carry out transactions whose end was decided.
    coordinator.transactions.coordinator:TransactionCoordinator.replay: if value.status in prepared => if
        False
timeout-lost-with-its-record | transaction-ends | transactions-and-plain-commits
    A transaction whose abort could not be written is never aborted again.
    coordinator.transactions.coordinator:TransactionCoordinator.not_written: if isinstance(event,
        DeadlineReached): => if False:
committed-at-no-time | commit-recorded | manual-commits
    Commits get timestamp 0, so they expire at once.
    coordinator.offsets.commit:_record: if request.is_transactional: => now_ms = 0\nif
        request.is_transactional:
revoked-not-described | told-equals-state | operators | KAFKA-20431
    A description omits the partitions that a member must still release.
    with application.callback="5s..20s"
    coordinator.consumer.describe:_named: for part in parts: => for part in parts[:1]:
subscribed-offsets-deleted | admin-changes offsets-kept | operators
    OffsetDelete removes offsets of topics that members subscribe to.
    coordinator.offsets.delete:delete: elif is_subscribed(partition.topic): => elif False:
dropped-pattern-unnoticed | subscription-raises-epoch | dropped-patterns | KAFKA-19899
    A member that drops its pattern keeps the topics that only the pattern matched.
    coordinator.consumer.regular_expressions:change_of: return UNRESOLVED if old.regex is None else RESOLVED
        => return UNRESOLVED
offsets-outlive-their-topic | offsets-kept | growing-topics transactions | KAFKA-16168
    Committed and staged offsets of a deleted topic stay.
    coordinator.offsets.expiry:of_deleted_topics: * => return ()
task-given-too-soon | streams-one-owner | streams-failures | KIP-1071, Reconciliation
    A member gets an active task before another member has released it.
    coordinator.streams.owners:TaskOwners.active: * => return None
silence-confirms | streams-reconciles | streams-failures | KIP-1071, Reconciliation
    A heartbeat without a task list counts as one of a member that owns no tasks.
    coordinator.streams.reconcile:reconcile: epoch = member.member_epoch => epoch = member.member_epoch; owned
        = NO_TASKS if owned is None else owned
end-without-rebalance | streams-epochs | streams-failures
    A member leaves a streams group, and the group epoch does not rise.
    coordinator.streams.groups:removal_records: epoch = group.group_epoch + 1 => epoch = group.group_epoch
assignor-without-memory | streams-sticky | streams-failures
    The task assignor ignores the previous owners.
    coordinator.streams.target:_assigned: TaskMember(member.process_id, group.target(member_id)) =>
        TaskMember(member.process_id)
standby-dropped | streams-standby | streams-standby-tasks | KAFKA-20899
    A standby task whose member has no room left is assigned to no member.
    coordinator.assign.tasks:_Assignment._stands_by_again: return False => return
        bool(self._stood_by.get(task))
quota-stays | streams-target | streams-failures streams-standby-tasks
    Members keep a full share of active tasks, even if that leaves a new process without any.
    coordinator.assign.tasks:_Assignment._filled_active: * => pass
internal-topics-not-created | streams-topics | streams-global-thread | KIP-1071, Topology Configuration
    The coordinator does not create the changelogs that a topology needs.
    coordinator.streams.heartbeat:_effects: * => return ()
streams-rejoin-fenced | streams-answers | streams-shutdown streams-failures | KAFKA-19233
    A member that rejoins because its join response was lost is fenced.
    coordinator.streams.heartbeat:_member: validation.check_not_full(group, around.max_size) => if member_id
        in group.members: raise validation.ProtocolError(validation.ErrorCode.FENCED_MEMBER_EPOCH,
        "")\nvalidation.check_not_full(group, around.max_size)
tasks-only-on-joining | streams-replies | streams-failures
    Only responses to joins carry tasks.
    coordinator.streams.heartbeat:_reply: tasks=new.assigned if shown => tasks=new.assigned if
        request.member_epoch == JOIN_EPOCH
heartbeats-unheard | streams-sessions | streams-failures
    A session expires although its member sends heartbeats.
    coordinator.epoch_groups:SoftState.heard: * => pass
first-joiner-takes-all | streams-delays | streams-failures | KAFKA-19829
    The first member of a group gets all tasks at once, before others have joined.
    coordinator.streams.soft:StreamsSoftState.waits_for_members: * => return False
gone-members-remembered | streams-bookkeeping | streams-failures
    The last-contact times of members that left are kept.
    coordinator.epoch_groups:SoftState._forget: contacts.pop(member_id, None) => contacts[member_id] =
        MemberContact(self.now_ms)
tasks-committed-by-anybody | streams-commits | streams-standby-tasks streams-frozen-clients | KIP-1251
    Fenced members, and members that lost a task, can still commit it.
    coordinator.streams.offset_fencing:check_commit: * => return None
ready-group-not-described | streams-described | streams-other-applications | KAFKA-19661
    After a load, a ready group is described as NotReady until a member sends a heartbeat.
    coordinator.streams.describe:describe: group_state=group.state, => group_state=group.state if configured
        is not None or not group.members else type(group.state).NOT_READY,
endpoints-told-once | streams-endpoints | streams-standby-tasks | KIP-1071, Interactive Queries
    A member is not notified when the tasks of other processes change.
    coordinator.streams.heartbeat:_reply: partitions_by_endpoint=endpoints => partitions_by_endpoint=endpoints
        if shown else None
""")
)
"""See `parse_mutants` for the form of a row."""
