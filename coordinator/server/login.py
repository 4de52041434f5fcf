"""The login of a connection before it is served: choose a mechanism, and authenticate (KIP-152)."""

from __future__ import annotations

import asyncio
import enum
import secrets

from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.protocol import sasl
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.sasl.mechanisms import MECHANISMS, AuthenticationFailed, SaslExchange, exchange_of
from fencepost.coordinator.server.services import Asked, Services, Unanswered

MAX_LOGIN_FRAME_BYTES = 524_288
"""Kafka's default of sasl.server.max.receive.size."""
LOGIN_S = 30.0
"""Time after which a connection without a login is closed, in s."""
MIN_REAUTH_INTERVAL_MS = 1_000
"""A client logs in again at most this often, as in Kafka; else the handshake is refused."""
_REFUSED_AFTER_S = 0.1
"""Kafka's default of connection.failed.authentication.delay.ms: it makes guessing slow."""


class _State(enum.Enum):
    NEW = "nothing was asked"
    TOLD = "versions were sent"
    CHOSEN = "a mechanism was chosen"
    OTHER_MECHANISM = "another mechanism than in the last login was chosen"
    DONE = "the client is authenticated"
    FAILED = "authentication failed"


_ALLOWED = {
    _State.NEW: {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE},
    _State.TOLD: {ApiKey.SASL_HANDSHAKE},
    _State.CHOSEN: {ApiKey.SASL_AUTHENTICATE},
}


class Login:
    """The login of one connection. `failure` has the reason if it failed; `is_done` is true if it
    succeeded.

    `session_ms` is the time until the client has to log in again, in ms, 0 for never. `before` is the last
    login of a client that does so: user and mechanism stay (KIP-368).
    """

    def __init__(self, credentials: Credentials, session_ms: int = 0, before: Login | None = None) -> None:
        self.failure: str | None = None
        self.tokens_are_bare = False
        """True if tokens come without a header from here on."""
        self._credentials = credentials
        self._session_ms = session_ms
        self._again: tuple[str, str] | None = None if before is None else (before.principal, before.mechanism)
        """The user and the mechanism of the last login."""
        self._state = _State.NEW
        self.mechanism: str = ""
        self._exchange: SaslExchange | None = None

    @property
    def is_done(self) -> bool:
        """True if the client is logged in."""
        return self._state is _State.DONE

    @property
    def principal(self) -> str:
        """The client's user in Kafka's words, once it is logged in."""
        assert self._exchange is not None
        return f"User:{self._exchange.user}"

    def check(self, api_key: int, *, is_spoken: bool) -> None:
        """Refuse any request that is not the next step of a login; `is_spoken` is true if its version is
        known.

        :raises Unanswered: for such a request; Kafka too closes the connection without a response.
        """
        if self._state is _State.OTHER_MECHANISM:
            assert self._again is not None
            raise Unanswered(
                f"SASL mechanism '{self.mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self._again[1]}'"
            )
        if api_key not in _ALLOWED.get(self._state, ()):
            raise Unanswered(f"{api_name(api_key)} before the client is logged in (ILLEGAL_SASL_STATE)")
        if api_key == ApiKey.API_VERSIONS and is_spoken:
            self._state = _State.TOLD

    def choose(self, request: sasl.SaslHandshakeRequest) -> sasl.SaslHandshakeResponse:
        """Choose a mechanism, if there is one of that name."""
        if request.mechanism not in MECHANISMS:
            self._fail("the client asked for an unknown mechanism")
            return sasl.SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=MECHANISMS
            )
        self.mechanism = request.mechanism
        if self._again is not None and self._again[1] != request.mechanism:
            self._state = _State.OTHER_MECHANISM  # as Kafka, which refuses what comes next
            return sasl.SaslHandshakeResponse(mechanisms=MECHANISMS)
        self._state = _State.CHOSEN
        self._exchange = exchange_of(request.mechanism, self._credentials, secrets.token_urlsafe(24))
        self.tokens_are_bare = request.tokens_are_bare
        return sasl.SaslHandshakeResponse(mechanisms=MECHANISMS)

    def answer(self, token: bytes) -> sasl.SaslAuthenticateResponse:
        """Return the response to a token of the client; the login may have failed then."""
        assert self._exchange is not None
        try:
            answer = self._exchange.respond(token)
        except AuthenticationFailed as failed:
            self._fail(f"the login by {self.mechanism} failed")
            what = "authentication" if self._again is None else "re-authentication"
            generic = f"during {what} due to invalid credentials with SASL mechanism {self.mechanism}"
            message = str(failed) or f"Authentication failed {generic}"
            return sasl.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
            )
        if self._exchange.user is not None:
            if self._again is not None and self._again[0] != self.principal:
                self._fail("the client logged in again as another user")
                before, now = (each.replace(":", ".", 1) for each in (self._again[0], self.principal))
                return sasl.SaslAuthenticateResponse(
                    error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                    error_message=f"Cannot change principals during re-authentication from {before}: {now}",
                )
            self._state = _State.DONE
            self.tokens_are_bare = False
            return sasl.SaslAuthenticateResponse(token=answer, session_lifetime_ms=self._session_ms)
        return sasl.SaslAuthenticateResponse(token=answer)

    def _fail(self, why: str) -> None:
        self._state = _State.FAILED
        self.failure = why


def handshake(
    services: Services, request: sasl.SaslHandshakeRequest, asked: Asked
) -> sasl.SaslHandshakeResponse:
    """Choose a mechanism; a client that need not log in, or not again, can't."""
    login = asked.login
    if login is None:
        return sasl.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return login.choose(request)


def authenticate(services: Services, request: sasl.SaslAuthenticateRequest, asked: Asked) -> object:
    """Handle a token. A refusal is delayed."""
    login = asked.login
    if login is None:
        return sasl.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    reply = login.answer(request.token)
    if login.failure is None:
        return reply
    late: asyncio.Future[sasl.SaslAuthenticateResponse] = services.loop.create_future()
    services.loop.call_later(_REFUSED_AFTER_S, _send, late, reply)
    return late


def _send(late: asyncio.Future[sasl.SaslAuthenticateResponse], reply: sasl.SaslAuthenticateResponse) -> None:
    if not late.done():
        late.set_result(reply)
