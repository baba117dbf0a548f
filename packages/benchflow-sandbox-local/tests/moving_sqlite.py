"""Run in a mount namespace: a process in a SQLite transaction is moved to another mount.

It does to itself what a live fork does to it: its root becomes the lower layer of a new
overlay, and each of its descriptors is opened there again, under the same number. Prints what
a second connection is told after each move.
"""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

from benchflow_sandbox_local.launcher_process.layers.inode_pins import pin

TOP = Path(sys.argv[1])
PINNED = sys.argv[2] == "pinned"
DATABASE = "/srv/app.db"
CONSTANT = os.makedev(0, 0xFBF01)
"""What the library tells as the device of every root."""


def mount(kind, target, options=None):
    command = ["mount", "-t", kind, kind, target]
    subprocess.run([*command, "-o", options] if options else command, check=True)


class Roots:
    """One overlay per generation, each on top of all uppers before it."""

    def __init__(self):
        self._layers, self._device = [], 0
        self._outside = os.open("/", os.O_PATH)
        mount("tmpfs", TOP)
        (TOP / "base" / "srv").mkdir(parents=True)
        (TOP / "taken").mkdir()

    def enter(self):
        number = len(self._layers)
        self._upper, work, self._root = (TOP / f"{name}{number}" for name in "uwm")
        for path in (self._upper, work, self._root):
            path.mkdir()
        lowers = ":".join(map(str, [*self._layers, TOP / "base"]))
        where = f"lowerdir={lowers},upperdir={self._upper},workdir={work}"
        self._mount(f"{where},index=on,nfs_export=on,xino=on")
        self._layers.insert(0, self._upper)
        os.chroot(self._root)
        os.chdir("/")

    def _mount(self, options):
        """Mount the root; not by chance with the device number of the one before."""
        mount("overlay", self._root, options)
        while self._root.stat().st_dev == self._device:
            subprocess.run(["umount", self._root], check=True)
            mount("tmpfs", TOP / "taken")  # takes the lowest number that is free
            mount("overlay", self._root, options)
        if self._root.stat().st_dev != CONSTANT:
            self._device = self._root.stat().st_dev

    def leave(self):
        os.fchdir(self._outside)
        os.chroot(".")
        if PINNED:
            pin(str(self._upper), str(self._root))
        subprocess.run(["umount", self._root], check=True)

    def open_files(self):
        """Return what is open below /srv: number and path."""
        directory = os.open("proc/self/fd", os.O_RDONLY, dir_fd=self._outside)
        found = []
        for name in os.listdir(directory):  # noqa: PTH208 - of a descriptor
            with suppress(FileNotFoundError):  # the descriptor of the listing itself
                path = os.readlink(name, dir_fd=directory)
                if path.startswith("/srv/"):
                    found.append((int(name), path))
        os.close(directory)
        return found

    def move(self):
        found = self.open_files()
        assert any(path == DATABASE for _, path in found), found
        null = os.open("dev/null", os.O_RDWR, dir_fd=self._outside)
        for number, _ in found:
            os.dup2(null, number)
        os.close(null)
        self.leave()
        self.enter()
        for number, path in found:
            again = os.open(path, os.O_RDWR)
            os.dup2(again, number)
            os.close(again)


def second_writer():
    with closing(sqlite3.connect(DATABASE, timeout=0, isolation_level=None)) as second:
        try:
            second.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            return str(error)
        return "admitted"


def main():
    roots = Roots()
    roots.enter()
    first = sqlite3.connect(DATABASE, isolation_level=None)
    first.execute("CREATE TABLE t (x)")
    first.execute("BEGIN IMMEDIATE")
    first.execute("INSERT INTO t VALUES (1)")
    told = [second_writer()]
    for _ in range(3):
        roots.move()
        told.append(second_writer())
        if told[-1] == "admitted":
            break
        # The next generation must copy the file up, too.
        first.execute("COMMIT")
        first.execute("BEGIN IMMEDIATE")
        first.execute("INSERT INTO t VALUES (1)")
    print(",".join(told))


main()
