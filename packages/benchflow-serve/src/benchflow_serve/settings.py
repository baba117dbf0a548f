"""The settings of the rollout service."""

import ipaddress
from pathlib import Path
from typing import Final

from benchflow_contracts import Model, UsageError
from benchflow_engine.config import RunConfig
from benchflow_serve_client import OnRestart
from pydantic import Field

from .caps import RequestCaps

_MB: Final = 1024 * 1024


class ServeSettings(Model):
    """What the operator of a service decides. No request can change them."""

    tasks_dirs: tuple[Path, ...] = ()
    """Directories of tasks, or tasks."""
    directory: Path = Path("serve")
    """Directory of the service's database, rollouts and inline tasks."""
    config: RunConfig = RunConfig()
    """What each rollout is run with, unless its request says otherwise."""
    host: str = "127.0.0.1"
    port: int = Field(default=8643, ge=0, le=65535)
    slots: int = Field(default=4, ge=1)
    """The number of rollouts that run at once."""
    queue: int = Field(default=1000, ge=0)
    """The number of rollouts that wait. A request beyond it is refused with status 429."""
    jobs: int = Field(default=4, ge=0)
    """The number of jobs that run at once. Their rollouts share the slots."""
    caps: RequestCaps = RequestCaps()
    """The greatest values that a request may ask for."""
    on_restart: OnRestart = "lost"
    """What becomes of a rollout that ran without a checkpoint when the server was killed. `rerun`
    is for sandboxes without a network; other rollouts are lost."""
    keep_acknowledged_sec: float = Field(default=3600, ge=0)
    """The seconds after which an acknowledged result is deleted."""
    token_file: Path | None = None
    """File of bearer tokens, one a line, as `sha256:HEX` or as the token."""
    no_auth: bool = False
    """Whether requests need no token. Only on the loopback."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the `Host` header, besides the loopback and `host`."""
    allow_agents: tuple[str, ...] = ()
    """Agents that a request may name, besides the configured one."""
    allow_inline_tasks: bool = False
    """Whether a request may bring its own task."""
    allow_jobs: bool = False
    """Whether a request may run a job."""
    zmq: str | None = None
    """Address of the socket for verifiers' env clients, such as `tcp://127.0.0.1:5000`. The socket
    has no authentication."""
    zmq_keys: tuple[str, ...] = ()
    """Variables with keys of model endpoints that a run of an env client may name."""
    zmq_remote: bool = False
    """Whether the socket may be open to other machines."""
    max_body_mb: float = Field(default=16, gt=0)
    """The largest body of a request."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request, in bytes."""
        return int(self.max_body_mb * _MB)

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach the service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check_bind(self) -> None:
        """Refuse an address of other machines without authentication.

        Raises:
            UsageError: `no_auth` is set, and `host` is not the loopback.
        """
        if self.no_auth and not self.is_loopback:
            raise UsageError(
                f"--no-auth with --host {self.host} lets any machine run rollouts here",
                hint="leave out --no-auth, or listen on 127.0.0.1",
            )
