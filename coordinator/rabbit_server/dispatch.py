"""All frames that a client may send, and who handles them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.coordinator.rabbit_server import administration, consuming, handshake, publishing
from fencepost.coordinator.rabbit_server.session import Handler

HANDLERS: Final[Mapping[type, Handler]] = {
    **handshake.HANDLERS,
    **publishing.HANDLERS,
    **consuming.HANDLERS,
    **administration.HANDLERS,
}
