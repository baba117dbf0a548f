"""What the kernel counts of the processes of a container."""

from pathlib import Path

from benchflow_contracts.cause import refuse_shortage
from benchflow_sandbox_core.counters import GroupCounters

_ROOT = Path("/sys/fs/cgroup")
NOTHING = GroupCounters(None, None)


def counters_of(pid: int) -> GroupCounters:
    """Return the counters of the control groups that a process is in, where they can be seen.

    Raises:
        HostError: The host could not look.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        refuse_shortage("find the counters of a container", error)
        return NOTHING
    found: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in ("memory", "pids"):
            if kind in controllers.split(","):
                found[kind] = _ROOT / kind / path.strip("/")
            elif not controllers and (_ROOT / "cgroup.controllers").exists():
                found[kind] = _ROOT / path.strip("/")
    return GroupCounters(found.get("memory"), found.get("pids"))
