"""Who may open the dashboard: users by token, each with a role."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from benchflow_contracts import UsageError

from .token_file import add_token, digest_of, read_token_file

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""In rising order: each role may do what the roles before it may."""


@dataclass(frozen=True, slots=True)
class User:
    """One user."""

    name: str
    role: Role
    digest: str = ""
    """The digest of the user's token; empty for a user of an OpenID provider."""
    issuer: str = ""
    """The OpenID provider that vouched for the user; empty for a user of the file."""

    def has_role(self, role: Role) -> bool:
        """Return whether the user may do what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL_USER: Final = User("local", "admin")
"""The user of this machine, on a dashboard without authentication."""


def read_users(path: Path) -> tuple[User, ...]:
    """Read a file of users: a table `[NAME]` with `digest` and `role`.

    Raises:
        UsageError: The file is not of this form, or has no user.
    """
    users: list[User] = []
    for name, table in read_token_file(path).items():
        role = table.get("role", "viewer")
        if role not in ROLES:
            raise UsageError(f"{role!r} is not a role of {ROLES}", where=f"{path}:{name}.role")
        users.append(User(name, role, table["digest"]))
    if not users:
        raise UsageError("the file has no user", where=str(path), hint="bench dashboard user NAME")
    return tuple(users)


def add_user(path: Path, name: str, role: Role) -> str:
    """Add a user to a file, and return the user's token.

    Raises:
        UsageError: The name is taken, or the file is not one of users.
    """
    return add_token(path, name, "bfd", {"role": role})


def find_user(users: Iterable[User], token: str) -> User | None:
    """Return the user of a token, or None. The time does not depend on the token."""
    digest = digest_of(token)
    match: User | None = None
    for user in users:
        if hmac.compare_digest(user.digest, digest):
            match = user
    return match
