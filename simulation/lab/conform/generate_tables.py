"""The tables of random schedules: what members of each kind of group do, and how often."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.lab.conform.generate import ScheduleTable

MORE_MS: Final = 500
"""Time in addition to that for which a classic group waits for its first members, in ms."""
_EPOCHS: Final = "{2 last; last; previous; older; ahead; -1; 0}"
_SHARED: Final = {
    "topic": "{x; y; z; w; m}",
    "partitions": "{2 {topic}:{number}; {topic}:{number}/{topic}:{number}}",
    "number": "{0; 1; 2; 3; 4; 6; 0+1; 2+5}",
    "owned": "{null; empty; assigned; partial; before; foreign; unknown}",
    "epochs": _EPOCHS,
    "gone": "{2 {one}; {one},{one}; {one},{one},{one}}",
    "one": "{2 {name}; stranger; @i1; @i9; {name}@i1; {name}@i9}",
    "rarely": "{19 ; lost}",
    "other": "{8 ; group=other}",
}

CONSUMER: Final = ScheduleTable(
    kind="",
    names="ABCDEFGH",
    static=dict.fromkeys("ABCDEFGH", ("i1", "i2", "")),
    once={
        "assignor": "{2 range; uniform; null; <preference>}",
        "usual": "names={names}",
        "subscription": "{7 <plain>; 3 <expressive>}",
        "changes": "{17 ; 3 yes}",
    },
    values={
        **_SHARED,
        "preference": "{range; uniform; null}",
        "plain": "{5 {usual}; 2 names={names}; names=x,x,y; names=}",
        "expressive": "{4 {plain}; 2 names= regex={regex}; 4 regex={regex}}",
        "names": "{{topic}; {topic},{topic}; {topic},{topic},{topic}}",
        "regex": "{.*; [xy]; x|z; x; q.*; [wm]; (?i)X; x.+}",
        "bad": "{(; [; *}",
        "epoch": "{2 last; 2 previous; 2 older; 2 ahead; 0; -1; -2; -3; 1; 2; 99}",
        "base": "{2 0 empty names=x rebalance_timeout_ms=60000; ; -1; -2; 5}",
        "fault": "{member_id=; member_id=blank; member_id= version=0; group=blank; group=other epoch=1; "
        "group=other epoch=-1; instance=blank; rack=; assignor=sticky; assignor=; -5; -2 instance=null; "
        "rebalance_timeout_ms=-1; null; unknown; names=null; names=null regex={bad}; names= regex=}",
    },
    begin="{new} joins {subscription} assignor={assignor}",
    rows=(
        (
            7,
            "{new} joins {subscription} assignor={assignor} {2 ; rebalance_timeout_ms=30000} {2 "
            "; rack=r1} {rarely}",
        ),
        (1, "{new} joins names={names} version=0 {member_id=; }"),
        (30, "{member} beat {35 null; 45 assigned; 8 before; 6 partial; 6 empty} {88 ; 12 lost}"),
        (5, "{all} beat assigned; {; {all} beat assigned}"),
        (
            6,
            "{member} beat {2 last; previous} {2 assigned; before} rebalance_timeout_ms=60000 {subscription}",
        ),
        (
            5,
            "{any} beat {epoch} {owned} names={2 null; ; x; m; z,x,z} regex={3 null; ; .*; "
            "{bad}} {2 ; rack=r2} "
            "{2 ; rebalance_timeout_ms=60000} {2 ; assignor=range; assignor=uniform} version={0; 3 1} "
            "{3 ; instance=i1; instance=i2} {4 ; member_id=stranger; member_id={name}} {9 ; lost}",
        ),
        (4, "{member} beat {base} {2 {fault}; {fault} {fault}} lost"),
        (
            4,
            "{member} beat {null; assigned; empty} {2 {subscription}; names=; regex=; names= regex=; "
            "assignor={range; uniform}; rack=r3; rebalance_timeout_ms=45000}",
        ),
        (2, "{member} beat -1 {9 ; lost}"),
        (
            2,
            "{member} beat -2; {; {member} beat assigned}; {heir} joins {subscription}; {last} beat assigned",
        ),
        (2, "{member} joins {subscription}"),
        (
            5,
            "{; 3 {member}} commit {epochs} topics={2 {x; y; z; w}:0; {partitions}} offset={7; 99} "
            "metadata_bytes={3 0; 10; 4096; 4097} version={2; 5; 8; 3 9; 10} {other}",
        ),
        (
            3,
            "{; {name}} fetch {epochs} {6 topics={partitions}; 4 } version={5; 7; 8; 2 9; 10} "
            "{other} {4 ; stable}",
        ),
        (0.5, "fetch topics={partitions} version=1"),
        (1, "forget topics={partitions} {other}"),
        (
            4,
            "{describe version=0; 2 describe; describe group=other; describe group=; describe_classic; "
            "describe_classic version=5; list version=2; list version=4; "
            "list states={; stable; Empty,Reconciling; nonsense} types={; Consumer; classic}}",
        ),
        (1.5, "remove members={gone} version={3; 2 5}"),
        (0.5, "remove members={name} version=2"),
        (0.7, "{delete_group {; group=other}; 2 {all} beat -1} ; describe; delete_group; describe"),
    ),
    more={
        "changes": (
            (
                5,
                "{create topic=m partitions={1; 2; 3}; 2 grow topic={topic} partitions={2; 5; 6; 8}; "
                "delete topic={topic}}; {member} beat assigned; {member} beat",
            ),
        ),
        "interval_ms": ((4, "wait {interval_ms}; {member} beat assigned; {member} beat assigned"),),
    },
    end="describe version={0; 1}; list",
)

CLASSIC: Final = ScheduleTable(
    kind="classic",
    names="ABCDE",
    static={"A": ("i1",), "B": ("i2",), "C": ("i1",)},
    once={
        "topics": "{x; y; z; w; x,y; y,z; w,x}",
        "protocols": "{range; range,sticky; sticky,range; cooperative-sticky,range}",
        "migrates": "{4 ; 6 yes}",
    },
    values={
        **_SHARED,
        "joining": "protocols={9 {protocols}; sticky,range} topics={6 {topics}; y} {4 assigned; null}",
        "version": "{4 ; version=8; version=5; version=4}",
        "round": "{; {all} classic_beat}; {all} classic_join {joining}; {all} classic_sync gives={shares}",
        "wrong": "{previous; ahead; 0; -1}",
        "modern": "{M; N} joins {topics} rebalance_timeout_ms=30000",
        "group": "{group=; group=other}",
    },
    begin="{4 ; {modern}}; {new} classic_join {joining}; {last} classic_join {joining}; await "
    "{first_ms}; {round}",
    rows=(
        (8, "{new} classic_join {joining} {version}; {last} classic_join {joining} {30 ; lost}"),
        (1, "{new} classic_join {joining} version={0; 2; 3}"),
        (16, "{round}"),
        (12, "{member} classic_beat"),
        (6, "{member} classic_join {joining} {owned}"),
        (6, "{member} classic_sync gives={shares}"),
        (
            6,
            "{name} {classic_join {joining} member_id=stranger; classic_sync member_id=stranger; "
            "classic_beat member_id=stranger; classic_sync {wrong}; classic_beat {wrong}; "
            "classic_sync instance={i1; i9}; classic_beat instance={i1; i9}; commit topics=x:0 "
            "instance={i1; i9}; "
            "classic_sync protocol={null; other}; classic_sync protocol_type={null; connect}; "
            "classic_join {joining} member_id=stranger {group}; classic_beat {group}}",
        ),
        (
            2,
            "Z classic_join {joining} {protocols=other; session_timeout_ms=1; "
            "session_timeout_ms=1000000000; "
            "protocol_type=connect}",
        ),
        (4, "remove members={member}"),
        (
            5,
            "{{; 2 {name}} commit {epochs} topics={x; y; w}:0+1 version={2; 7; 8; 3 9}; "
            "{; 2 {name}} fetch {epochs} topics={x; y; w}:0+1; forget topics={x; y; w}:0+1}",
        ),
        (
            4,
            "{describe_classic version=4; describe_classic version=5; 2 describe_classic; describe; "
            "list types={; classic; consumer}; list states={stable; "
            "PreparingRebalance,CompletingRebalance}}",
        ),
        (1.5, "remove members={gone}"),
        (
            0.7,
            "remove members={all},M,N; describe_classic; {; delete_group}; {new} classic_join {joining}; "
            "{last} classic_join {joining}; await {first_ms}",
        ),
    ),
    more={"migrates": ((5, "{modern}"), (12, "{M; N} beat assigned"), (4, "{M; N} beat -1"))},
    end="describe; describe_classic; list",
)

STREAMS: Final = ScheduleTable(
    kind="streams",
    names="ABCDEF",
    static={},
    once={
        "topology": "{85 {good}; 15 {bad}}",
        "endpoint": "{8 ; 2 endpoint=host-<process>}",
        "changes": "{7 ; 3 yes}",
    },
    values={
        **_SHARED,
        "good": "{2 simple; two; stateful; count; joined}",
        "bad": "{missing; uneven; fixed; loop; unfed; nothing; sized; internal; misnamed; regex; index}",
        "starts": "starts {topology} process={process} {endpoint}",
    },
    begin="{6 ; 4 configure values=streams.num.standby.replicas:{2 1; 2}}; {new} {starts}",
    rows=(
        (8, "{2 {new}; {any}} {starts} {9 ; tags=zone:a} {rarely}"),
        (25, "{name} streams_beat {null; 2 assigned} {2 ; endpoint_epoch=1; endpoint_epoch=99}"),
        (10, "{all} streams_beat assigned"),
        (5, "{name} streams_beat {last; last; previous; previous; older; ahead} {owned} {4 ; lost}"),
        (3, "{9 {name}; stranger} streams_beat -1 {9 ; shutdown}"),
        (
            2,
            "{name} {starts} {2 ; process={p; q; r}} {4 ; topology={good}} {8 ; "
            "topology_epoch=-1; topology_epoch=1}",
        ),
        (1, "{name} streams_beat assigned shutdown; {name} streams_beat; {name} streams_beat"),
        (
            2,
            "{name} {streams_beat incomplete assigned; streams_beat instance=i; streams_beat rack=blank; "
            "streams_beat -2; streams_beat -3; streams_beat topology={topology}; streams_beat group=blank; "
            "{starts} rebalance_timeout_ms=-1; {starts} topology=null; {starts} owned=unknown; 3 "
            "{starts} topology={bad}; "
            "streams_beat group=other; streams_beat member_id=}",
        ),
        (4, "{; 2 {name}} {3 commit {epochs} version={8; 2 9}; 2 fetch {epochs}} topics={x; y; w}:0+1"),
        (
            3,
            "{2 describe_streams; describe_streams group=other; "
            "list states={; stable; not_ready,empty} types=Streams}",
        ),
        (1, "configure values=streams.num.standby.replicas:{0; 1; 2; 2; 3}; {all} streams_beat assigned"),
        (0.7, "{delete_group; 2 {all} streams_beat -1}; describe_streams; delete_group; describe_streams"),
    ),
    more={
        "changes": (
            (
                5,
                "{create topic={m; n} partitions={1; 2; 3}; grow topic={x; y; w} partitions={5; 6; 7; 8}; "
                "delete topic={x; y; w; m}}; {name} streams_beat; {all} streams_beat assigned",
            ),
        ),
    },
    end="describe_streams; list types=streams",
)
