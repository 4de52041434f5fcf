"""A group's world with the steps that commute taken in one order only, once no fault can happen any more."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.lab.explorer.group import ExploredGroup, State
from fencepost.simulation.lab.explorer.space import Move
from fencepost.simulation.lab.explorer.steps import Label, Local


class Run(NamedTuple):
    """Steps of one process that nothing else can touch, up to the point where something can."""

    labels: tuple[Label, ...]
    after: int
    """The process then; -n if its life n is next."""
    strays: tuple[int, ...]
    """Requests that the coordinator may take from it since, although no process waits for a response."""
    findings: tuple[Finding, ...]


class ReducedGroup:
    """The same group, with fewer states on its ways: docs/explorer.md says why no violation is missed."""

    def __init__(self, world: ExploredGroup) -> None:
        self._world = world
        self._steps = world.steps
        self._runs: dict[tuple[int, int, bool], tuple[Run, ...]] = {}
        self._idle: dict[tuple[int, int], int] = {}

    def first(self) -> State:
        """Return the first state: no process runs, and the coordinator knows the topic."""
        return self._world.first()

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Yield all that may happen next, each with what follows from it by itself."""
        for label, after, is_fault, findings in self._world.moves(state):
            for following in self._run_on(after):
                yield self._joined((label,), is_fault, findings, following)
            if label.kind == "failover":
                for partly in self._partly_broken(state, after):
                    for following in self._run_on(partly):
                        yield self._joined((label,), is_fault, findings, following)

    def findings(self, state: State) -> Iterable[Finding]:
        """Return findings: two members, neither of them fenced, that believe that they own a partition."""
        return self._world.findings(state)

    def has_settled(self, state: State) -> bool:
        """Return true if the group has settled, or does once heartbeats that change nothing are answered."""
        coordinator, places, _, _ = state
        if self._world.has_settled(state):
            return True
        epochs = self._steps.epochs_if_settled(coordinator)
        if epochs is None or len(epochs) != len(places):
            return False
        return all(number >= 0 and self._is_idle(coordinator, number, epochs) for number in places)

    def told(self, label: tuple[Label, ...]) -> tuple[str, ...]:
        """Return what happens, each step in words."""
        return tuple([line for each in label for line in self._world.told(each)])

    def _is_idle(self, coordinator: int, number: int, epochs: Mapping[MemberId, int]) -> bool:
        epoch = self._idle.get((coordinator, number))
        if epoch is None:
            epoch = self._idle[coordinator, number] = self._epoch_after_answer(coordinator, number)
        return epochs.get(self._steps.processes[number].member_id) == epoch

    def _epoch_after_answer(self, coordinator: int, number: int) -> int:
        """Return the epoch in which a process has nothing to do, maybe after a heartbeat that changes
        nothing."""
        known = self._steps.processes[number]
        if known.settled >= 0 or known.request < 0:
            return known.settled
        taken = self._steps.taken(coordinator, known.request)
        if taken.after != coordinator:
            return -1
        for local in self._steps.free(self._steps.answered(number, taken.answer)):
            if local.label.kind == "answer" and local.after >= 0:
                return self._steps.processes[local.after].settled
        return -1

    # -- steps that commute --------------------------------------------------------------------------------

    def _run_on(self, state: State, way: tuple[int, ...] = ()) -> Iterator[Move[State]]:
        """Take what changes nothing any more, and let each process do what nothing else can touch."""
        coordinator, places, strays, left = state
        for at, stray in enumerate(strays):
            if self._says_nothing_any_more(state, stray):
                taken = self._steps.taken(coordinator, stray)
                rest = coordinator, places, strays[:at] + strays[at + 1 :], left
                for following in self._run_on(rest, way):
                    yield self._joined((Label("stray", said=stray),), False, taken.findings, following)
                return
        yield from self._run_on_alone(state, way)

    def _says_nothing_any_more(self, state: State, stray: int) -> bool:
        """Return true if a request comes from a member that is gone for good, and does not make it a member
        again."""
        coordinator, places, strays, _ = state
        said, processes = self._steps.said, self._steps.processes
        member_id = said[stray].member_id
        if said[stray].member_epoch == JOIN_EPOCH or member_id in self._steps.sessions(coordinator):
            return False
        if any(number >= 0 and processes[number].member_id == member_id for number in places):
            return False
        joins = (said[each] for each in strays if said[each].member_epoch == JOIN_EPOCH)
        if any(join.member_id == member_id for join in joins):
            return False
        return self._steps.taken(coordinator, stray).after == coordinator

    def _run_on_alone(self, state: State, way: tuple[int, ...]) -> Iterator[Move[State]]:
        """Let each process do what nothing else can touch; processes do not touch each other, so in any
        order.

        As long as faults may happen, those of the process itself may come before. A process that was in `way`
        already goes round in circles, and stays where it is.
        """
        coordinator, places, strays, left = state
        if not left:
            yield from self._run_on_without_faults(state)
            return
        for place, number in enumerate(places):
            is_seen = number >= 0 and number in way
            steps = () if is_seen else self._alone_in_danger(state, place, number)
            if not steps:
                continue
            for local, is_fault in steps:
                after = self._after(coordinator, local, number)
                changed = coordinator, (*places[:place], after, *places[place + 1 :]), strays, left - is_fault
                for following in self._run_on(changed, (*way, number)):
                    yield self._joined((local.label,), is_fault, local.findings, following)
            return
        yield (), state, False, ()

    @staticmethod
    def _joined(
        labels: tuple[Label, ...], is_fault: bool, findings: tuple[Finding, ...], following: Move[State]
    ) -> Move[State]:
        more, state, is_fault_then, findings_then = following
        return labels + more, state, is_fault or is_fault_then, findings + findings_then

    def _after(self, coordinator: int, local: Local, before: int) -> int:
        return self._held(local, before, local.label.who in self._steps.sessions(coordinator))

    def _held(self, local: Local, before: int, is_member: bool) -> int:
        """Return the process after a step that might as well come later: until then it holds what it
        releases."""
        after = local.after
        if after < 0 or before < 0:
            return after
        if local.gains and not is_member:
            after = self._steps.void(after)
        return self._steps.holding(after, self._steps.processes[before].claims)

    def _alone_in_danger(self, state: State, place: int, number: int) -> tuple[tuple[Local, bool], ...]:
        """Return all that a process may do next, its faults included, if nothing else can touch it before.

        A crash may as well come afterwards: there is nothing on the connection that it could keep from
        arriving, and all that the process knows is lost. The end of its session changes nothing in its steps.
        """
        coordinator, _, strays, _ = state
        if number < 0:
            return ((self._steps.start(place, -number), False),)
        known = self._steps.processes[number]
        if self._steps.broken(number) is not None or self._are_under_way(strays, known.member_id):
            return ()
        free = self._alone(place, number)
        faulty = [local for local in self._steps.faulty(number) if local.label.kind != "crashes"]
        if not free or any(local.strays or local.after < 0 for local in (*free, *faulty)):
            return ()
        if known.member_id in self._steps.sessions(coordinator) and not self._stand_removal(
            number, free, faulty
        ):
            return ()
        return (*((local, False) for local in free), *((local, True) for local in faulty))

    def _stand_removal(self, number: int, free: Sequence[Local], faulty: Sequence[Local]) -> bool:
        """Return true if a process that is removed from the group steps as it would have before."""
        steps = self._steps
        void = steps.void(number)
        for ways, other in ((free, steps.free(void)), (faulty, steps.faulty(void))):
            there = {local.label.kind: local.after for local in other}
            for local in ways:
                after = there.get(local.label.kind)
                if after is None or steps.void(after) != steps.void(local.after):
                    return False
        return True

    def _partly_broken(self, before: State, after: State) -> Iterator[State]:
        """Yield states after a failover before some of the requests under way were sent: these arrive."""
        choices = [
            (broken,) if number == broken or not self._may_be_sent_later(number) else (broken, number)
            for number, broken in zip(before[1], after[1], strict=True)
        ]
        for places in itertools.islice(itertools.product(*choices), 1, None):
            if before[2] or places != before[1]:
                yield after[0], places, after[2], after[3]

    def _may_be_sent_later(self, number: int) -> bool:
        known = self._steps.processes[number]
        return known.request >= 0 and "answer" not in self._steps.roles.known[known.role].events

    def _are_under_way(self, strays: tuple[int, ...], member_id: MemberId) -> bool:
        return any(self._steps.said[stray].member_id == member_id for stray in strays)

    def _run_on_without_faults(self, state: State) -> Iterator[Move[State]]:
        coordinator, places, strays, left = state
        found: list[tuple[tuple[Label, ...], tuple[int, ...], tuple[int, ...], tuple[Finding, ...]]]
        found = [((), (), strays, ())]
        for place, number in enumerate(places):
            runs = self._runs_of(state, place, number)
            found = [
                (
                    labels + run.labels,
                    (*done, run.after),
                    tuple(sorted(said + run.strays)) if run.strays else said,
                    wrong + run.findings,
                )
                for labels, done, said, wrong in found
                for run in runs
            ]
        for labels, done, said, wrong in found:
            after = coordinator, done, said, left
            if after == state or (said == strays and min(done) >= 0):
                yield labels, after, False, wrong
                continue
            for following in self._run_on(after):
                yield self._joined(labels, False, wrong, following)

    def _runs_of(self, state: State, place: int, number: int) -> tuple[Run, ...]:
        coordinator, _, strays, _ = state
        if number < 0:
            is_member = False
        else:
            member_id = self._steps.processes[number].member_id
            if self._are_under_way(strays, member_id):
                return (Run((), number, (), ()),)
            is_member = member_id in self._steps.sessions(coordinator)
        key = place, number, is_member
        runs = self._runs.get(key)
        if runs is None:
            runs = self._runs[key] = tuple(self._worked_out(place, number, is_member, ()))
        return runs

    def _worked_out(self, place: int, number: int, is_member: bool, way: tuple[int, ...]) -> Iterator[Run]:
        """Yield the runs of a process; no run if it could go round in circles."""
        steps = self._alone(place, number) if number not in way else ()
        if not steps:
            yield Run((), number, (), ())
            return
        for local in steps:
            after = self._held(local, number, is_member)
            if local.strays or (after < 0 <= number):
                yield Run((local.label,), after, local.strays, local.findings)
                continue
            for run in self._worked_out(place, after, is_member, (*way, number)):
                yield Run((local.label, *run.labels), run.after, run.strays, local.findings + run.findings)

    def _alone(self, place: int, number: int) -> tuple[Local, ...]:
        """Return all that a process may do next, if nothing can touch it before, or see that it is late."""
        if number < 0:
            return (self._steps.start(place, -number),)
        known = self._steps.processes[number]
        if known.request >= 0:
            return ()
        steps = self._steps.free(number)
        return () if any(local.label.kind == "refused" for local in steps) else steps
