"""Groups of rollouts: one task, one policy version, and a place for each member."""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from benchflow_contracts import RareModel
from benchflow_serve_client import GroupPlace, GroupStatus, RolloutRequest, RolloutStatus
from benchflow_store import GroupRecord

from .entries import Entry
from .problems import ConflictError, NotFoundError
from .store import ServiceStore


class SavedGroup(RareModel):
    """A group as the database has it."""

    id: str
    size: int
    task: str
    policy: str | None = None
    policy_version: str | None = None
    created_at: float
    scored: GroupRecord | None = None
    """The verdicts of the group reward of the service."""
    deleted: Mapping[int, str] = {}
    """The members whose results were acknowledged and deleted, by index."""


@dataclass(slots=True)
class Group:
    """A group in memory, with the ids of its members by their index."""

    saved: SavedGroup
    members: dict[int, str] = field(default_factory=dict[int, str])
    is_scored: bool = False
    """Whether the verdicts of the group reward are on disk."""

    @property
    def ids(self) -> list[str]:
        """The ids of the members, in order."""
        return [self.members[index] for index in sorted(self.members)]

    @property
    def is_complete(self) -> bool:
        """Whether each member was submitted."""
        return len(self.members) == self.saved.size

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


class GroupTable:
    """The groups of a service, by id."""

    def __init__(self, reward: str | None = None) -> None:
        """Make an empty table. `reward` is the name of the service's group reward."""
        self._reward = reward
        self._groups: dict[str, Group] = {}

    def __contains__(self, ident: object) -> bool:
        return ident in self._groups

    def load(self, store: ServiceStore, entries: Iterable[Entry]) -> None:
        """Read the groups of earlier servers, whose members are `entries`."""
        for body in store.groups():
            saved = SavedGroup.model_validate(body)
            is_scored = saved.scored is not None
            self._groups[saved.id] = Group(saved, dict(saved.deleted), is_scored)
        for entry in entries:
            place = entry.request.group
            if place is not None and place.id in self._groups:
                self._groups[place.id].members[place.index] = entry.id

    def scored(self, place: GroupPlace | None) -> GroupRecord | None:
        """Return the verdicts on the group of a member; None without a group reward.

        Raises:
            ConflictError: The group is not scored yet.
        """
        group = None if place is None else self._groups.get(place.id)
        if group is None or self._reward is None:
            return None
        if not group.is_scored:
            raise ConflictError(
                f"group {group.saved.id!r} is not scored yet",
                hint="its results are complete when is_ended of the group is true",
            )
        return group.saved.scored

    def unscored(self, entries: Mapping[str, Entry]) -> list[Group]:
        """Return the groups whose members have all ended, and that are not scored."""
        return [
            group
            for group in self._groups.values()
            if not group.is_scored
            and group.is_complete
            and all(e.status.state == "ended" for i in group.ids if (e := entries.get(i)))
        ]

    def join(self, request: RolloutRequest, task: str, version: str | None) -> SavedGroup | None:
        """Return the new group of a member; None if it has none, or if the group exists.

        Raises:
            ConflictError: The member does not fit to the group.
        """
        place = request.group
        if place is None:
            return None
        if (group := self._groups.get(place.id)) is not None:
            group.check_place(place, task, version)
            return None
        return SavedGroup(
            id=place.id,
            size=place.size,
            task=task,
            policy=request.policy,
            policy_version=version,
            created_at=time.time(),
        )

    def add(self, entries: Iterable[Entry], new: SavedGroup | None) -> None:
        """Note the members that were recorded, and their group if it is a new one."""
        if new is not None:
            self._groups[new.id] = Group(new)
        for entry in entries:
            if (place := entry.request.group) is not None:
                self._groups[place.id].members[place.index] = entry.id

    def has_ended(self, ident: str, entries: Mapping[str, Entry]) -> bool:
        """Return whether all members of a group have ended, and are scored together.

        Raises:
            NotFoundError: No group has the id.
        """
        group = self._find(ident)
        is_over = group.is_complete and (self._reward is None or group.is_scored)
        known = (entries.get(each) for each in group.members.values())
        return is_over and all(entry is None or entry.status.state == "ended" for entry in known)

    def status(
        self,
        ident: str,
        entries: Mapping[str, Entry],
        status_of: Callable[[str], RolloutStatus],
    ) -> GroupStatus:
        """Return a group with its members that are not deleted.

        Raises:
            NotFoundError: No group has the id.
        """
        group = self._find(ident)
        members = [status_of(each) for each in group.ids if each in entries]
        scored = group.saved.scored if group.is_scored else None
        lost = [m.id for m in members if m.state == "ended" and m.outcome != "scored"]
        return GroupStatus(
            id=ident,
            size=group.saved.size,
            policy=group.saved.policy,
            policy_version=group.saved.policy_version,
            is_ended=self.has_ended(ident, entries),
            members=members,
            lost=lost,
            group_reward=None if scored is None else scored.reward,
            not_compared=[] if scored is None else [str(each) for each in scored.lost],
        )

    def _find(self, ident: str) -> Group:
        group = self._groups.get(ident)
        if group is None:
            raise NotFoundError(f"the service has no group {ident!r}")
        return group

    def without(self, entry: Entry) -> tuple[str, str] | None:
        """Return the row of a member's group after the deletion of the member."""
        place = entry.request.group
        if place is None or (group := self._groups.get(place.id)) is None:
            return None
        deleted = {**group.saved.deleted, place.index: entry.id}
        group.saved = group.saved.model_copy(update={"deleted": deleted})
        return place.id, group.saved.model_dump_json()

    def delete_empty(self, store: ServiceStore, known: Collection[str]) -> None:
        """Delete the groups none of whose members is `known`."""
        for name, group in list(self._groups.items()):
            if not any(each in known for each in group.members.values()):
                store.delete_group(name)
                del self._groups[name]


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
