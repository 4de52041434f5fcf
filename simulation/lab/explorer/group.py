"""A consumer group (KIP-848) of a few members, and all that may happen to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.simulation.judge.base import Finding, shown_names
from fencepost.simulation.lab.explorer.process import TOPIC
from fencepost.simulation.lab.explorer.roles import FAULTS, USUAL_FAULTS
from fencepost.simulation.lab.explorer.space import Move
from fencepost.simulation.lab.explorer.steps import Label, Local, Steps

State: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""The coordinator; each member, or -n before its life n begins; stray requests, which the coordinator takes
although no process waits for a response; and the number of faults that may still happen."""


class ExploredGroup:
    """`members` that subscribe to one topic, and up to `faults` faults of these kinds, at any time."""

    def __init__(
        self,
        *,
        members: int,
        partitions: int,
        faults: int,
        kinds: Collection[str] = USUAL_FAULTS,
        static: bool = False,
    ) -> None:
        self._members = members
        self._faults = faults
        self._kinds = kinds
        self.steps = self._steps = Steps(partitions, kinds, static=static)
        """All steps of processes and of the coordinator that were computed."""

    def first(self) -> State:
        """Return the first state: no process runs, and the coordinator knows the topic."""
        return self._steps.first_coordinator(), (-1,) * self._members, (), self._faults

    # -- moves ---------------------------------------------------------------------------------------------

    def moves(self, state: State) -> list[Move[State]]:
        """Return all that may happen next; faults only as long as some are left."""
        found: list[Move[State]] = []
        coordinator, places, strays, left = state
        steps = self._steps
        for place, number in enumerate(places):
            before, behind = places[:place], places[place + 1 :]
            if number < 0:
                label, started, _, _, _, findings = steps.start(place, -number)
                found.append(
                    (label, (coordinator, (*before, started, *behind), strays, left), False, findings)
                )
                continue
            for local in steps.free(number):
                if local.is_plain:
                    after = coordinator, (*before, local.after, *behind), strays, left
                else:
                    after = self._by_itself(state, place, local, left)
                found.append((local.label, after, False, local.findings))
            if left:
                for local in steps.faulty(number):
                    after = self._by_itself(state, place, local, left - 1)
                    found.append((local.label, after, True, local.findings))
            known = steps.processes[number]
            if known.request >= 0:
                taken = steps.taken(coordinator, known.request)
                changed = (*before, steps.answered(number, taken.answer), *behind)
                if taken.removed:
                    changed = self._without(changed, taken.removed)
                found.append((known.takes, (taken.after, changed, strays, left), False, taken.findings))
        if strays:
            self._of_strays(state, found)
        self._of_sessions(state, found)
        if left:
            self._of_cluster(state, found)
        return found

    def _by_itself(self, state: State, place: int, local: Local, left: int) -> State:
        coordinator, places, strays, _ = state
        after = local.after
        if local.gains and local.label.who not in self._steps.sessions(coordinator):
            after = self._steps.void(after)
        if local.strays:
            strays = tuple(sorted((*strays, *local.strays)))
        if local.label.kind == "refused" and not self._is_known(state, local.label.who):
            after += 1  # the coordinator does not know of that life: it is as if it had not been
        return coordinator, (*places[:place], after, *places[place + 1 :]), strays, left

    def _is_known(self, state: State, member_id: MemberId) -> bool:
        """Return true if the coordinator knows of a member, or is going to."""
        coordinator, _, strays, _ = state
        said = self._steps.said
        late = any(said[stray].member_id == member_id for stray in strays)
        return late or member_id in self._steps.sessions(coordinator)

    def _of_strays(self, state: State, found: list[Move[State]]) -> None:
        coordinator, places, strays, left = state
        for at, stray in enumerate(strays):
            rest = strays[:at] + strays[at + 1 :]
            label = Label("stray", said=stray)
            found.append(self._at_coordinator(label, (coordinator, places, rest, left), stray))

    def _of_sessions(self, state: State, found: list[Move[State]]) -> None:
        """Add ends of sessions: those of ended processes end some time; the end of a live member's is a
        fault."""
        coordinator, places, strays, left = state
        sessions = self._steps.sessions(coordinator)
        if not sessions:
            return
        processes = self._steps.processes
        live = [processes[number].member_id for number in places if number >= 0]
        for member_id, (label, event) in sessions.items():
            if member_id not in live:
                found.append(self._at_coordinator(label, state, event))
            elif left and "expires" in self._kinds:
                spent = coordinator, places, strays, left - 1
                found.append(self._at_coordinator(label, spent, event, is_fault=True))

    def _of_cluster(self, state: State, found: list[Move[State]]) -> None:
        coordinator, places, strays, left = state
        if "failover" in self._kinds:
            broken = [self._steps.broken(number) if number >= 0 else None for number in places]
            if strays or any(broken):
                pairs = zip(places, broken, strict=True)
                after = tuple([number if local is None else local.after for number, local in pairs])
                findings = tuple([each for local in broken if local is not None for each in local.findings])
                found.append((Label("failover"), (coordinator, after, (), left - 1), True, findings))
        if "grows" in self._kinds:
            spent = coordinator, places, strays, left - 1
            event = self._steps.growth(coordinator)
            found.append(self._at_coordinator(Label("grows"), spent, event, is_fault=True))

    def _at_coordinator(
        self, label: Label, state: State, event: int, *, is_fault: bool = False
    ) -> Move[State]:
        coordinator, places, strays, left = state
        taken = self._steps.taken(coordinator, event)
        after = taken.after, self._without(places, taken.removed), strays, left
        return label, after, is_fault, taken.findings

    def _without(self, places: tuple[int, ...], removed: Iterable[MemberId]) -> tuple[int, ...]:
        """Return the processes, once some were removed from the group."""
        steps = self._steps
        for member_id in removed:
            places = tuple(
                [
                    steps.void(number)
                    if number >= 0 and steps.processes[number].member_id == member_id
                    else number
                    for number in places
                ]
            )
        return places

    # -- findings ------------------------------------------------------------------------------------------

    def findings(self, state: State) -> Iterable[Finding]:
        """Return findings: two members, neither of them fenced, that believe that they own a partition."""
        processes = self._steps.processes
        claimed = 0
        for number in state[1]:
            if number >= 0:
                claims = processes[number].claims
                if claimed & claims:
                    return self._claimed_twice(state)
                claimed |= claims
        return ()

    def _claimed_twice(self, state: State) -> Iterator[Finding]:
        living = [self._steps.processes[number] for number in state[1] if number >= 0]
        claimed = 0
        for known in living:
            if both := claimed & known.claims:
                owners = " and ".join(each.member_id for each in living if each.claims & known.claims)
                bits = [bit for bit in range(both.bit_length()) if both & 1 << bit]
                names = shown_names(TopicPartition(TOPIC, bit) for bit in bits)
                yield "one-claimant", f"{owners} believe that they own {names}, and neither is fenced"
            claimed |= known.claims

    def has_settled(self, state: State) -> bool:
        """Return true if all members run, are stable at the group's epoch, and own their targets."""
        epochs = {}
        for number in state[1]:
            if number < 0:
                return False
            known = self._steps.processes[number]
            if known.settled < 0:
                return False
            epochs[known.member_id] = known.settled
        return self._steps.epochs_if_settled(state[0]) == epochs

    # -- in words ------------------------------------------------------------------------------------------

    def told(self, label: Label) -> tuple[str, ...]:
        """Return what happens, in words."""
        return (self._told(label),)

    def _told(self, label: Label) -> str:
        kind, who, said = label
        if kind in ("takes", "stray"):
            return f"the coordinator takes {'late ' if kind == 'stray' else ''}{self._request_told(said)}"
        return _WORDS[kind].format(who)

    def _request_told(self, number: int) -> str:
        request = self._steps.said[number]
        owned = request.topic_partitions
        says = "" if owned is None else f", owns {sorted(each for some in owned.values() for each in some)}"
        return f"the heartbeat of {request.member_id}: epoch {request.member_epoch}{says}"


_WORDS = {
    "starts": "{} starts",
    "timer": "time passes for {}",
    "idles": "much time passes for {}",
    "callback": "the callback of {} returns",
    "answer": "{} gets its answer",
    "breaks": "the connection of {} breaks",
    "late": "the connection of {} breaks, and what it sent is still under way",
    "crashes": "{} crashes",
    "polls": "the application of {} polls again",
    "stalls": "the application of {} does not poll in time",
    "subscribes": "{} subscribes again",
    "unsubscribes": "{} unsubscribes",
    "closes": "{} begins to close",
    "refused": "{} can't have its place, and ends",
    "expires": "the session of {} ends",
    "failover": "the coordinator moves, and all connections break",
    "grows": FAULTS["grows"],
}
