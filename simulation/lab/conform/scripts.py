"""Scripted schedules: cases that random ones rarely meet, and cases that take time.

`steps` says how to read them. Topics x, y, z and w exist, with 4, 3, 1 and 6 partitions; m does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.lab.conform.generate import TOPICS
from fencepost.simulation.lab.conform.schedule import Schedule
from fencepost.simulation.lab.conform.steps import scripts_of, steps

_SHORT_MS: Final = 1_000
"""A session timeout that is short enough to wait for, in ms."""
_FULL_AT_MOST: Final = 20

_NAMED: Final = """
# *pair
A,A classic_join; await 10000; A classic_sync; B,B classic_join; A classic_beat; A classic_join; await 10000
# *stable
*pair; A,B classic_sync gives=A:x:0+1|B:x:2+3
# *static_pair
A@i1 classic_join; await 10000; A@i1 classic_sync; B@i2 classic_join; A@i1 classic_beat; A@i1 classic_join
await 10000; A@i1 classic_sync gives=A:x:0+1|B:x:2+3; B@i2 classic_sync
# *cooperative
A,A classic_join; await 10000; A classic_sync gives=A:x:0+1+2+3; B,B classic_join; A classic_beat
A classic_join assigned; A classic_sync gives=A:x:0+1; B classic_sync
"""
"""Beginnings: two members, or two static ones, in generation 2; members that revoke."""

_SPACING: Final = """
# expressions are resolved every ten seconds
configure values=consumer.session.timeout.ms:45000; A joins regex=x; A beat assigned; B joins regex=[xy]
B,A beat assigned; describe; wait 2500; A,B beat assigned; wait 2500; A,B beat assigned; wait 2500
A,B beat assigned; wait 2800; A,B,A,B,A beat assigned
"""
"""A script that takes long: it comes first."""

_SESSIONS: Final = """
# a session ends
configure values=consumer.session.timeout.ms:1000; A,B joins x; wait 500; A beat assigned; wait 500
A beat assigned; wait 500; describe; A,B beat assigned; wait 1300; describe; A beat assigned; A joins x
# commits keep nobody alive
configure values=consumer.session.timeout.ms:1000; A joins x; wait 700; A commit topics=x:0; wait 700
A commit topics=x:0; describe
# a static member does not return
configure values=consumer.session.timeout.ms:1000; A@i1,B joins x; A,B,A,B beat assigned; wait 500
A@i1 beat -2; B beat assigned; describe; wait 800; describe; B beat assigned; C@i1 joins x
# a static member returns in time
configure values=consumer.session.timeout.ms:1000; A@i1 joins x; wait 500; A@i1 beat -2; wait 200
B@i1 joins x; wait 500; B beat assigned; wait 200; describe; A@i1 beat assigned
# an expression matches nothing until sessions end
configure values=consumer.session.timeout.ms:1000; A joins regex=[xy]; B joins x,y; A,B,A,B beat assigned
A beat regex=x.+; A beat assigned
"""
"""Scripts that need short sessions."""

_SCRIPTS: Final = """
# rebalance time-out
A joins x,y rebalance_timeout_ms=500; B joins x,y; A beat assigned; A beat; wait 800; describe
A,B beat assigned; A joins x,y
# rebalance time-out, in time
A joins x,y rebalance_timeout_ms=800; B joins x,y; A beat; wait 300; A beat assigned; wait 800
A,B beat assigned
# targets are batched
configure values=consumer.assignment.interval.ms:1000; A,B joins x; describe; list states=assigning
A,B beat assigned; C@i1 joins x; B beat -1; wait 1300; A,C,A,C beat assigned; A beat names=y; C@i1 beat -2
D@i1 joins x; describe; wait 1300; D,A,A beat assigned; A,D beat -1; describe; E joins x; describe
# settings of a group
A joins x; configure values=consumer.heartbeat.interval.ms:LOW; A beat assigned
configure values=consumer.heartbeat.interval.ms:BELOW
configure values=consumer.heartbeat.interval.ms:ABOVE; configure values=consumer.heartbeat.interval.ms:soon
configure values=consumer.session.timeout.ms:60001; A beat assigned
# offsets without a group
commit 3 topics=x:0+1; commit 3 topics=x:0+1 version=8; commit topics=x:0/m:0/z:7 offset=5
fetch topics=x:0+1/z:7/m:0; fetch; list; list types=classic; list types=consumer; list states=EMPTY
describe; A commit 3 topics=x:0+1; commit topics=x:0+1 offset=6 version=2; A fetch -1 topics=x:0+1
A fetch 3 topics=x:0+1; forget topics=x:1+9/m:0/y:0; fetch; delete_group; delete_group; fetch
forget topics=x:0+1
# a simple group becomes a consumer group
commit topics=x:0/y:0 offset=5; A joins x; describe; A fetch; commit topics=x:0; A commit ahead topics=x:0
A commit topics=x:0 offset=7; forget topics=x:0/y:0; A fetch; A beat -1; fetch; commit topics=x:0 offset=9
forget topics=x:0+1; describe; delete_group; list
# offsets of members
A joins x; A commit topics=x:0 offset=2 version=2; A commit topics=x:0 offset=5 version=5
A commit topics=x:0 offset=6 version=6; A commit topics=x:0 offset=7 version=7
A commit topics=x:0 offset=8 version=8; A commit topics=x:0 offset=9
A commit topics=x:0 offset=10 version=10; A commit -1 topics=x:0; A commit 0 topics=x:0
A commit 1 topics=x:0; A commit 99 topics=x:0; B commit 2 topics=x:0; A@nobody commit topics=x:0
A commit topics=x:0+9/y:0; A commit topics=x:0/m:0 version=10; A commit topics=x:0 metadata_bytes=4096
A commit topics=x:0 metadata_bytes=4097; A fetch topics=x:0; A fetch -1 topics=x:0; A fetch 0 topics=x:0
A fetch 1 topics=x:0; A fetch 99 topics=x:0; B fetch 2 topics=x:0; fetch topics=x:0 version=1
fetch topics=x:0 version=2; fetch topics=x:0 version=6; fetch topics=x:0 version=7
fetch topics=x:0 version=8; fetch topics=x:0; fetch topics=x:0 version=10; fetch version=2; fetch version=7
fetch version=8; fetch version=10; fetch topics=x:0 stable
# old epochs commit what they hold
A joins x,y; B joins x; A,B,A beat assigned; A commit previous topics=x:0; A commit previous topics=x:3
A commit previous topics=x:0+3; A commit 1 topics=x:0; B beat -1; A,A beat assigned
A commit previous topics=x:3; A commit older topics=x:3; A commit older topics=x:0; A commit topics=x:3
# a revocation step by step
A,B joins x; A beat; describe; A beat; A beat before; B beat; A commit topics=x:3; A beat assigned; B beat
B beat assigned; describe
# a target changes while a member revokes
A,B joins x,w; A beat; C joins x,w; A beat; A beat partial; A beat names=w; describe; A beat assigned
B beat -1; A,C,A,C,A beat assigned
# a member that revoked waits for another
A joins x; D joins w; B joins x; A beat; A beat names=x,w; A beat assigned; describe; D beat
A,D,A,B beat assigned
# a static member goes while it revokes
A@i1,B joins x; A@i1 beat; describe; A@i1 beat -2; describe; B,B beat assigned; C@i1 joins x
C,B beat assigned
# lost answers
A joins x lost; A,B joins x; A beat empty lost; A beat; A beat assigned; A beat empty
A beat empty names=x rebalance_timeout_ms=60000; A,B beat assigned; C joins x; B beat empty lost
B beat empty previous names=x rebalance_timeout_ms=60000; B,B beat empty lost; B beat; B beat -1 lost
B beat -1
# static members come and go
A@i1,A@i1,B@i1,B@i2 joins x; A,A@i1,A@i2,A@i3 beat assigned; A,A@i3,A@i2 beat -2; A@i2 beat -1; C joins x
A beat; describe; A@i1,A@i1 beat -2; A@i1 beat; A commit 2 topics=x:0; describe; B,C beat assigned
D@i1 joins x; D,B,C,D beat assigned; A@i1 beat 3; D@i1 beat -2; D@i1 joins x; D@i1 beat -2; E@i1 joins x,y
E,B,C beat assigned; E beat -1; F@i1 joins x
# expressions
A joins regex=[xy]; A,A beat assigned; B joins regex=[xy]; A,B,A,B beat assigned; A beat regex=(
A beat names=z regex=[xy]; B beat regex=; A,B beat assigned; B beat regex=[xy]; A,B,A,B beat assigned
B beat names=; A beat regex=; A beat names= regex=; A,B beat assigned; B beat regex=nothing
B,A,B beat assigned; B beat -1; C joins x regex=[xy]; C beat assigned; C beat names= regex=
C,C beat assigned; C beat assigned regex=y|z; C beat assigned previous names=x; D joins m; D,D beat assigned
D beat assigned regex=y|w; D beat assigned previous; C beat names= regex=; C,C beat assigned
C beat regex=z|w; C beat
# an expression instead of another's names
A@i1 joins regex=.*; B@i2 joins x,y; B@i2 beat -2; A@i2 joins regex=[wm]; A@i2 beat assigned
# topics come and go
A joins x,m; B joins regex=[xm].*; A,B,A,B beat assigned; create topic=m partitions=2
create topic=m partitions=2; A,B,A,B beat assigned; A commit topics=x:0/m:1; grow topic=x partitions=6
grow topic=x partitions=6; B,A,B,A beat assigned; delete topic=m; delete topic=m; describe
A,B beat assigned; fetch; create topic=m partitions=1; B,A beat assigned; fetch topics=m:0+1
fetch topics=m:0 version=10; delete topic=x; A,B,A beat assigned
# administrators remove members
remove members=A; A,B@i1,C@i2,D joins x; remove members=nobody,@i9,A@i1; remove members=@i1,C@i2,A; describe
D,A beat assigned; remove members=D version=2; remove members=D version=2; describe
# a member prefers another assignor
A joins x; A beat assignor=uniform; A beat assigned; B joins x assignor=uniform; A,B beat assigned
# the life of a group
describe; describe_classic; list; delete_group; A beat 1; A beat -1; A joins x; describe_classic
describe_classic version=5; delete_group; A beat assigned; describe version=0; A beat -1; describe
A beat -1; B joins x; describe; B beat -1; delete_group; describe; C joins x
"""
"""Scripts of consumer groups."""

_CLASSIC: Final = """
# classic: time to join is over
A,A classic_join rebalance_timeout_ms=600; await 10000; A classic_sync
B,B classic_join rebalance_timeout_ms=600; A classic_beat; A classic_join rebalance_timeout_ms=600
await 10000; A,B classic_sync gives=A:x:0+1|B:x:2+3; A classic_join rebalance_timeout_ms=600; wait 900
describe_classic; A,B classic_beat; A classic_sync gives=A:x:0+1+2+3
# classic: time to join is over for a leader
A,A classic_join rebalance_timeout_ms=600; await 10000; A classic_sync
B,B classic_join rebalance_timeout_ms=600; A classic_beat; A classic_join rebalance_timeout_ms=600
await 10000; A,B classic_sync gives=A:x:0+1|B:x:2+3; C,C,B classic_join rebalance_timeout_ms=600; wait 900
A,B,C classic_beat; describe_classic
# classic: time to sync is over
A,A classic_join rebalance_timeout_ms=600; await 10000; A classic_sync
B,B classic_join rebalance_timeout_ms=600; A classic_beat; A classic_join rebalance_timeout_ms=600
await 10000; B classic_sync; wait 900; describe_classic; A,B classic_beat
B classic_join rebalance_timeout_ms=600; await 10000
# classic: who is refused
A classic_join group=; A classic_join session_timeout_ms=1; A classic_join member_id=stranger
A classic_join protocols=; A classic_join protocol_type=; A classic_sync member_id=stranger
A classic_sync protocol=range member_id=stranger; A classic_sync protocol=range group=
A classic_beat group=; A classic_beat; remove members=stranger; A,A classic_join; await 10000
A classic_sync member_id=stranger; B classic_join protocols=sticky; B classic_join protocol_type=connect
B,B@i1 classic_join member_id=stranger; A@i1 classic_beat; A@i1 classic_sync; remove members=stranger,@i9
delete_group; describe; list types=classic; list states=PreparingRebalance,CompletingRebalance
# classic: generations
*pair; describe_classic; A commit topics=x:0; A classic_beat; B classic_sync
A classic_sync gives=A:x:0+1|B:x:2+3; describe_classic; A classic_beat previous; A classic_beat ahead
A@i classic_beat; A classic_sync previous; A classic_sync protocol=sticky; A classic_sync protocol_type=null
A,B classic_sync; A commit topics=x:0; A commit previous topics=x:0; A commit topics=x:0 version=8
A@nobody commit topics=x:0; stranger commit 2 topics=x:0; commit topics=x:0; fetch; A fetch topics=x:0
forget topics=x:0/y:0; B classic_join; C classic_join protocols=sticky; remove members=B,B; A classic_beat
A commit topics=x:0; A classic_join; A classic_sync; remove members=A; describe_classic; commit topics=x:0
A classic_beat; list; delete_group; describe_classic
# classic: what members had is shown until the next generation
*stable; A classic_join; B classic_beat; describe_classic; describe_classic version=5; B classic_join
describe_classic; B classic_sync; A classic_sync gives=B:x:0+1+2+3; describe_classic
# classic: an id that was given out
A@i1 classic_join; await 10000; B classic_join; remove members=A@i1; wait 600; describe_classic
remove members=B; describe_classic; C,C classic_join; await 10000; C classic_sync; D classic_join
C classic_join topics=y; describe_classic; remove members=D; await 10000; describe_classic
# classic: a tie of range and sticky
A,A classic_join protocols=range,sticky; await 10000; A classic_sync
B,B classic_join protocols=sticky,range; A classic_beat; A classic_join protocols=range,sticky
B,A classic_sync
# classic: a tie of cooperative-sticky and range
A,A classic_join protocols=cooperative-sticky,range; await 10000; A classic_sync
B,B classic_join protocols=range,cooperative-sticky; A classic_beat
A classic_join protocols=cooperative-sticky,range; B,A classic_sync
# classic: a tie of roundrobin and cooperative-sticky
A,A classic_join protocols=roundrobin,cooperative-sticky; await 10000; A classic_sync
B,B classic_join protocols=cooperative-sticky,roundrobin; A classic_beat
A classic_join protocols=roundrobin,cooperative-sticky; B,A classic_sync
# classic: a tie of three
A,A classic_join protocols=b,a,c; await 10000; A classic_sync; B,B classic_join protocols=c,a,b
A classic_beat; A classic_join protocols=b,a,c; B,A classic_sync
# classic: static members
*static_pair; describe_classic; D@i2 classic_join; D@i2 classic_sync; B@i2,B@i1 classic_beat
A@i2 classic_sync; A@i2 classic_join; A@i2 commit topics=x:0; C@i1 classic_join; E@i1 classic_join version=8
describe_classic; remove members=@i2,stranger@i1; E@i1 classic_beat
# classic: a static member returns with something else
*static_pair; D@i2 classic_join protocols=range,sticky; D@i2 classic_sync; E@i1 classic_join topics=y
D@i2 classic_join protocols=sticky,range; D@i2,E@i2 classic_sync; F@i1,G@i2 classic_join protocols=sticky
describe_classic; H@i1 classic_join protocols=sticky; describe_classic
# classic: old versions
A classic_join version=0; await 10000; A classic_sync version=0; A classic_beat version=0
B classic_join version=3; A classic_beat version=2; A classic_join version=1
A classic_sync gives=A:x:0+1|B:x:2+3 version=4; B classic_sync version=3; A commit topics=x:0 version=2
B commit topics=x:1 version=7; describe_classic version=4; C@i1 classic_join version=5
A,B classic_join version=6; remove members=B version=2; A,C classic_join version=7
remove members=stranger version=1
# classic: another protocol type
A,A classic_join protocols=default protocol_type=connect malformed; await 10000
A classic_sync gives=A:x:0+1+2+3 protocol_type=connect; describe_classic; list
M joins x rebalance_timeout_ms=30000; A commit topics=x:0; forget topics=x:0; remove members=A
describe_classic; forget topics=x:0
# classic: a member waits twice
A,A classic_join; await 10000; A classic_sync; B,B classic_join; B classic_join topics=x,y; A classic_join
B,B classic_sync; A classic_sync gives=A:x:0+1|B:x:2+3
# classic: a member leaves while it waits
*pair; B classic_sync; remove members=B; A,C,C classic_join; remove members=C; A classic_beat
# classic: a leader leaves
*stable; C,C,D,D,A,B classic_join; B,C,D classic_sync; remove members=A; B,C,D classic_join
B,C,D classic_sync gives=C:x:0+1+2+3; describe_classic
# classic: a static member takes over while it waits
*static_pair; A@i1 classic_join topics=y; C@i1,B@i2 classic_join; B@i2 classic_sync; D@i2,C@i1 classic_join
describe_classic
# migration: classic members keep nobody waiting
A,A classic_join rebalance_timeout_ms=600; await 10000; A classic_sync gives=A:x:0+1+2+3
M joins x rebalance_timeout_ms=30000; A classic_beat; wait 900; describe; A classic_beat; M beat assigned
B,B classic_join rebalance_timeout_ms=600; wait 900; describe
# migration: there and back
*stable; M joins x rebalance_timeout_ms=30000; describe_classic; describe; list types=consumer
A,B classic_beat; A commit topics=x:0; A classic_beat ahead; A classic_sync protocol=sticky; A classic_sync
A classic_beat member_id=M; C classic_join protocols=sticky; C classic_join member_id=M; A classic_beat
A classic_join; A classic_sync; A,B classic_beat; B classic_join; B classic_sync; B classic_beat
M beat assigned; A classic_beat; A classic_join; A classic_sync; A,B classic_beat; B classic_join
B classic_sync; B classic_beat; M beat assigned; describe; C,C classic_join; C classic_sync; A classic_beat
A classic_join; A classic_sync; A,B classic_beat; B classic_join; B classic_sync; B,C classic_beat
C classic_join; C classic_sync; C classic_beat; M beat assigned; A classic_beat; A classic_join
A classic_sync; A,B classic_beat; B classic_join; B classic_sync; B,C classic_beat; C classic_join
C classic_sync; C classic_beat; C commit topics=x:0; C commit ahead topics=x:0; remove members=C
A classic_beat; A classic_join; A classic_sync; A,B classic_beat; B classic_join; B classic_sync
B classic_beat; M beat -1; describe_classic; A,B classic_beat; A,B classic_join
A,B classic_sync gives=A:x:0+1|B:x:2+3; describe_classic
# migration: an administrator ends it
A,A classic_join; await 10000; A classic_sync gives=A:x:0+1+2+3; M,N joins x rebalance_timeout_ms=30000
A classic_beat; A classic_join; A classic_sync; A classic_beat; remove members=M,N; describe_classic
A classic_beat; A classic_join; A classic_sync
# migration: cooperative members
A,A classic_join protocols=cooperative-sticky topics=x,y; await 10000
A classic_sync gives=A:x:0+1+2+3/y:0+1+2; M joins x,y rebalance_timeout_ms=30000; A classic_beat
A classic_join assigned protocols=cooperative-sticky topics=x,y; A classic_sync; A classic_beat
A classic_join before protocols=cooperative-sticky topics=x,y
A classic_join assigned protocols=cooperative-sticky topics=x,y; A classic_sync; M beat assigned
A classic_beat; A classic_join assigned protocols=cooperative-sticky topics=y; A classic_sync; describe
# migration: a cooperative member still has what it is to let go
*cooperative; M joins x rebalance_timeout_ms=30000; A classic_beat; A commit topics=x:2+3
A classic_join before; A classic_sync; M beat
# migration: a cooperative member has said that it still has it
*cooperative; A classic_join before; B classic_beat; M joins x rebalance_timeout_ms=30000
A commit topics=x:2+3; A classic_join before; A classic_sync; M beat
# migration: in a round
*stable; B,A classic_join assigned; M joins x rebalance_timeout_ms=30000; A classic_beat; describe
# migration: a round was broken off
*stable; B,A classic_join assigned; B classic_join assigned topics=x,other; A classic_beat
M joins x rebalance_timeout_ms=30000; A classic_beat; describe
# migration: members wait
*stable; B classic_join topics=x,y; M joins x rebalance_timeout_ms=30000; A classic_beat; A classic_join
A classic_sync; A,B classic_beat; B classic_join; B classic_sync; B classic_beat; M beat -1
A,B classic_join; B classic_sync; N joins x rebalance_timeout_ms=30000; A,B classic_beat; describe
# migration: a static member goes to the newer protocol and back
*static_pair; M@i1 joins x rebalance_timeout_ms=30000; describe_classic; describe; B@i2,A@i1 classic_beat
M beat assigned; N@i2 joins x rebalance_timeout_ms=30000; B@i2 classic_beat; N@i2 beat -2; D@i2 classic_join
D@i2 classic_sync; D@i2 classic_beat; M@i1 beat -2; C@i1 classic_join; describe_classic; C@i1 classic_sync
D@i2 classic_beat
# migration: a static member ends a round
*static_pair; B@i2 classic_join topics=x,y; A@i1 classic_join; M@i1 joins x rebalance_timeout_ms=30000
B@i2 classic_beat
# migration: a static member finds a grown topic
A@i1 classic_join; await 10000; A@i1 classic_sync gives=A:x:0+1+2+3; grow topic=x partitions=6
M@i1 joins x rebalance_timeout_ms=30000; M beat assigned
# migration: a static member returns while members wait
M@i1 joins x rebalance_timeout_ms=30000; B@i2 classic_join; B@i2 classic_sync
N joins x rebalance_timeout_ms=30000; N beat -1; M@i1 beat -2; C@i1 classic_join; B@i2 classic_beat
# migration: data of an assignor
A,A classic_join; await 10000; A classic_sync gives=A:x:0+1+2+3 user_data
M joins x rebalance_timeout_ms=30000; A classic_beat; describe_classic
# migration: one partition for two members
*pair; B classic_sync; A classic_sync gives=A:x:0+1+2+3|B:x:0+1+2+3; M joins x rebalance_timeout_ms=30000
A classic_beat
# migration: no protocol yet
A,B,B classic_join; M joins x rebalance_timeout_ms=30000; describe
# migration: a subscription that can't be read
M joins x rebalance_timeout_ms=30000; A,A classic_join malformed
# migration: empty groups give way
A,A classic_join; await 10000; commit topics=x:0; remove members=A; M joins x rebalance_timeout_ms=30000
describe; fetch; M beat -1; describe; B,B classic_join; await 10000; describe_classic; B classic_sync
remove members=B; describe_classic; describe
# migration: a consumer group takes in classic members
M joins x,y rebalance_timeout_ms=30000; A classic_join protocol_type=connect
A classic_join session_timeout_ms=1; A@i9 classic_join member_id=stranger
A classic_join topics=x,y version=3; A classic_sync; M beat assigned; A,A classic_beat
A classic_join topics=x,y; A classic_sync; A classic_beat; B@i2 classic_join topics=x; B@i2 classic_sync
D@i2 classic_join topics=x; B@i2,D@i2,D@i9 classic_beat; D@i9,B@i2 classic_sync; remove members=@i2
M beat assigned; describe; A commit topics=x:0; A commit topics=x:0 version=8
"""
"""Scripts of the classic protocol, and of groups that migrate."""

_CLASSIC_SESSIONS: Final = """
# classic: a session ends
A,A classic_join session_timeout_ms=1000; await 10000; A classic_sync
B,B classic_join session_timeout_ms=1000; A classic_beat; A classic_join session_timeout_ms=1000
await 10000; A,B classic_sync gives=A:x:0+1|B:x:2+3; wait 500; A classic_beat; wait 700; describe_classic
A,B classic_beat; A classic_join; A classic_sync
# classic: a session of an id that was given out ends
A,A classic_join; await 10000; A classic_sync; B classic_join session_timeout_ms=500
A classic_join topics=y; wait 800; describe_classic
# migration: the last session of the newer protocol ends
configure values=consumer.session.timeout.ms:1000; A,A classic_join; await 10000
A classic_sync gives=A:x:0+1+2+3; M joins x rebalance_timeout_ms=30000; A classic_beat; A classic_join
A classic_sync; A classic_beat; wait 1300; describe_classic; A classic_beat; A classic_join; A classic_sync
"""
"""Such scripts that need short sessions."""

_STREAMS: Final = """
# streams: the life of a group
A starts count endpoint=here tags=zone:a; describe_streams; A streams_beat assigned; describe_streams
B starts count endpoint=there; A,A,B streams_beat assigned; describe_streams; list types=streams
delete_group; A streams_beat -1; B,B streams_beat assigned; B streams_beat -1; describe_streams
C starts count; C streams_beat -1; delete_group; describe_streams
# streams: a revocation step by step
A,B starts; A streams_beat; B streams_beat assigned; A streams_beat; A streams_beat before; describe_streams
C starts; A streams_beat partial; A,B,C,A,B,C streams_beat assigned; A streams_beat assigned previous
B streams_beat before previous; C streams_beat ahead
# streams: an older topology
A starts topology_epoch=1; B starts; A,B,A,B streams_beat assigned; C starts topology_epoch=2
C starts two topology_epoch=1; describe_streams
# streams: source topics come and go
A starts missing; describe_streams; list states=not_ready types=streams; create topic=m partitions=2
A streams_beat assigned; create topic=n partitions=3; A streams_beat assigned; describe_streams
delete topic=n; A,A streams_beat assigned; B starts missing; describe_streams
# streams: topics of wrong sizes
A starts uneven; describe_streams; grow topic=y partitions=4; A streams_beat assigned; describe_streams
# streams: standby tasks move
configure values=streams.num.standby.replicas:1; A starts stateful process=p; A streams_beat assigned
B starts stateful process=q; A,B,A,B,A,B streams_beat assigned; describe_streams; A streams_beat -1
B,B,B streams_beat assigned; C starts stateful process=q; B,C,B,C streams_beat assigned
D starts stateful process=r; B,C,D,B,C,D,B,C,D streams_beat assigned; describe_streams
configure values=streams.num.standby.replicas:0; B,C,D,B,C,D streams_beat assigned
# streams: an application stops
A starts shutdown; A streams_beat assigned; B starts; A streams_beat ahead shutdown; B streams_beat assigned
stranger streams_beat -1 shutdown; A,B streams_beat assigned; A streams_beat -1 shutdown; C starts
B,C streams_beat -1; A starts; A streams_beat -1; stranger streams_beat -1 shutdown; B starts
# streams: offsets of members
commit topics=x:0+1+2+3; A starts endpoint=here; A commit topics=x:0+1+2+3; commit topics=x:0+1+2+3
A commit ahead topics=x:0+1+2+3; A commit topics=x:0+1+2+3 version=8; stranger commit 1 topics=x:0+1+2+3
B starts; A,A,B streams_beat assigned; A commit previous topics=x:0; A commit previous topics=x:3
A commit previous topics=y:0; B commit previous topics=x:3; A fetch topics=x:0+1+2+3
A fetch previous topics=x:0+1+2+3; fetch
# streams: what Kafka did not expect
A starts index; A starts topology_epoch=-1; A starts missing endpoint=here; A starts missing
B starts missing endpoint=here; A streams_beat assigned
# streams: a session ends
configure values=streams.session.timeout.ms:1000,streams.heartbeat.interval.ms:100; A,B starts
A,A,B streams_beat assigned; wait 600; B streams_beat assigned; wait 700; A,B,B streams_beat assigned
describe_streams
"""
"""Scripts of streams groups (KIP-1071)."""

SCRIPTS: Final = scripts_of(_NAMED + _SCRIPTS + _CLASSIC + _STREAMS)
"""Scripts of all kinds by name, for tests."""


def _members(first: int, size: int) -> str:
    return ",".join(f"M{number:02}" for number in range(first, size))


def full(size: int) -> str:
    """Return the script that fills a consumer group: it takes no more members than the broker allows."""
    return f"""
{_members(0, size - 1)},S@i1,Z joins x; Z beat 5; M00 joins x; S@i1 beat -2; T@i1,Z joins x; M00 beat -1
Z joins x
"""


def full_classic(size: int) -> str:
    """Return the script that fills a classic group."""
    others = _members(1, size)
    twice = ",".join(f"{member},{member}" for member in others.split(","))
    return f"""
M00,M00 classic_join; await 10000; M00 classic_sync; {twice},M00 classic_join; {others},M00 classic_sync
Z,Z,S@i1,M00,Z,Z classic_join; describe_classic
"""


def full_streams(size: int) -> str:
    """Return the script that fills a streams group; its members may join again."""
    last = f"M{size - 1:02}"
    return f"""
{_members(0, size)},Z starts; Z streams_beat 5; M00 streams_beat assigned; M00 starts
describe_streams; {last} streams_beat -1; Z starts; Z streams_beat assigned
"""


def classic(config: GroupCoordinatorConfig) -> Iterator[Schedule]:
    """Yield the schedules of the classic protocol, and of groups that are migrated."""
    text = _CLASSIC
    if max(config.group_consumer_min_session_timeout_ms, config.group_min_session_timeout_ms) <= _SHORT_MS:
        text += _CLASSIC_SESSIONS
    if config.group_max_size <= _FULL_AT_MOST:
        text += f"# classic: a full group{full_classic(config.group_max_size)}"
    yield from _schedules(text, "describe; describe_classic; list")


def scripted(config: GroupCoordinatorConfig) -> Iterator[Schedule]:
    """Yield the schedules that a broker with this configuration can run; long ones first."""
    low, high = (
        config.group_consumer_min_heartbeat_interval_ms,
        config.group_consumer_max_heartbeat_interval_ms,
    )
    text = _SPACING
    if config.group_consumer_min_session_timeout_ms <= _SHORT_MS:
        text += _SESSIONS
    text += _SCRIPTS.replace("BELOW", str(low - 1)).replace("LOW", str(low)).replace("ABOVE", str(high + 1))
    if config.group_consumer_max_size <= _FULL_AT_MOST:
        text += f"# a full group{full(config.group_consumer_max_size)}"
    yield from _schedules(text, "describe; list")
    yield from classic(config)
    if "streams" in config.group_coordinator_rebalance_protocols:
        text = _STREAMS
        if config.group_streams_max_size <= _FULL_AT_MOST:
            text += f"# streams: a full group{full_streams(config.group_streams_max_size)}"
        yield from _schedules(text, "describe_streams; list")


def _schedules(text: str, end: str) -> Iterator[Schedule]:
    """Yield the scripts of a text, each with these steps at its end."""
    for name, script in scripts_of(_NAMED + text).items():
        if not name.startswith("*"):
            yield Schedule(name=name, topics=TOPICS, steps=(*script, *steps(end)))
