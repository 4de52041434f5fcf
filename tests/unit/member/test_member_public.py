"""What `fencepost` offers of members where their libraries are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["KIP848Consumer", "StreamsApp", "AuthenticationError"])
def test_a_library_that_is_missing_is_named_with_what_brings_it(name: str) -> None:
    program = f"import sys; sys.modules['aiokafka'] = None; from fencepost import {name}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    told = f"{name} needs aiokafka, which is not installed: pip install 'fencepost[kafka]'"
    assert result.stderr.splitlines()[-1] == f"ModuleNotFoundError: {told}"


def test_single_active_consumers_need_neither() -> None:
    program = "import sys; sys.modules['aiokafka'] = sys.modules['kio'] = None; import fencepost as m; "
    program += "m.SingleActiveConsumer, m.RabbitTransport, m.SacSubscription"
    subprocess.run([sys.executable, "-c", program], check=True)
