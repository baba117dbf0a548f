# The calls themselves are what is asked about: pathlib would stand between.
# ruff: noqa: PTH116, PTH211
"""Run in a mount namespace: builds an overlay root and asks programs in it about its files.

Prints JSON: what each way of asking told with the library, and the raw numbers.
"""

import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

PINNED = (1 << 63) + 12345
FILES = ("pinned", "stale", "short", "plain", "unreadable")


def mount(kind, source, target, options=None):
    command = ["mount", "-t", kind, source, target]
    subprocess.run([*command, "-o", options] if options else command, check=True)


def bind(source, root):
    target = root / str(source).lstrip("/")
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--rbind", source, target], check=True)


def build(top, library):
    mount("tmpfs", "tmpfs", top)
    root = top / "root"
    for path in (top / "upper", top / "work", root):
        path.mkdir()
    layers = f"lowerdir=/,upperdir={top}/upper,workdir={top}/work"
    mount("overlay", "overlay", root, f"{layers},xino=on")
    # Python may be anywhere; it is not what the questions are about.
    for path in {sys.prefix, sys.base_prefix}:
        bind(path, root)
    bind("/proc", root)
    bind("/dev", root)
    shutil.copy(library, root / "bf-identity.so")
    data = root / "data"
    data.mkdir()
    data.chmod(0o755)
    for name in FILES:
        (data / name).write_text("x")
    os.symlink("pinned", data / "link")
    os.mkfifo(data / "fifo")
    pin(data / "pinned", PINNED, raw(data / "pinned"))
    pin(data / "unreadable", PINNED + 1, raw(data / "unreadable"))
    (data / "unreadable").chmod(0o600)
    pin(data / "stale", PINNED, raw(data / "stale") + 1)
    os.setxattr(data / "short", "security.bf.ino", b"1")
    return root, data


def pin(path, seen, valid):
    os.setxattr(path, "security.bf.ino", struct.pack("<QQQ", seen, 0, valid))


def raw(path):
    return path.lstat().st_ino


def ask(root, *command):
    def enter():
        os.chroot(root)
        os.chdir("/")

    environment = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "/bf-identity.so"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, preexec_fn=enter, check=False
    )
    assert done.returncode == 0 and not done.stderr, (command, done)
    return done.stdout


def main():
    top, library, questions, static = sys.argv[1:]
    root, data = build(Path(top), library)
    shutil.copy(questions, root / "questions.py")
    shutil.copy(static, root / "static")
    told = json.loads(ask(root, sys.executable, "-I", "/questions.py"))
    told |= {
        "raw": {path.name: raw(path) for path in data.iterdir()},
        "raw_device": data.lstat().st_dev,
        "proc": os.stat("/proc/version").st_dev,
        "static": ask(root, "/static", "/data/pinned").split(),
        "coreutils": ask(root, "stat", "-L", "-c", "%i", "/data/pinned", "/data/link").split(),
    }
    assert all(stat.S_ISREG((data / name).stat().st_mode) for name in FILES)
    print(json.dumps(told))


main()
