from __future__ import annotations

import pytest

from fencepost.simulation.scenarios.values import Duration, Moment, Span


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1h", 3_600_000_000),
        ("1.5h", 5_400_000_000),
        ("40s", 40_000_000),
        ("250ms", 250_000),
        (" 7 m ", 420_000_000),
        ("12us", 12),
        ("0s", 0),
        ("1h30m", 5_400_000_000),
        ("2d 1.5h 250ms", 178_200_250_000),
    ],
)
def test_durations_are_read(text, us):
    assert Duration.parse(text).us == us


@pytest.mark.parametrize("text", ["1h", "90s", "250ms", "1500us", "0s"])
def test_durations_print_as_they_are_written(text):
    assert Duration.parse(str(Duration.parse(text))) == Duration.parse(text)


def test_moments_are_times_or_shares_of_the_run():
    assert Moment.parse("90s").within(1_000) == 90_000_000
    assert Moment.parse("25%").within(1_000) == 250
    assert Moment.parse("100%") == Moment(share=1.0)


def test_spans_are_distributions():
    assert set(Span.parse("5s").quantiles) == {5_000_000}
    table = Span.parse("1s..3s").quantiles
    assert min(table) >= 1_000_000
    assert max(table) <= 3_000_000
    assert Span.parse({"median": "1ms", "p99": "20ms"}).quantiles[512] in range(990, 1_010)
    assert 38_000_000 < sum(Span.parse({"mean": "40s"}).quantiles) / 1024 < 41_000_000
    assert Span.parse("1s..3s").longest_us == max(table)


NO_DURATIONS = (
    *("", " ", "5", "5 parsecs", "-3s", "s", 5, None, "1e3s", ["1s"]),
    *("9999999h", "30m1h", "1m1m", "1h30", "h"),
)
NO_SPANS = ("3s..1s", "1s..", "x", 5, {"median": "5s", "p99": "1s"}, {"median": "5s"}, {"mean": 3}, {})


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        *((Duration, value, "expected a duration") for value in NO_DURATIONS),
        *((Moment, value, "expected a") for value in ("101%", "-5%", "soon", 7)),
        *((Span, value, "expected") for value in NO_SPANS),
    ],
)
def test_anything_else_is_refused(kind, value, told):
    with pytest.raises(ValueError, match=told):
        kind.parse(value)
