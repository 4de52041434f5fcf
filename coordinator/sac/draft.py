"""One group as a step changes it: the rules by which its active consumer is chosen.

Nothing here is true before the group's record is applied. The rules are those of RabbitMQ's stream
coordinator in its machine version 7, its oddities included; docs/sac.md names them.
"""

from __future__ import annotations

from collections.abc import Collection

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.sac_records import SacConsumer, SacGroupKey, SacGroupValue
from fencepost.coordinator.sac.states import SAC_CONSUMER_TABLE, ConsumerEvent

# Module-level names: in Python 3.11 an attribute of an enum class costs as much as a call.
UNREGISTERED, C_WAITING, C_ACTIVE, C_DEACTIVATING, D_WAITING, D_ACTIVE, F_WAITING, F_ACTIVE = (
    sac.ConsumerStatus
)
ACTIVE = (C_ACTIVE, C_DEACTIVATING, D_ACTIVE)
CONNECTED = (C_WAITING, C_ACTIVE, C_DEACTIVATING)
"""Consumers that may be chosen."""
DISCONNECTED = (D_WAITING, D_ACTIVE)
"""Consumers whose timer runs."""

_E = ConsumerEvent


def is_active(status: sac.ConsumerStatus) -> bool:
    """Return true if the consumer is active as far as the group knows: no other may become active."""
    return status in ACTIVE


class GroupDraft:
    """A group while it changes. `effects` has the messages to its connections, in order."""

    __slots__ = ("_now_ms", "changed", "consumers", "effects", "key", "partition_index")

    def __init__(self, key: SacGroupKey, value: SacGroupValue, now_ms: int) -> None:
        self.key = key
        self.partition_index = value.partition_index
        self.consumers = list(value.consumers)
        self.effects: list[sac.SacEffect] = []
        self.changed = False
        self._now_ms = now_ms

    def value(self) -> SacGroupValue | None:
        """Return the group's present record; None for a group without members, which ends."""
        return SacGroupValue(self.partition_index, tuple(self.consumers)) if self.consumers else None

    # -- active and waiting consumers -----------------------------------------------------------------------

    def current(self) -> int | None:
        """Return the place of the active consumer; None without one."""
        statuses = [each.status for each in self.consumers]
        # Searches of a list take a tenth of the time of a loop, and groups may have thousands of consumers.
        places = [statuses.index(each) for each in ACTIVE if each in statuses]
        return min(places, default=None)

    def target(self) -> int | None:
        """Return the place of the consumer that should be active.

        A disconnected active consumer blocks each choice: it may be consuming, and can't be told to stop.
        Otherwise it is the first connected one, or in a super stream the one at partition index modulo their
        number.
        """
        statuses = [each.status for each in self.consumers]
        if D_ACTIVE in statuses:
            return statuses.index(D_ACTIVE)
        eligible = [place for place, status in enumerate(statuses) if status in CONNECTED]
        if not eligible or self.partition_index < sac.SIMPLE:
            return None
        return eligible[0 if self.partition_index == sac.SIMPLE else self.partition_index % len(eligible)]

    def places_of(self, connection: sac.ConnectionId) -> list[int]:
        """Return the places of the connection's consumers."""
        return [place for place, each in enumerate(self.consumers) if each.connection == connection]

    # -- one consumer ---------------------------------------------------------------------------------------

    def _move(self, place: int, event: ConsumerEvent, target: sac.ConsumerStatus) -> None:
        """Set a status, along an arrow of the table; an unchanged status needs no arrow."""
        one = self.consumers[place]
        SAC_CONSUMER_TABLE.check(one.status, event, target)
        self.consumers[place] = SacConsumer(
            one.connection, one.subscription_id, one.owner, target, self._now_ms
        )
        self.changed = True

    def _notify(self, place: int, *, active: bool) -> None:
        one = self.consumers[place]
        self.effects.append(
            sac.NotifyConsumer(
                connection=one.connection,
                subscription_id=one.subscription_id,
                stream=self.key.stream,
                consumer_name=self.key.consumer_name,
                active=active,
                stepping_down=not active,
            )
        )

    def _activate(self, place: int) -> None:
        if self.consumers[place].status is not C_ACTIVE:
            self._move(place, _E.ACTIVATED, C_ACTIVE)

    def _release(self, place: int) -> None:
        if self.consumers[place].status in (C_ACTIVE, C_DEACTIVATING):
            self._move(place, _E.RELEASED, C_WAITING)

    # -- choices --------------------------------------------------------------------------------------------

    def _promote(self) -> None:
        """In a simple group, make the first connected consumer active, unless blocked. The others wait."""
        target = self.target()
        if target is not None and self.consumers[target].status in CONNECTED:
            for place in range(len(self.consumers)):
                if place != target:
                    self._release(place)
            self._activate(target)
        current = self.current()
        if current is not None:
            self._notify(current, active=True)

    def _hand_over(self) -> None:
        """In a super stream, bring the right consumer to be active: the wrong one has to step down before."""
        current = self.current()
        if current is not None:
            self._step_down_if_wrong(current)
        elif (target := self.target()) is not None:
            self._activate(target)
            self._notify(target, active=True)

    def _step_down_if_wrong(self, current: int) -> None:
        target = self.target()
        if target is not None and target != current:
            self._move(current, _E.STEP_DOWN_ASKED, C_DEACTIVATING)
            self._notify(current, active=False)

    def rebalance(self) -> None:
        """Bring the right consumer to be active. An active one of a simple group stays, and moves to the
        front."""
        if self.partition_index > sac.SIMPLE:
            self._hand_over()
        elif self.partition_index == sac.SIMPLE:
            current = self.current()
            if current is None:
                self._promote()
            elif current:
                self.consumers.insert(0, self.consumers.pop(current))
                self.changed = True

    # -- commands and events --------------------------------------------------------------------------------

    def register(self, command: sac.RegisterConsumer, present: int) -> bool:
        """Add a consumer, and return true if it is active. A consumer that is already registered is
        unchanged. `present` is the number of consumers that the connection has in the group."""
        known = self._known_place(command.connection, command.subscription_id, present)
        if self.partition_index == sac.SIMPLE:
            first = self.current() is None
            if known is None:
                known = self._add(command, C_ACTIVE if first else C_WAITING)
            if first:
                self._notify(known, active=True)
            return first
        if not self.consumers:
            self._notify(self._add(command, C_ACTIVE), active=True)
            return True
        if known is None:
            known = self._add(command, C_WAITING)
        self.rebalance()
        return is_active(self.consumers[known].status)

    def _place_of(self, connection: sac.ConnectionId, subscription_id: int) -> int | None:
        for place, one in enumerate(self.consumers):
            if one.connection == connection and one.subscription_id == subscription_id:
                return place
        return None

    def _known_place(self, connection: sac.ConnectionId, subscription_id: int, present: int) -> int | None:
        """Do the same as `_place_of`, from the end: the newest consumers of a connection are near it."""
        place = len(self.consumers)
        while present:
            place -= 1
            one = self.consumers[place]
            if one.connection == connection:
                if one.subscription_id == subscription_id:
                    return place
                present -= 1
        return None

    def _add(self, command: sac.RegisterConsumer, status: sac.ConsumerStatus) -> int:
        SAC_CONSUMER_TABLE.check(UNREGISTERED, _E.REGISTERED, status)
        self.consumers.append(
            SacConsumer(command.connection, command.subscription_id, command.owner, status, self._now_ms)
        )
        self.changed = True
        return len(self.consumers) - 1

    def unregister(self, connection: sac.ConnectionId, subscription_id: int) -> None:
        """Remove one consumer, if it is there."""
        place = self._place_of(connection, subscription_id)
        if place is not None:
            self._remove([place])

    def end_connection(self, connection: sac.ConnectionId) -> None:
        """Remove all consumers of a connection that ended. Without any, the group is unchanged."""
        if places := self.places_of(connection):
            self._remove(places)

    def _remove(self, places: Collection[int]) -> None:
        """Remove consumers, and choose again. None has to step down if the active one was removed."""
        gone = set(places)
        active_removed = any(is_active(self.consumers[place].status) for place in gone)
        self.consumers = [one for place, one in enumerate(self.consumers) if place not in gone]
        self.changed = True
        if self.partition_index == sac.SIMPLE:
            if active_removed:
                self._promote()
        elif active_removed or self.current() is not None:
            self._hand_over()

    def lose_connection(self, connection: sac.ConnectionId) -> None:
        """Disconnect a connection whose node can't be reached. If a consumer was stepping down, choose again:
        it will not respond."""
        stepping_down = False
        for place in self.places_of(connection):
            status = self.consumers[place].status
            active = status in (C_ACTIVE, D_ACTIVE, F_ACTIVE)
            stepping_down = stepping_down or status is C_DEACTIVATING
            self._move(place, _E.CONNECTION_LOST, D_ACTIVE if active else D_WAITING)
        if stepping_down:
            self.rebalance()

    def forget(self, connection: sac.ConnectionId) -> None:
        """End a connection's timeout: the group continues without its disconnected consumers."""
        forgotten = False
        for place in self.places_of(connection):
            status = self.consumers[place].status
            if status in DISCONNECTED:
                self._move(place, _E.TIMED_OUT, F_ACTIVE if status is D_ACTIVE else F_WAITING)
                forgotten = True
        if forgotten:
            self.rebalance()

    def reconnect(self, connection: sac.ConnectionId) -> None:
        """Connect a connection again. If it was forgotten while active, the active consumer is unknown: all
        step down."""
        mine = self.places_of(connection)
        if any(self.consumers[place].status is F_ACTIVE for place in mine):
            self._reconcile(mine)
            return
        for place in mine:
            status = self.consumers[place].status
            if status not in CONNECTED:
                self._move(place, _E.RETURNED, C_ACTIVE if status is D_ACTIVE else C_WAITING)
        if mine:
            self.rebalance()

    def _reconcile(self, mine: list[int]) -> None:
        blocked = any(one.status is D_ACTIVE for one in self.consumers)
        for place, one in enumerate(self.consumers):
            status = one.status
            if (status is F_ACTIVE and place in mine) or (status is C_ACTIVE and not blocked):
                self._move(place, _E.RECONCILED, C_WAITING)
                self._notify(place, active=False)
            elif status is F_WAITING and place in mine and not blocked:
                self._move(place, _E.RETURNED, C_WAITING)

    def activate(self) -> None:
        """Choose among the connected consumers, whichever was active; notify the chosen one if it was not."""
        current, target = self.current(), self.target()
        stays = target is not None and target == current and self.consumers[target].status is C_ACTIVE
        for place in range(len(self.consumers)):
            if place != target or not stays:
                self._release(place)
        if target is not None and not stays and self.consumers[target].status in CONNECTED:
            self._activate(target)
            self._notify(target, active=True)

    def evaluate(self, dead: Collection[sac.ConnectionId]) -> None:
        """Keep those that are connected and not dead, and choose again."""
        kept = [one for one in self.consumers if one.status in CONNECTED and one.connection not in dead]
        self.changed = self.changed or len(kept) != len(self.consumers)
        self.consumers = kept
        self.rebalance()
