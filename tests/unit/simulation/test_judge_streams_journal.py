"""Streams groups (KIP-1071) behind the journal's check: their records make what the coordinator has."""

from __future__ import annotations

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.simulation.judge.journal import Shadow, check_replays, compare_coordinators
from fencepost.simulation.judge.step import touched_groups
from tests.unit.simulation.test_judge_streams_groups import Scene


def test_what_members_do_is_followed() -> None:
    scene = Scene()
    shadow, seen = Shadow(scene.live.config), 0
    for step in ["join a", "wait 3", "join b", *["later 5; beat a has"] * 8, "leave b"]:
        assert scene.play(step) == set()
        records = tuple(scene.journal)[seen:]
        seen += len(records)
        assert not records or not list(shadow.follow(scene.live, records, touched_groups(records)))
    assert scene.group.group_epoch > 3
    assert list(compare_coordinators(shadow.coordinator, scene.live, "the records")) == []
    assert list(check_replays(lambda: GroupCoordinator(scene.live.config), scene.journal, scene.live)) == []


def test_a_group_that_differs_from_its_records_is_told() -> None:
    scene = Scene("join a")
    shadow = Shadow(scene.live.config)
    for record in scene.journal:
        shadow.apply(record)
    scene.live.streams.groups["g"].group_epoch += 1
    found = list(compare_coordinators(shadow.coordinator, scene.live, "the records"))
    assert found == [("journal-replay", "g: group_epoch of the records differ from the live state")]
    shadow = Shadow(scene.live.config)
    ((_, message),) = compare_coordinators(shadow.coordinator, scene.live, "the records")
    assert message == "g is there live, and missing in the records"
