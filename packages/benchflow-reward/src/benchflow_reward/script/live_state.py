"""Read the processes, memory files and host names of a sandbox: a copy of its files lacks them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow_contracts import ExecResult, Sandbox, SandboxError, SandboxLimitError

HOST_FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
"""An engine mounts these into each container, so that no image of one holds them."""

_MAX_PROCESSES = 200
_SEPARATOR, _EACH = "\x1e", "\x1d"
_LOOK = rf"""for f in {" ".join(HOST_FILES)}; do printf '\036%s\n' "$f"; head -c 65536 "$f"; done
printf '\036memory\n'
while read -r _ place kind _; do
  case $kind:$place in
    tmpfs:/dev | tmpfs:/proc* | tmpfs:/sys* | tmpfs:/.bf*) ;;
    tmpfs:*) [ -z "$(ls -A "$place")" ] || echo "$place" ;;
  esac
done < /proc/mounts
printf '\036processes\n'
left={_MAX_PROCESSES}
for p in /proc/[0-9]*; do
  [ "$p" != /proc/1 ] && [ "$p" != "/proc/$$" ] && read -r stat < "$p/stat" || continue
  case $stat in *') Z '* | *') X '*) continue ;; esac
  printf '\035%s\n' "${{p#/proc/}}"; cat "$p/cmdline"
  left=$((left - 1)); [ "$left" != 0 ] || break
done
printf '\036'
"""
_IDLE = frozenset({"sleep infinity", "sh -c sleep infinity", "/bin/sh -c sleep infinity"})
_SHOWN_PROCESSES, _SHOWN = 5, 100


@dataclass(frozen=True, slots=True)
class LiveState:
    """One look into a sandbox."""

    processes: tuple[str, ...] = ()
    """The command lines of what runs, but for what only idles."""
    pids: tuple[int, ...] = ()
    """Their numbers inside."""
    memory: tuple[str, ...] = ()
    """Where a file system in memory holds something."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the files of `NAMES` say."""
    unknown: str = ""
    """Why nothing is known."""

    @property
    def is_lost_in_a_copy(self) -> bool:
        """Whether a copy of the files lacks something."""
        return bool(self.processes or self.memory or self.unknown)

    @property
    def reasons(self) -> list[str]:
        """The parts that a copy of the files lacks, as text for a person."""
        found = [f"it runs: {line[:_SHOWN]}" for line in self.processes[:_SHOWN_PROCESSES]]
        if len(self.processes) > _SHOWN_PROCESSES:
            found.append(f"{len(self.processes) - _SHOWN_PROCESSES} more processes run")
        found += [f"there are files in memory: {place}" for place in self.memory]
        return found + ([self.unknown] if self.unknown else [])


async def read_live_state(sandbox: Sandbox) -> LiveState:
    """Read the processes and the files in memory, by commands of the sandbox itself.

    An agent that hides a process only loses that process.
    """
    try:
        done = await sandbox.exec(["/bin/sh", "-c", _LOOK], user="root", cwd="/", timeout=60)
    except SandboxLimitError as error:
        return LiveState(unknown=f"what runs is not known: {error}"[:300])
    except SandboxError as error:
        if error.retryable or error.caused_by not in {"inside", "unknown"}:
            raise
        return LiveState(unknown=f"what runs is not known: {error}"[:300])
    return _read(done)


def _read(done: ExecResult) -> LiveState:
    parts = done.stdout.split(_SEPARATOR)
    told = {name: text for name, _, text in (part.partition("\n") for part in parts[1:-1])}
    # A sandbox of the agent's may say anything.
    if len(parts) != len(HOST_FILES) + 4 or told.keys() != {*HOST_FILES, "memory", "processes"}:
        return LiveState(unknown=f"what runs is not known: exit code {done.exit_code}")
    runs = [each.partition("\n") for each in told["processes"].split(_EACH)[1:]]
    if not all(pid.isascii() and pid.isdecimal() for pid, _, _ in runs):
        return LiveState(unknown="what runs is not known: a process has no number")
    lines = [(int(pid), line.replace("\0", " ").strip()) for pid, _, line in runs]
    busy = [(line, pid) for pid, line in lines if line not in _IDLE]
    return LiveState(
        processes=tuple(line for line, _ in sorted(busy)),
        pids=tuple(pid for _, pid in sorted(busy)),
        memory=tuple(told["memory"].splitlines()),
        names={path: told[path] for path in HOST_FILES},
    )


def changed_host_files(live: LiveState, copy: LiveState, *, same_network: bool) -> dict[str, str]:
    """Return the contents that the files of `NAMES` must have in a copy.

    A copy keeps its own address. Name servers are those of its network, which may be another.
    """
    own = copy.names.get("/etc/hostname", "").strip()
    found = dict[str, str]()
    for path, text in live.names.items():
        if path == "/etc/resolv.conf" and not same_network:
            continue
        there, mine = _split(text, own), _split(copy.names.get(path, ""), own)
        if path in copy.names and there[0] != mine[0]:
            found[path] = "".join(f"{line}\n" for line in (*there[0], *mine[1]))
    return found


def _split(text: str, host: str) -> tuple[list[str], list[str]]:
    """Return the lines of a file, and apart from them those with the address of the host."""
    lines = text.splitlines()
    mine = [each for each in lines if host in each.split()[1:] and not each.startswith("127.")]
    return [each for each in lines if each not in mine], mine
