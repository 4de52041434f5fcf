"""Listeners in Kafka's syntax: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.listener_config import BrokerListener, ListenerConfig
from fencepost.coordinator.server.topic_configs import BrokerConfig


def config(properties: dict[str, Any]) -> ListenerConfig:
    return BrokerConfig.from_properties(properties).listeners


def of_brokers(
    properties: dict[str, Any], count: int = 1, *, has_login: bool = False, has_tls: bool = False
) -> tuple[tuple[BrokerListener, ...], ...]:
    return config(properties).of_brokers(
        ("127.0.0.1",) * count, (0,) * count, has_login=has_login, has_tls=has_tls
    )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"listeners": "PLAINTEXT:9092"}, "'PLAINTEXT:9092' is not a listener's address"),
        ({"listeners": "PLAINTEXT://kafka"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://kafka:65536"}, "expected NAME://HOST:PORT"),
        ({"listeners": ""}, "'' is not a listener's address"),
        ({"listeners": 9092}, "expected NAME://HOST:PORT"),
        ({"listeners": []}, "expected NAME://HOST:PORT"),
        ({"listeners": "OUT://:9092"}, "add OUT:PLAINTEXT to listener.security.protocol.map"),
        ({"advertised.listeners": "OUT://kafka:9092"}, "no security protocol is defined for listener OUT"),
        ({"listeners": "SSL://:1,ssl://:2"}, "each listener must have a different name"),
        ({"listeners": "SSL://:1,PLAINTEXT://a:1"}, "each listener must have a different port"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable address"),
        ({"advertised.listeners": "PLAINTEXT://[::]:9092"}, "nonroutable address"),
        ({"listener.security.protocol.map": "OUT"}, "expected NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "OUT:TLS"}, "SASL_PLAINTEXT, SASL_SSL"),
        ({"listener.security.protocol.map": "OUT:SSL,out:SSL"}, "OUT is there twice"),
        ({"inter.broker.listener.name": "OUT"}, "send each other no requests; leave it out"),
        ({"node.id": "one"}, "expected a whole number, 0 to 2147483647"),
        ({"node.id": -1}, "expected a whole number"),
        ({"node.id": True}, "expected a whole number"),
        ({"advertised.listener": "PLAINTEXT://kafka:9092"}, "did you mean advertised.listeners"),
    ],
)
def test_a_wrong_value_is_refused(properties: dict[str, Any], expected: str) -> None:
    with pytest.raises(FencepostError) as refused:
        config(properties)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"advertised.listeners": "SSL://kafka:9092"}, "SSL: no listener has this name; expected PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:9092;PLAINTEXT://:9093"}, "found 2 for 1 brokers"),
        ({"listeners": "SSL://:9092"}, "expected a TLS certificate with it"),
        ({"listeners": "SASL_PLAINTEXT://:9092"}, "expected users with it"),
        ({"node.id": 2**31 - 1}, None),
    ],
)
def test_listeners_must_fit_the_brokers(properties: dict[str, Any], expected: str | None) -> None:
    if expected is None:
        of_brokers(properties)
        with pytest.raises(FencepostError, match="the last id is beyond 2147483647"):
            of_brokers(properties, 2)
        return
    with pytest.raises(FencepostError) as refused:
        of_brokers(properties)
    assert expected in str(refused.value)


def test_users_and_certificates_need_a_listener() -> None:
    """Otherwise a password would protect nothing."""
    with pytest.raises(FencepostError, match="expected one with the protocol SASL_PLAINTEXT or SASL_SSL"):
        of_brokers({"listeners": "PLAINTEXT://:9092"}, has_login=True)
    with pytest.raises(FencepostError, match="expected one with the protocol SSL or SASL_SSL"):
        of_brokers({"listeners": "SASL_PLAINTEXT://:9092"}, has_login=True, has_tls=True)


def test_names_are_upper_case_and_an_empty_host_is_every_interface() -> None:
    ((one, six),) = of_brokers(
        {
            "listeners": "out://:9092 , OUT6://[::1]:9092",
            "listener.security.protocol.map": "out:ssl,Out6:SSL",
        },
        has_tls=True,
    )
    assert (one.name, one.host, one.port) == ("OUT", "0.0.0.0", 9092)
    assert (six.name, six.host, six.port) == ("OUT6", "::1", 9092), "one of each IP version may share a port"
    assert str(six.advertised) == "OUT6://[::1]:9092"


def test_the_listener_without_a_name_has_that_of_its_protocol() -> None:
    for has_login, has_tls, name in (
        (False, False, "PLAINTEXT"),
        (False, True, "SSL"),
        (True, False, "SASL_PLAINTEXT"),
        (True, True, "SASL_SSL"),
    ):
        ((one,),) = of_brokers(
            {"advertised.listeners": f"{name}://kafka:9092"}, has_login=has_login, has_tls=has_tls
        )
        assert (one.name, one.port, one.advertised) == (name, 0, (name, "kafka", 9092))
