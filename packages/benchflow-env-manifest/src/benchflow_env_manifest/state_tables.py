"""`[[environment.state]]`: state that can be rolled back, one table for each kind."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from benchflow_contracts import Model
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

_RESERVED_ROOTS = ("/proc", "/sys", "/dev", "/.bf-state")


def printable(text: str) -> str:
    """Refuse control characters."""
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must not contain control characters")
    return text


def _state_path(text: str) -> str:
    path = PurePosixPath(printable(text))
    if not path.is_absolute() or str(path) != text or ".." in path.parts or text.startswith("//"):
        raise ValueError("must be an absolute path in its simplest form, such as /data/world.db")
    if len(path.parts) < 2 or any(path.is_relative_to(root) for root in _RESERVED_ROOTS):
        raise ValueError("must name a file outside of /proc, /sys, /dev and /.bf-state")
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(printable)]
StatePath = Annotated[str, Field(max_length=1024), AfterValidator(_state_path)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]

# TOML has arrays, not tuples: the outer type is converted, the items stay strict.
Array = Field(default=(), strict=False)


class Table(Model):
    """The base of every table of the manifest."""

    model_config = ConfigDict(strict=True)


class SqliteTable(Table):
    """`kind = "sqlite"`: database files, which services may have open."""

    kind: Literal["sqlite"] = "sqlite"
    paths: tuple[StatePath, ...] = Array


class FilesTable(Table):
    """`kind = "files"`: plain files and whole directories."""

    kind: Literal["files"]
    paths: tuple[StatePath, ...] = Field(min_length=1, strict=False)


class RedisTable(Table):
    """`kind = "redis"`: all databases of a server."""

    kind: Literal["redis"]
    name: Name = "redis"
    """The name of this item in the state."""
    port: Port = 6379
    password: str = Field(default="", max_length=256, repr=False)
    data: StatePath | None = None
    """The server's directory, which the agent must not read."""


class PostgresTable(Table):
    """`kind = "postgres"`: one database of a server."""

    kind: Literal["postgres"]
    name: Name = "postgres"
    """The name of this item in the state."""
    host: Annotated[str, Field(pattern=r"^(127\.0\.0\.1|localhost|/[A-Za-z0-9/._-]+)$")] = (
        "127.0.0.1"
    )
    """Loopback, or the directory of the server's socket."""
    port: Port = 5432
    user: Name = "postgres"
    """A user that may lock, drop and create every table."""
    database: Name = "postgres"
    password: str = Field(default="", max_length=256, repr=False)
    sessions: Literal["keep", "end"] = "keep"
    """`end`: services reconnect by themselves, so files can be copied instead of rows."""
    data: StatePath | None = None
    """The server's directory, which the agent must not read."""


class CommandTable(Table):
    """`kind = "command"`: state that commands copy. All of them run as root."""

    kind: Literal["command"]
    name: Name = "command"
    """The name of this item in the state."""
    snapshot: Text
    """Writes a copy below `$BENCHFLOW_STATE_DIR`."""
    restore: Text
    """Restores the copy below `$BENCHFLOW_STATE_DIR`; on an error, nothing is changed."""
    query: Text | None = None
    """Prints JSON lines: `{"table", "columns", "key"}`, then one array per row."""
    check: Text | None = None
    """Exits with 0 if the state is undamaged."""
    quiesce: Text | None = None
    """Makes writers wait, and writes everything to disk."""
    resume: Text | None = None
    """Lets writers continue. It may run twice."""


class ProcessTable(Table):
    """`kind = "process"`: state in a service's memory. Only a live fork includes it."""

    kind: Literal["process"]
    service: Name


StateTable = SqliteTable | FilesTable | RedisTable | PostgresTable | CommandTable | ProcessTable


def _as_list(value: object) -> object:
    """Convert a single `[environment.state]` to a list; the default kind is `sqlite`."""
    if isinstance(value, dict):
        return (_with_kind(cast("object", value)),)
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(_with_kind(item) for item in cast("list[object]", value))


def _with_kind(item: object) -> object:
    if not isinstance(item, dict):
        return item
    return {"kind": "sqlite", **cast("dict[str, Any]", item)}


StateTables = Annotated[
    tuple[Annotated[StateTable, Field(discriminator="kind")], ...], BeforeValidator(_as_list)
]
