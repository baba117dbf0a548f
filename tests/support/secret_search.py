"""Search the inside of a sandbox for a secret, as its root, without bringing the secret in."""

from benchflow_contracts.sandbox import Sandbox

_SEARCH = r"""
import os, re, sys
secret = sys.argv[1][::-1].encode()
own, found, read = os.getpid(), [], {"environ": 0, "cmdline": 0, "mem": 0, "files": 0}

def look(kind, where, data):
    read[kind] += 1
    if secret in data:
        found.append(f"{kind} {where}")

def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
        for line in maps:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            if line.split()[1].startswith("rw") and end - begin < 1 << 27:
                try:
                    mem.seek(begin)
                    yield mem.read(end - begin)
                except (OSError, OverflowError):
                    continue

for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == own:
        continue
    for kind in ("environ", "cmdline"):
        try:
            look(kind, pid, open(f"/proc/{pid}/{kind}", "rb").read())
        except OSError:
            continue
    try:
        for part in memory(pid):
            look("mem", pid, part)
    except OSError:
        continue
for top in ("/.benchflow", "/workspace", "/tmp", "/run", "/root", "/home", "/etc", "/var/tmp"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path) < 1 << 22:
                try:
                    look("files", path, open(path, "rb").read())
                except OSError:
                    continue
print(read)
print(*found, sep="\n")
"""


async def places_of(secret: str, sandbox: Sandbox) -> list[str]:
    """Return where `secret` is: variables, arguments and memory of processes, and files.

    Each kind must have been read at least once.
    """
    command = ["python3", "-c", _SEARCH, secret[::-1]]
    result = await sandbox.exec(command, user="root", cwd="/", timeout=60)
    assert result.ok, result.stderr
    counts, *places = result.stdout.splitlines()
    assert ": 0" not in counts, counts
    return [place for place in places if place]
