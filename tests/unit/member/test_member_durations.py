"""Durations in ISO-8601; Java's own parser is asked in tests/conformance/test_offset_resets.py."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.member.base.config import ConsumerConfig, duration_ms


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P3D", 259_200_000),
        ("PT1H30M", 5_400_000),
        ("PT0.5S", 500),
        ("pt1,25s", 1_250),
        ("P1DT-1H", 82_800_000),
        ("-P-1D", 86_400_000),
        ("PT1M-0.5S", 59_500),
        ("PT0S", 0),
        ("-PT0S", 0),
        ("PT0.000000001S", 1),
        ("PT1.000000001S", 1_001),
        ("PT9223372036854775807S", (2**63 - 1) * 1_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        *(
            (text, "not an ISO-8601 duration")
            for text in ("", "P", "PT", "P1DT", "3600", "P1W", "P1M", "P1Y")
        ),
        *((text, "not an ISO-8601 duration") for text in ("PT1M1H", "PT.5S", "PT1.5H", " PT1H", "PT1H\n")),
        *((text, "not an ISO-8601 duration") for text in ("PT0.0000000001S", "P\u0663D", "PT1\u017f")),
        *((text, "is negative") for text in ("-PT1H", "PT-1H", "PT-0.000000001S", "PT1H-61M")),
        *((text, "is too long") for text in ("PT9223372036854775808S", "P106751991167300DT24H")),
    ],
)
def test_what_is_no_duration_to_go_back_by(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        duration_ms(text)
    with pytest.raises(FencepostError, match=f"auto_offset_reset: .*{complaint}"):
        ConsumerConfig(auto_offset_reset=f"by_duration:{text}")


@pytest.mark.parametrize("reset", ["middle", "by_duration", "BY_DURATION:PT1H", "", None, 5, True])
def test_what_is_no_reset(reset: object) -> None:
    with pytest.raises(
        FencepostError, match=r"auto_offset_reset: expected earliest, .*by_duration:PnDTnHnMn.nS"
    ):
        ConsumerConfig(auto_offset_reset=reset)  # type: ignore[arg-type]
