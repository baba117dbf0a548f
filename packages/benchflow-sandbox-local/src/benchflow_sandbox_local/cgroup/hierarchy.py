"""Find the directories in which this process may create control groups."""

import os
from dataclasses import dataclass
from pathlib import Path

V1_CONTROLLERS = ("freezer", "memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Directories below which this process may create groups."""

    v1: dict[str, Path]
    """The v1 directories by controller; empty on a machine with v2 only."""
    v2: Path | None


def find(*, prefer_v2: bool = False) -> Hierarchies:
    """Return the groups of this process, or above it, in which it may create groups.

    The limits of those groups also apply to the new groups.
    """
    own = _own_groups()
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for point, kind, options in _mounts():
        if kind == "cgroup2" and v2 is None:
            v2 = _writable_v2(point, own.get("", "/"))
        if kind == "cgroup" and not prefer_v2:
            for controller in set(options.split(",")) & set(V1_CONTROLLERS):
                base = Path(point + own.get(controller, "/"))
                if controller not in v1 and os.access(base, os.W_OK):
                    v1[controller] = base
    return Hierarchies(v1, None if "freezer" in v1 else v2)


def _own_groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _mounts() -> list[tuple[str, str, str]]:
    mounts: list[tuple[str, str, str]] = []
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, options = line.split(" ")[:4]
        if kind in {"cgroup", "cgroup2"}:
            mounts.append((point.replace("\\040", " "), kind, options))
    return mounts


def _writable_v2(point: str, own: str) -> Path | None:
    """Return the nearest group, from `own` upwards, whose children can have controllers.

    A group with processes cannot enable controllers for its children, unless it is the root.
    Without such a group, return the nearest writable one.
    """
    top = Path(point)
    base = Path(point + own)
    best: Path | None = None
    while True:
        if os.access(base, os.W_OK) and os.access(base / "cgroup.procs", os.W_OK):
            best = best or base
            if _enabled(base) & {"memory", "pids"}:
                return base
        if base == top:
            return best
        base = base.parent


def _enabled(group: Path) -> set[str]:
    control = group / "cgroup.subtree_control"
    wanted = {"memory", "pids", "cpu"} & set((group / "cgroup.controllers").read_text().split())
    for controller in sorted(wanted - set(control.read_text().split())):
        try:
            control.write_text(f"+{controller}")
        except OSError:
            continue
    return set(control.read_text().split())
