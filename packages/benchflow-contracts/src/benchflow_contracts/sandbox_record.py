"""Records of sandboxes, their owners, and the choice of the sandboxes to remove."""

from collections.abc import Mapping
from uuid import uuid4

from pydantic import Field

from ._model import Model
from .identity import RolloutIdentity

HEARTBEAT_SEC = 60.0
"""How often an owner renews its heartbeat."""

HEARTBEAT_EXPIRY_SEC = 3600.0
"""An owner without a heartbeat for this time counts as dead."""


class Owner(Model):
    """The runner process that created a sandbox. A provider stores it with the sandbox.

    A lock that the kernel releases is the better sign of life, where a reaper can see the lock. A
    provider on other machines stores heartbeats instead.
    """

    id: str = Field(default_factory=lambda: uuid4().hex, pattern=r"^[0-9a-f]{32}$")
    """Random. No other process has it, at any time."""
    renewed_at: float | None = None
    """The time of the last heartbeat, in seconds since the epoch; `None`: it has no heartbeat."""

    def is_expired(self, now: float) -> bool:
        """Return whether the heartbeat is older than `HEARTBEAT_EXPIRY_SEC`.

        `now` should be of the clock that stamped the heartbeat, such as the clock of the provider.
        """
        return self.renewed_at is not None and self.renewed_at + HEARTBEAT_EXPIRY_SEC < now


class ReapPolicy(Model):
    """Selects the left-over sandboxes that `reap` removes. Foreign ones are never removed."""

    dead_owners: bool = True
    """Remove sandboxes whose owner has certainly ended."""
    scope: str | None = None
    """Remove only sandboxes of this `RolloutIdentity.scope`."""
    job_dir: str | None = None
    """Remove only sandboxes of this `RolloutIdentity.job_dir`, and those without one."""
    except_epoch: str | None = None
    """Remove no sandboxes of this `RolloutIdentity.epoch`."""
    labels: Mapping[str, str] = {}
    """Remove only sandboxes whose identity has all of these flat labels."""
    overdue: bool = False
    """Also remove sandboxes past their deadline whose owner lives or is unknown. Their rollouts
    fail then."""
    built_images: bool = False
    """Also remove unused images that were built from recipes. They do not have an owner, so the
    other fields do not apply to them."""
    dry_run: bool = False
    """Return the records only, and remove nothing."""

    def selects(self, identity: RolloutIdentity) -> bool:
        """Return whether the policy covers sandboxes of `identity`, if their owner is dead."""
        if self.scope is not None and self.scope != identity.scope:
            return False
        if self.job_dir is not None and identity.job_dir not in {None, self.job_dir}:
            return False
        if self.except_epoch is not None and self.except_epoch == identity.epoch:
            return False
        return self.labels.items() <= identity.labels().items()


class SandboxRecord(Model):
    """One sandbox known to the provider, alive or left over."""

    id: str
    provider: str
    owner: Owner | None = None
    """`None`: the provider does not record owners, because no sandbox outlives its process."""
    owner_alive: bool | None
    """`None`: unknown, as for an owner on another machine whose heartbeat has not expired."""
    created_at: float
    """Seconds since the epoch."""
    identity: RolloutIdentity = RolloutIdentity()

    def overdue(self, now: float) -> bool:
        """Return whether the deadline is before `now`, in seconds since the epoch."""
        deadline = self.identity.deadline
        return deadline is not None and deadline < now

    def wanted(self, policy: ReapPolicy, now: float) -> bool:
        """Return whether `policy` selects the sandbox for removal at `now`."""
        ended = self.owner_alive is False
        due = policy.dead_owners if ended else policy.overdue and self.overdue(now)
        return due and policy.selects(self.identity)
