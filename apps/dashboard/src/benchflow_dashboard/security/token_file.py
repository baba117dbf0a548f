"""Files of tokens: each token by its digest, under a name, in a TOML file of this user."""

import hashlib
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import UsageError


def digest_of(token: str) -> str:
    """Return what is stored: SHA-256. A token has 256 random bits, so it needs no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_token_file(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of a file, by name.

    Raises:
        UsageError: The file cannot be read, or a table has no digest.
    """
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"not a file of tokens: {error}", where=str(path)) from error
    tables: dict[str, Mapping[str, Any]] = {}
    for name, value in document.items():
        table: Mapping[str, Any] = cast("Any", value) if isinstance(value, dict) else {}
        if not isinstance(table.get("digest"), str):
            raise UsageError("the table has no 'digest'", where=f"{path}:{name}")
        tables[name] = table
    return tables


def add_token(path: Path, name: str, prefix: str, fields: Mapping[str, str | float]) -> str:
    """Make a token, add its digest to a file that only this user may read, and return the token.

    Raises:
        UsageError: The name is taken or not a plain name, or the file is not one of tokens.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise UsageError(f"{name!r} is not a name of letters, digits, '-' and '_'")
    if path.exists() and name in read_token_file(path):
        raise UsageError(f"{str(path)!r} has a token named {name!r} already")
    token = f"{prefix}_{secrets.token_urlsafe(32)}"
    lines = [f"[{name}]", f'digest = "{digest_of(token)}"']
    lines += [f"{k} = {v:g}" if isinstance(v, float) else f'{k} = "{v}"' for k, v in fields.items()]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    return token
