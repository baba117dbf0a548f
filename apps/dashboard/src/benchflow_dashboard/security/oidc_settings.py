"""The settings of a login by an OpenID provider."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .users import ROLES, Role


class OidcSettings(BaseModel):
    """One OpenID provider, and which of its users may do what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str
    """The issuer's URL, exactly as the provider writes it: with HTTPS, except on this machine."""
    client_id: str = Field(min_length=1)
    client_secret_env: str | None = None
    """The environment variable with the client's secret. Without it, the client is public."""
    public_url: str
    """The URL under which browsers reach the dashboard, such as `https://bench.example.org`."""
    scope: str = "openid profile email"
    name_claim: str = "sub"
    """The claim that names the user on pages and in the audit log."""
    roles_claim: str = "groups"
    """The claim with the groups of the user: a text or a list of texts."""
    roles: Mapping[Role, tuple[str, ...]] = Field(min_length=1)
    """By role, the groups that have it. A user without such a group may not log in."""

    @field_validator("issuer", "public_url")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        check_url(url)
        return url.rstrip("/") if url.count("/") == 3 and url.endswith("/") else url

    @property
    def redirect_uri(self) -> str:
        """The URL that the provider must know as a redirect of this client."""
        return f"{self.public_url.rstrip('/')}/login/oidc/callback"

    def role_of(self, groups: object) -> Role | None:
        """Return the highest role of a user with the value of `roles_claim`, or None."""
        given = cast("list[object]", groups) if isinstance(groups, list) else [groups]
        found = {each for each in given if isinstance(each, str)}
        held: list[Role] = [role for role in ROLES if found.intersection(self.roles.get(role, ()))]
        return held[-1] if held else None


def check_url(url: str) -> None:
    """Require HTTPS, or HTTP to this machine.

    Raises:
        ValueError: The URL is another one.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if parts.scheme != "http" or not is_local:
        raise ValueError(f"not a URL with https: {url!r}")
