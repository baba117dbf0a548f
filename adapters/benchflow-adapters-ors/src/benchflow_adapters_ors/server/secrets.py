"""Secrets of a client: in the body of `/create`, or in a header as both published clients do."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from .http_errors import RequestError

_MAX_HEADER: Final = 65_536
_OWN_KEYS: Final = frozenset({"api_key", "OPENREWARD_API_KEY"})
"""openreward's client sends the key of the server as these secrets, too. They are not used."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class _Secret(BaseModel):
    value: Annotated[str, Field(repr=False)]


_SECRETS: Final = TypeAdapter(dict[str, _Secret])


def read_secrets(
    body: Mapping[str, str] | None, header: str | None, allowed: frozenset[str]
) -> dict[str, str]:
    """Return the secrets of a request by name. A name in the header wins over the body.

    Raises:
        RequestError: They are malformed, or the operator does not allow a name. No value is in
            the message.
    """
    given = {**(body or {}), **_from_header(header)}
    secrets = {k: v for k, v in given.items() if k in allowed or k not in _OWN_KEYS}
    for name, value in secrets.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise RequestError(400, "a secret is not a variable with a text")
        if name not in allowed:
            raise RequestError(400, f"the secret {name!r} is not allowed here (--allow-secret)")
    return secrets


def _from_header(header: str | None) -> dict[str, str]:
    if not header:
        return {}
    if len(header) > _MAX_HEADER:
        raise RequestError(400, "X-Secrets is too long")
    try:
        found = _SECRETS.validate_json(base64.b64decode(header, validate=True))
    except (binascii.Error, ValidationError, ValueError):
        raise RequestError(
            400, 'X-Secrets is not base64 of JSON {"NAME": {"value": "..."}}'
        ) from None
    return {name: secret.value for name, secret in found.items()}
