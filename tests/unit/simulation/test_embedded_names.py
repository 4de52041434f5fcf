"""What members are called: by their instance or client ids, as they come in requests and records."""

from __future__ import annotations

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.simulation.embedded import kept_trace
from fencepost.simulation.embedded.kept_trace import MemberNames

NOBODY = JoinGroupRequest(
    group_id="g", protocol_type="consumer", protocols=(), session_timeout_ms=1, rebalance_timeout_ms=1
)


def outcome(*records: r.Record) -> Outcome:
    return Outcome(records=records)


def consumer(member_id: str, client_id: str, instance_id: str | None = None) -> r.Record:
    value = r.ConsumerGroupMemberMetadataValue(instance_id, None, client_id, "/127.0.0.1", (), None, 1, None)
    return r.Record(r.ConsumerGroupMemberMetadataKey("g", member_id), value)


def known(*steps: tuple[Event, Outcome]) -> dict[str, str]:
    found = MemberNames()
    for step in steps:
        found.note(*step)
    return dict(found.names)


def test_members_of_all_protocols_have_names() -> None:
    classic = r.GroupMetadataMember("i-1-abc", "i-1", "billing", "/127.0.0.1", 1, 1, b"", b"")
    joins = JoinGroupRequest(
        group_id="g",
        member_id="two-03ef3085-424a",
        client_id="two",
        protocol_type="consumer",
        protocols=(),
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )
    found = known(
        (NOBODY, outcome(consumer("awCBCfcdTk+b", "one"), consumer("xyzxyzxyzx", "one", "pod-7"))),
        (joins, outcome()),
        (
            NOBODY,
            outcome(
                r.Record(r.GroupMetadataKey("g"), r.GroupMetadataValue("consumer", 1, members=(classic,)))
            ),
        ),
    )
    assert found == {
        "awCBCfcdTk+b": "one awCBCfcd",
        "xyzxyzxyzx": "pod-7 xyzxyzxy",
        "two-03ef3085-424a": "two 03ef3085",
        "i-1-abc": "i-1 abc",
    }


def test_members_without_ids_of_their_own_have_none_and_those_that_go_keep_theirs() -> None:
    tombstone = r.Record(r.ConsumerGroupMemberMetadataKey("g", "m" * 22), None)
    found = known((NOBODY, outcome(consumer("m" * 22, "one"), consumer("n" * 22, ""), tombstone)))
    assert found == {"m" * 22: "one mmmmmmmm"}


def test_of_very_many_members_the_newest_are_known(monkeypatch) -> None:
    monkeypatch.setattr(kept_trace, "MOST_KNOWN", 3)
    found = known(*((NOBODY, outcome(consumer(f"member-{number}", "c"))) for number in range(5)))
    assert list(found) == ["member-2", "member-3", "member-4"]
