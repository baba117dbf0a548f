"""What is known of a sandbox from outside, and which ones are removed."""

from collections.abc import Mapping

from ._model import Model
from .identity import RolloutIdentity


class ReapPolicy(Model):
    """Which left-over sandboxes `reap` removes. Foreign ones are never touched."""

    dead_owners: bool = True
    """Those whose owner has certainly ended."""
    scope: str | None = None
    """Only those of this scope, as `RolloutIdentity` has it."""
    labels: Mapping[str, str] = {}
    """Only those whose identity has all of these flat labels."""
    overdue: bool = False
    """Also those past their deadline whose owner lives, or is unknown. Their runs fail by that."""
    built_images: bool = False
    """Also the images that were made from recipes and that nothing uses now. They have no
    owner, so that the other fields do not concern them."""
    dry_run: bool = False

    def selects(self, identity: RolloutIdentity) -> bool:
        """Whether `identity` has the scope and the labels of this policy."""
        if self.scope is not None and self.scope != identity.scope:
            return False
        return self.labels.items() <= identity.labels().items()


class SandboxRecord(Model):
    """One sandbox known to the provider, alive or left over."""

    id: str
    provider: str
    owner_alive: bool | None
    """`None`: the owner cannot be judged from here, as on another host that shares the engine."""
    created_at: float
    """Seconds since the epoch."""
    identity: RolloutIdentity = RolloutIdentity()

    def overdue(self, now: float) -> bool:
        """Whether it should be gone by `now`, in seconds since the epoch."""
        deadline = self.identity.deadline
        return deadline is not None and deadline < now

    def wanted(self, policy: ReapPolicy, now: float) -> bool:
        """Whether `policy` wants it removed. What is not overdue stays, unless its owner ended."""
        ended = self.owner_alive is False
        due = policy.dead_owners if ended else policy.overdue and self.overdue(now)
        return due and policy.selects(self.identity)
