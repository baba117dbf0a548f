"""The settings of one dashboard."""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from benchflow_contracts import UsageError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .security.oidc_settings import OidcSettings

DEFAULT_PORT = 8642


class DashboardSettings(BaseModel):
    """Where the dashboard reads, where it listens, and who may open it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs_dir: Path = Path("jobs")
    """The directory of jobs. The dashboard never writes below it."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """The port; 0 lets the system choose a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names in the `Host` header. Names of the loopback and `host` are always allowed."""
    index: Path | None = None
    """The file of the index (default: a file in the user's cache directory)."""
    database_url: str | None = None
    """The database of a fleet (Postgres): its jobs, and the sessions of its dashboards."""
    monitor: Path | str | None = None
    """The database of monitor mode: a file, or the URL of a Postgres database. `None`: off."""
    monitor_config: Path | None = None
    """The file `monitor.toml` (default: the defaults of each key)."""
    ingest_keys: Path | None = None
    """A file of ingest keys. Without it, every client that reaches the server may send traces."""
    users: Path | None = None
    """A file of users. With it, each request needs a login or a token."""
    oidc: OidcSettings | None = None
    """A login by an OpenID provider, beside the tokens of `users` or without them."""
    https: bool = False
    """Whether browsers reach the server by HTTPS, through a proxy. Cookies are then secure."""
    sessions: Path | None = None
    """The file of sessions and limits (default: `database_url`, else one in the user's data)."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of the proxies whose `X-Forwarded-For` names the client."""
    api_per_minute: float = Field(default=600.0, gt=0)
    """The requests of one user to the API in a minute."""
    audit_log: Path | None = None
    """The file of the audit log (default: beside the file of users, else in the user's data)."""

    @field_validator("monitor", mode="after")
    @classmethod
    def _file_or_url(cls, value: Path | str | None) -> Path | str | None:
        return Path(value) if isinstance(value, str) and "://" not in value else value

    @property
    def has_auth(self) -> bool:
        """Whether requests need a login. Without it, only the loopback is served."""
        return self.users is not None or self.oidc is not None

    @property
    def audit_path(self) -> Path | None:
        """The file of the audit log, or None."""
        if self.audit_log is not None or not self.has_auth:
            return self.audit_log
        if self.users is None:
            return data_directory() / f"audit-{self._identity}.jsonl"
        return self.users.with_name("audit.jsonl")

    @property
    def _identity(self) -> str:
        """A name of those who may log in: other dashboards must not take their sessions."""
        users = b"" if self.users is None else os.fsencode(self.users.resolve())
        provider = "" if self.oidc is None else f"{self.oidc.issuer} {self.oidc.client_id}"
        return hashlib.sha256(users + b"\0" + provider.encode()).hexdigest()[:16]

    def index_path(self) -> Path:
        """Return the file of the index, which is never inside `jobs_dir`.

        Raises:
            UsageError: `index` is inside `jobs_dir`.
        """
        jobs = self.jobs_dir.resolve()
        if self.index is None:
            fleet = b"" if self.database_url is None else b"\0" + self.database_url.encode()
            name = hashlib.sha256(os.fsencode(jobs) + fleet).hexdigest()[:16]
            return cache_directory() / f"index-{name}.db"
        path = self.index.resolve()
        if path.is_relative_to(jobs):
            raise UsageError(
                f"the index {str(path)!r} is inside the jobs directory {str(jobs)!r}",
                hint="name a file outside of the jobs directory with --index",
            )
        return path

    def notes_path(self) -> Path:
        """Return the file of notes and labels: beside `index`, else in the user's data directory.

        Deleting the cache does not delete it.

        Raises:
            UsageError: `index` is inside `jobs_dir`.
        """
        index = self.index_path()
        name = f"{index.stem}-notes.db"
        return data_directory() / name if self.index is None else index.with_name(name)

    def actions_path(self) -> Path:
        """Return the directory of the records and logs of operators' actions.

        Raises:
            UsageError: `index` is inside `jobs_dir`.
        """
        index = self.index_path()
        return index.with_name(f"{index.stem}-actions")

    def sessions_location(self) -> Path | str | None:
        """Return the database of sessions and limits: a file, a URL, or None without logins."""
        if not self.has_auth:
            return None
        if self.sessions is not None or self.database_url is not None:
            return self.sessions or self.database_url
        return data_directory() / f"sessions-{self._identity}.db"

    def check_bind(self) -> None:
        """Refuse a public address without authentication.

        Raises:
            UsageError: `host` is not a loopback address, and neither `users` nor `oidc` is set.
        """
        if not self.has_auth and not is_loopback(self.host):
            raise UsageError(
                f"refused to listen on {self.host!r}: anyone in the network could read every run",
                hint="listen on 127.0.0.1 and reach it through `ssh -L`, or add users by"
                " `bench dashboard user NAME` and give --users",
            )


def read_settings(path: Path | None, flags: Mapping[str, object]) -> DashboardSettings:
    """Return the settings of a TOML file, with the flags that are not their defaults above it.

    Raises:
        UsageError: The file cannot be read, or a setting of the file is wrong.
    """
    if path is None:
        return DashboardSettings.model_validate(flags)
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"not a file of settings: {error}", where=str(path)) from error
    defaults = DashboardSettings()
    given = {k: v for k, v in flags.items() if v != getattr(defaults, k)}
    try:
        return DashboardSettings.model_validate({**document, **given})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise UsageError(f"{name}: {first['msg']}", where=str(path)) from error


def cache_directory() -> Path:
    """Return the directory of what can be made anew, below `$XDG_CACHE_HOME` or `~/.cache`."""
    return _home("XDG_CACHE_HOME", ".cache")


def data_directory() -> Path:
    """Return the directory of data that must last, below `$XDG_DATA_HOME` or `~/.local/share`."""
    return _home("XDG_DATA_HOME", ".local/share")


def _home(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable) or "")
    root = base if base.is_absolute() else Path.home() / default
    return root / "benchflow" / "dashboard"


def is_loopback(host: str) -> bool:
    """Return whether `host` names this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
