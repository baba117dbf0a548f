"""Groups of rollouts: one task, one policy version, and a place for each member."""

import hashlib
from dataclasses import dataclass, field

from benchflow_contracts import RareModel
from benchflow_serve_client import GroupPlace, RolloutRequest

from .problems import ConflictError


class SavedGroup(RareModel):
    """A group as the database has it."""

    id: str
    size: int
    task: str
    policy: str | None = None
    policy_version: str | None = None
    created_at: float


@dataclass(slots=True)
class Group:
    """A group in memory, with the ids of its members by their index."""

    saved: SavedGroup
    members: dict[int, str] = field(default_factory=dict[int, str])

    def check_place(self, place: GroupPlace, task: str, version: str | None) -> None:
        """Refuse a member that does not fit.

        Raises:
            ConflictError: The size, the task or the policy version differs, or the place is taken.
        """
        saved, name = self.saved, self.saved.id
        if place.size != saved.size:
            raise ConflictError(f"group {name!r} has the size {saved.size}, not {place.size}")
        if task != saved.task:
            raise ConflictError(f"group {name!r} is of task {saved.task!r}, not {task!r}")
        if place.index in self.members:
            raise ConflictError(f"index {place.index} of group {name!r} is taken")
        if version != saved.policy_version:
            raise ConflictError(
                f"group {name!r} is of policy version {saved.policy_version!r}, and the policy"
                f" has version {version!r} now",
                hint="begin a new group, or submit all members at once by POST /v1/groups",
            )


def members_of(request: RolloutRequest, group: str, size: int) -> list[RolloutRequest]:
    """Return the requests of the members. Each has a seed of its own, if the request has one."""
    return [
        request.model_copy(
            update={
                "group": GroupPlace(id=group, size=size, index=index),
                "seed": None if request.seed is None else derive_seed(request.seed, index),
            }
        )
        for index in range(size)
    ]


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of one member: the same for the same numbers, below 2**31."""
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1
