"""What a `SingleActiveConsumer` is made with is checked before anything is connected."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.member.rabbit.transport import RabbitTransport
from fencepost.member.sac import transport
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.offsets import NONE, OffsetKind, OffsetSpecification


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            {"listener": 3},
            "listener should have on_activated, on_stepping_down and on_lost; 3 has no on_acti",
        ),
        ({"observer": print}, "observer should have on_state, on_callback and on_answer; .* has no on_state"),
        ({"transport": "host"}, "transport should have connect; 'host' has no connect"),
        ({"subscription": "orders"}, "subscription should be a SacSubscription, got 'orders'"),
        ({"config": {}}, "config should be a SacConfig, got {}"),
    ],
)
def test_a_consumer_is_checked_before_anything_is_connected(arguments: dict[str, Any], why: str) -> None:
    given = {
        "subscription": transport.SacSubscription(stream="orders", name="app"),
        "transport": RabbitTransport("orders"),
    }
    with pytest.raises(TypeError, match=why):
        SingleActiveConsumer(**{**given, **arguments})


@pytest.mark.parametrize(
    ("settings", "kind", "why"),
    [
        ({"stream": 3}, TypeError, "stream should be text, got 3"),
        ({"stream": ""}, ValueError, "stream should be 1 to 32,767 bytes of text, got ''"),
        ({"name": None}, TypeError, "name should be text, got None"),
        ({"name": "x" * 40_000}, ValueError, "name should be 1 to 32,767 bytes of text, got 'xxx"),
        ({"name": "\ud800"}, ValueError, "name should be text that UTF-8 can express"),
        ({"super_stream": 1}, TypeError, "super_stream should be text, got 1"),
        ({"partition_index": "0"}, TypeError, "partition_index should be a whole number, got '0'"),
        ({"partition_index": -2}, ValueError, "partition_index should be -1 or more, got -2"),
        ({"offset": "first"}, TypeError, "offset should be an OffsetSpecification, such as FIRST .*'first'"),
        ({"offset": OffsetSpecification("first")}, TypeError, "offset should be an OffsetSpecification"),
        ({"offset": NONE}, ValueError, "offset should name a place"),
        ({"offset": OffsetSpecification(OffsetKind.OFFSET, -1)}, ValueError, "offset should be 0 to 9,"),
    ],
)
def test_a_subscription_is_checked_before_anything_is_connected(
    settings: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why) as caught:
        transport.SacSubscription(**{"stream": "orders", "name": "app", **settings})
    assert len(str(caught.value)) < 200
