"""The OpenID provider: its metadata, its keys, and the check of its ID tokens."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from benchflow_contracts import BenchFlowError

from .oidc_settings import OidcSettings, check_url

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

TIMEOUT_SEC: Final = 10.0
MAX_AGE_SEC: Final = 600.0
"""The age up to which an ID token is taken."""
_LEEWAY_SEC: Final = 60
_METADATA_SEC: Final = 3600.0
_KEYS_SEC: Final = 60.0
"""The keys are read again for an unknown key, at most once in this time."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final = (*_RSA, "ES256", "ES384", "EdDSA")
"""Signatures by a private key of the provider: never `none`, and no secret that the client has."""
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class LoginRefusedError(BenchFlowError):
    """The login is refused. The message says why, without secrets."""

    default_hint = "begin the login again; if that fails, ask the administrator"


class OidcProvider:
    """What one provider says, and whether that is true."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._metadata: Mapping[str, Any] = {}
        self._metadata_at = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0

    async def metadata(self) -> Mapping[str, Any]:
        """Return the metadata, which is read once in an hour.

        Raises:
            LoginRefusedError: The provider does not answer, or the metadata is of another issuer.
        """
        if not self._metadata or self._clock() - self._metadata_at > _METADATA_SEC:
            base = self._settings.issuer.rstrip("/")
            found = await _get(f"{base}/.well-known/openid-configuration")
            if found.get("issuer") != self._settings.issuer:
                raise LoginRefusedError("the metadata of the provider is of another issuer")
            for name in _ENDPOINTS:
                try:
                    check_url(str(found.get(name, "")))
                except ValueError as error:
                    raise LoginRefusedError(f"{name} of the provider is {error}") from error
            self._metadata, self._metadata_at = found, self._clock()
        return self._metadata

    async def verify(self, token: object, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token.

        Raises:
            LoginRefusedError: The signature or a claim is wrong.
        """
        from joserfc import jwt  # noqa: PLC0415 - an extra
        from joserfc.errors import JoseError  # noqa: PLC0415 - an extra

        if not isinstance(token, str):
            raise LoginRefusedError("the provider sent no ID token")
        try:
            keys = await self._key_set(token)
            claims = jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
            self._check_registered(claims)
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            # The messages of other errors may quote the token.
            why = str(error) if isinstance(error, JoseError) else "it is not a signed JSON object"
            raise LoginRefusedError(f"the ID token is not valid: {why[:200]}") from error
        self._check(claims, nonce)
        return claims

    def _check_registered(self, claims: dict[str, Any]) -> None:
        from joserfc.jwt import JWTClaimsRegistry  # noqa: PLC0415 - an extra

        registry = JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=_LEEWAY_SEC,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "value": self._settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
        )
        registry.validate(claims)

    def _check(self, claims: Mapping[str, Any], nonce: str) -> None:
        given, audience = claims.get("nonce"), claims["aud"]
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise LoginRefusedError("the nonce of the ID token is not that of this login")
        audiences = cast("list[str]", audience) if isinstance(audience, list) else [audience]
        party = claims.get("azp", audiences[0] if len(audiences) == 1 else None)
        if party != self._settings.client_id:
            raise LoginRefusedError("the ID token was issued to another client (azp)")
        if self._clock() - claims["iat"] > MAX_AGE_SEC + _LEEWAY_SEC:
            raise LoginRefusedError("the ID token was issued too long ago (iat)")

    async def _key_set(self, token: str) -> "KeySet":
        """Return the keys, read again if none of them signed `token` by its key id."""
        from joserfc.jwk import KeySet  # noqa: PLC0415 - an extra
        from joserfc.jws import extract_compact  # noqa: PLC0415 - an extra

        wanted = extract_compact(token.encode()).headers().get("kid")
        known = {key.kid for key in self._keys.keys} if self._keys else set[str | None]()
        is_due = self._clock() - self._keys_at > _KEYS_SEC
        if self._keys is None or (wanted not in known and is_due):
            metadata = await self.metadata()
            found = cast("Any", await _get(str(metadata["jwks_uri"])))
            self._keys, self._keys_at = KeySet.import_key_set(found), self._clock()
        return self._keys


async def _get(url: str) -> Mapping[str, Any]:
    import httpx2  # noqa: PLC0415 - an extra

    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT_SEC, follow_redirects=False) as client:
            response = await client.get(url)
            response.raise_for_status()
            found: object = response.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise LoginRefusedError(f"the provider does not answer: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise LoginRefusedError("the provider does not answer with a JSON object")
    return cast("Mapping[str, Any]", found)
