"""Requests to the rollout service: retries with back-off, and bodies with their secrets."""

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import urlsplit

import httpx
from benchflow_contracts import Model, UsageError
from pydantic import SecretStr
from pydantic_core import to_json

from .errors import ServiceError, ServiceUnreachableError, error_of

TOKEN_VARIABLE: Final = "BENCHFLOW_SERVE_TOKEN"  # noqa: S105 - the name of a variable
_CONNECT_SEC: Final = 10.0
_ANSWER_SEC: Final = 60.0
_RETRIED: Final = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a client repeats a request that was not answered, or that came too early.

    The pause is random between zero and a limit that doubles, so that many clients do not
    come back at the same time. A `Retry-After` of the service is a lower bound of the pause.
    """

    total_sec: float = 120.0
    """No try begins later than this after the first failure. 0 does not retry."""
    first_sec: float = 0.2
    """The limit of the first pause."""
    most_sec: float = 10.0
    """The greatest limit of a pause."""

    def pause_sec(self, tries: int, least: float = 0.0) -> float:
        """Return the pause after a number of failed tries, which begins at 1."""
        limit = min(self.most_sec, self.first_sec * 2 ** min(tries - 1, 30))
        return least + random.uniform(0, limit)  # noqa: S311 - not a secret


class RetryTimer:
    """The pauses of one request, or of one stream between two of its events."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._tries = 0
        self._end: float | None = None

    async def pause(self, error: ServiceError) -> None:
        """Wait before the next try.

        Raises:
            ServiceError: `error`, if the next try would begin too late.
        """
        if self._end is None:
            self._end = time.monotonic() + self._policy.total_sec
        self._tries += 1
        pause = self._policy.pause_sec(self._tries, error.retry_after or 0.0)
        # A pause is never cut short: an early try would disobey `Retry-After`.
        if time.monotonic() + pause > self._end:
            raise error
        await asyncio.sleep(pause)


class ServiceConnection:
    """Sends requests to one service. No message, log or `repr` has a token or a key.

    The retries are our own, because httpx-retries 0.6 cuts a `Retry-After` short that is longer
    than its limit, and sends the request too early.
    """

    def __init__(
        self,
        url: str,
        token: str | SecretStr | None = None,
        *,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare the connection, without a request.

        Args:
            url: The address of the service, such as `http://127.0.0.1:8643`.
            token: Its bearer token (default: $BENCHFLOW_SERVE_TOKEN).
            retry: How to repeat requests.
            transport: The transport of httpx, for example with own certificates.

        Raises:
            UsageError: The address or the token cannot be used.
        """
        self.url = _checked(url)
        self.retry = RetryPolicy() if retry is None else retry
        secret = token.get_secret_value() if isinstance(token, SecretStr) else token
        self._token = _checked_token(secret or os.environ.get(TOKEN_VARIABLE, ""))
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def close(self) -> None:
        """Close the connections. Repeatable; a later request opens new ones."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: Model | None = None,
        params: Mapping[str, str | float] | None = None,
        key: str | None = None,
        wait_sec: float = 0.0,
        answer_sec: float = _ANSWER_SEC,
        retry: RetryPolicy | None = None,
    ) -> bytes:
        """Send a request until it is answered, and return the body of the answer.

        Args:
            method: The method. A POST needs a `key`, because it may be sent twice.
            path: The path below the address.
            body: The body of the request, with its secrets.
            params: The query.
            key: The `Idempotency-Key`, the same for each try.
            wait_sec: How long the service may wait before it answers.
            answer_sec: How long each try may take besides.
            retry: Another policy than that of the connection.

        Raises:
            ServiceError: The request was refused, or was not answered in time.
        """
        request = self._client.build_request(
            method,
            path,
            content=None if body is None else body_of(body),
            params=params,
            headers={} if key is None else {"Idempotency-Key": key},
            timeout=httpx.Timeout(answer_sec + wait_sec, connect=min(answer_sec, _CONNECT_SEC)),
        )
        timer = RetryTimer(retry or self.retry)
        while True:
            try:
                return await self._send_once(request)
            except ServiceError as error:
                if not is_passing(error):
                    raise
                await timer.pause(error)

    @asynccontextmanager
    async def stream(
        self, path: str, headers: Mapping[str, str], idle_sec: float
    ) -> AsyncGenerator[httpx.Response]:
        """Open one stream. The service sends something every `idle_sec` seconds at least.

        Raises:
            ServiceError: The request was refused, or the connection failed, also in the block.
        """
        timeout = httpx.Timeout(idle_sec, connect=_CONNECT_SEC)
        try:
            async with self._client.stream("GET", path, headers=headers, timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise error_of(answer)
                yield answer
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _send_once(self, request: httpx.Request) -> bytes:
        try:
            response = await self._client.send(request)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_success:
            return response.content
        raise error_of(response)

    def _unreachable(self, error: httpx.HTTPError) -> ServiceUnreachableError:
        reason = str(error) or type(error).__name__
        return ServiceUnreachableError(f"{self.url} does not answer: {reason}")

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            token = self._token.get_secret_value()
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers={**headers, "Authorization": f"Bearer {token}"} if token else headers,
                # Each stream of events holds a connection.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
                transport=self._transport,
            )
        return self._http


def is_passing(error: ServiceError) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, ServiceUnreachableError) or error.status in _RETRIED


def body_of(body: Model) -> bytes:
    """Return a request as JSON. Only here are its secrets written in clear text."""
    return to_json(_uncovered(body.model_dump(exclude_unset=True)))


def _uncovered(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: _uncovered(each) for key, each in table.items()}
    if isinstance(value, list | tuple):
        return [_uncovered(each) for each in cast("Sequence[object]", value)]
    return value


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname is not None
    except ValueError:
        is_valid, parts = False, None
    if not is_valid or parts is None or parts.username or parts.password:
        # The address may have a password, so the message does not repeat it.
        raise UsageError(
            "the address of the service is not http://HOST[:PORT] without a user",
            hint="pass the token as `token` or in $BENCHFLOW_SERVE_TOKEN",
        )
    return url.rstrip("/")


def _checked_token(token: str) -> SecretStr:
    token = token.strip()
    # An error of the HTTP library about such a header would show the token.
    if not (token.isascii() and (token.isprintable() or not token)) or " " in token:
        raise UsageError("the token of the service has characters that no token has")
    return SecretStr(token)
