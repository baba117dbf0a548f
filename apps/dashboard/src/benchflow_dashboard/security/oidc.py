"""Login by an OpenID provider: the code flow with PKCE, on the client of authlib."""

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from benchflow_contracts import UsageError

from .access_database import AccessDatabase
from .oidc_provider import TIMEOUT_SEC, LoginRefusedError, OidcProvider
from .oidc_settings import OidcSettings
from .token_file import digest_of
from .users import User

LOGIN_SEC: Final = 600.0
"""The time that a user has for a login."""


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """A login that a browser began."""

    url: str
    """The page of the provider."""
    binding: str
    """The secret for a cookie: only this browser can finish the login."""


@dataclass(frozen=True, slots=True)
class FinishedLogin:
    """A login that the provider confirmed."""

    user: User
    next_url: str


class OidcClient:
    """Begins and finishes logins. Processes that share the database finish each other's logins.

    `state`, `nonce` and the verifier of PKCE are made from the secret in the browser's cookie. The
    database has only the digest of the secret, and a login is deleted when it comes back.

    Raises:
        UsageError: The extra `oidc` is not installed, or the secret of the client is not set.
    """

    def __init__(
        self,
        settings: OidcSettings,
        database: AccessDatabase,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if find_spec("authlib") is None or find_spec("httpx2") is None:
            raise UsageError(
                "a login by OpenID needs authlib and httpx2",
                hint="install benchflow-dashboard[oidc]",
            )
        self.settings = settings
        self._database = database
        self._clock = clock
        self._secret = _secret_of(settings)
        self._provider = OidcProvider(settings, clock)

    async def begin(self, next_url: str) -> BegunLogin:
        """Begin a login that leads to `next_url`.

        Raises:
            LoginRefusedError: The provider does not answer as it should.
            StoreError: The database does not answer.
        """
        binding = secrets.token_urlsafe(32)
        metadata = await self._provider.metadata()
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=_derive(binding, "state"),
                nonce=_derive(binding, "nonce"),
                code_verifier=_derive(binding, "verifier"),
            )
        await asyncio.to_thread(self._note, binding, next_url)
        return BegunLogin(str(url), binding)

    async def finish(self, binding: str, answer: Mapping[str, str]) -> FinishedLogin:
        """Finish the login of a browser with the parameters of the provider's answer.

        Raises:
            LoginRefusedError: Something of the answer or of the ID token is wrong.
            StoreError: The database does not answer.
        """
        state = answer.get("state", "").encode("utf-8", "replace")
        if not binding or not hmac.compare_digest(_derive(binding, "state").encode(), state):
            raise LoginRefusedError("the state is not that of a login which this browser began")
        next_url = await asyncio.to_thread(self._take, binding)
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:
            raise LoginRefusedError("the answer is from another issuer (iss)")
        if problem := answer.get("error"):
            raise LoginRefusedError(f"the provider refused the login: {problem[:200]}")
        token = await self._redeem(answer.get("code", ""), _derive(binding, "verifier"))
        claims = await self._provider.verify(token, _derive(binding, "nonce"))
        return FinishedLogin(self._user(claims), next_url)

    async def _redeem(self, code: str, verifier: str) -> object:
        """Return the ID token for a code."""
        import httpx2  # noqa: PLC0415 - an extra

        if not code:
            raise LoginRefusedError("the answer has no code")
        metadata = await self._provider.metadata()
        try:
            async with self._client() as client:
                found: Mapping[str, object] = await client.fetch_token(
                    metadata["token_endpoint"], code=code, code_verifier=verifier
                )
        except _authlib("base_client").OAuthError as error:
            why = str(error.error)[:200]
            raise LoginRefusedError(f"the provider refused the code: {why}") from error
        except (httpx2.HTTPError, ValueError) as error:
            why = type(error).__name__
            raise LoginRefusedError(f"the provider does not answer: {why}") from error
        return found.get("id_token")

    def _user(self, claims: Mapping[str, Any]) -> User:
        subject, name = claims["sub"], claims.get(self.settings.name_claim)
        if not subject or len(subject) > 255:
            raise LoginRefusedError("the ID token names no user (sub)")
        role = self.settings.role_of(claims.get(self.settings.roles_claim))
        if role is None:
            raise LoginRefusedError(
                f"no group of the user in {self.settings.roles_claim!r} has a role here",
                hint="ask the administrator for a role",
            )
        shown = name if isinstance(name, str) and 0 < len(name) <= 255 else subject
        return User(shown, role, issuer=self.settings.issuer)

    def _note(self, binding: str, next_url: str) -> None:
        now = self._clock()
        self._database.query("DELETE FROM dashboard_logins WHERE began < ?", (now - LOGIN_SEC,))
        sql = "INSERT INTO dashboard_logins (digest, next_url, began) VALUES (?, ?, ?)"
        self._database.query(sql, (digest_of(binding), next_url[:2000], now))

    def _take(self, binding: str) -> str:
        """Delete a login, so that it cannot come back again, and return where it leads."""
        sql = "DELETE FROM dashboard_logins WHERE digest = ? AND began > ? RETURNING next_url"
        values = (digest_of(binding), self._clock() - LOGIN_SEC)
        rows = self._database.query(sql, values, is_durable=True)
        if not rows:
            raise LoginRefusedError("the login was used already, or began more than 10 minutes ago")
        return str(rows[0][0])

    def _client(self) -> Any:  # noqa: ANN401 - authlib has no types
        return _authlib("httpx_client").AsyncOAuth2Client(
            client_id=self.settings.client_id,
            client_secret=self._secret,
            redirect_uri=self.settings.redirect_uri,
            scope=self.settings.scope,
            code_challenge_method="S256",
            timeout=TIMEOUT_SEC,
            follow_redirects=False,
        )


def _authlib(name: str) -> Any:  # noqa: ANN401 - authlib has no types
    return import_module(f"authlib.integrations.{name}")


def _derive(binding: str, purpose: str) -> str:
    return hmac.new(binding.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _secret_of(settings: OidcSettings) -> str | None:
    name = settings.client_secret_env
    if name is None:
        return None
    secret = os.environ.get(name)
    if not secret:
        raise UsageError(f"the environment variable {name!r} of the client's secret is not set")
    return secret
