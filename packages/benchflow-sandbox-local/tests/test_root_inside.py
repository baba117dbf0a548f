"""An agent that is root of its box: it owns the box, and nothing outside of it."""

import os
from pathlib import Path

from benchflow_contracts.sandbox import SandboxSpec

TRIES = r"""
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def told(name, act):
    try:
        act()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
told("trusted", lambda: os.setxattr("/tmp", "trusted.overlay.opaque", b"y"))
told("capability", lambda: os.setxattr("/root/f", "security.capability", b"\1\0\0\2" + b"\0" * 16))
told("whiteout", lambda: os.mknod("/tmp/w", 0o20600, os.makedev(0, 0)))
told("disk", lambda: os.mknod("/tmp/d", 0o60600, os.makedev(254, 0)))
told("kmsg", lambda: os.mknod("/tmp/k", 0o20600, os.makedev(1, 11)))
told("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
told("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
told("hostname", lambda: socket.sethostname("mine"))
told("clock", lambda: __import__("time").clock_settime(0, 0))
told("host", lambda: open("/proc/1/root/proc/sysrq-trigger", "w"))
os.mkdir("/tmp/jail"); os.chroot("/tmp/jail")
for _ in range(64):
    os.chdir("..")
os.chroot(".")
print("top", ",".join(sorted(os.listdir("/"))))
"""
REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT"}


def test_root_of_a_box_gains_nothing_outside(with_box):
    async def check(sandbox):
        assert sandbox.spec.user == "root"
        await sandbox.exec("touch /root/f; cat > /tmp/tries.py", stdin=TRIES.encode())
        result = await sandbox.exec(["/usr/bin/python3", "-I", "/tmp/tries.py"])
        lines = dict(line.split(" ", 1) for line in result.stdout.splitlines())
        assert len(lines) == 11, result
        assert ".bf" in lines.pop("top").split(",")  # a way out of a chroot ends at the box's root
        assert {name: why for name, why in lines.items() if why not in REFUSED} == {}

    with_box(check, user="", workdir="")


def test_what_root_of_a_box_writes_stays_in_it(with_provider, tmp_path):
    marks = [Path("/usr/bin/env"), Path("/etc/passwd")]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in marks]

    async def check(provider):
        box = await provider.create(SandboxSpec(user="", workdir=""))
        other = await provider.create(SandboxSpec(user="", workdir=""))
        for command in ("echo evil > /usr/bin/env", "rm -rf /etc/passwd", "kill -9 -1"):
            await box.exec(command, timeout=20)
        assert (await other.exec(["/usr/bin/env", "true"])).ok
        assert (await box.exec(["/bin/true"])).ok
        await box.download("/usr/bin/env", tmp_path / "env")

    with_provider(check)
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in marks] == before
    assert (tmp_path / "env").read_text() == "evil\n"
    assert os.access("/usr/bin/env", os.X_OK)
