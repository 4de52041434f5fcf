from __future__ import annotations

import pytest

from fencepost.simulation.kernel import rng


def test_streams_depend_on_seed_and_name_only():
    a, b = rng.Draws(7), rng.Draws(7)
    b.random("other").random()
    assert a.random("x").random() == b.random("x").random()
    assert a.random("x").random() != a.random("y").random()
    assert a.random("x").random() != rng.Draws(8).random("x").random()


def test_a_known_seed_gives_known_draws():
    draws = rng.Draws(1)
    assert draws.uuid("topic/orders") == rng.Draws(1).uuid("topic/orders")
    assert len(draws.uuid("topic/orders")) == 22
    samples = draws.samples("link", rng.uniform(0, 1000))
    assert [samples.draw() for _ in range(3)] == [
        rng.Draws(1).samples("link", rng.uniform(0, 1000)).draw(),
        *_tail(rng.Draws(1).samples("link", rng.uniform(0, 1000)), 2),
    ]


def _tail(samples: rng.Samples, count: int) -> list[int]:
    samples.draw()
    return [samples.draw() for _ in range(count)]


def test_distributions_have_the_shape_they_are_named_for():
    assert set(rng.constant(5)) == {5}
    assert 490 < sum(rng.uniform(0, 1000)) / 1024 < 510
    table = sorted(rng.lognormal(1000, 20_000))
    assert abs(table[512] - 1000) < 20
    assert 15_000 < table[1013] < 22_000
    assert 95 < sum(rng.exponential(100)) / 1024 < 101


def test_draws_follow_the_table():
    samples = rng.Draws(3).samples("link", rng.uniform(0, 1000))
    draws = [samples.draw() for _ in range(20_000)]
    assert 485 < sum(draws) / len(draws) < 515
    assert len(set(draws)) > 900


def test_a_lognormal_needs_its_median_below_its_99th_percentile():
    with pytest.raises(ValueError, match="median"):
        rng.lognormal(10, 5)
