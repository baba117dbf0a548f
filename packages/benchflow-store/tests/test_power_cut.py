"""After a power cut no acknowledged attempt is lost: what was written and not flushed may be gone.

The test records the system calls of a writer, and replays them into a new directory up to a random
instant. Sectors and names that were not flushed by then are there, or not, by chance.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import job_records
import pytest
from benchflow_store.database import verify
from job_records import check_whole, write_pending

SLOTS = 6
SECTOR = 512
CALLS = "openat,write,pwrite64,ftruncate,fsync,fdatasync,mkdir,mkdirat,rename,renameat,unlink"
CALL = re.compile(r"(\w+)\((.*)\)\s+= (\d+)(?:<(.*)>)?$", re.DOTALL)
RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
PLACE = re.compile(r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>")

pytestmark = [pytest.mark.usefixtures("strace"), pytest.mark.timeout(300)]


@dataclass
class Node:
    """A file or a directory: what is durable, and what is not yet."""

    is_directory: bool = False
    data: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Offset and bytes, or a length that the file is cut to."""
    entries: dict[str, "Node"] = field(default_factory=dict)
    changes: list[tuple[str, "Node | None"]] = field(default_factory=list)
    """Names that were added or removed."""

    def live_entries(self) -> dict[str, "Node"]:
        return _changed(self.entries, self.changes)

    def flush(self) -> None:
        self.entries, self.changes = self.live_entries(), []
        for offset, data in self.writes:
            _write(self.data, offset, data)
        self.writes = []


def _changed(entries: dict[str, Node], changes: list[tuple[str, Node | None]]) -> dict[str, Node]:
    result = dict(entries)
    for name, node in changes:
        if node is None:
            result.pop(name, None)
        else:
            result[name] = node
    return result


def _write(data: bytearray, offset: int, new: bytes | None) -> None:
    if new is None:
        del data[offset:]
    data.extend(bytes(max(0, offset + len(new or b"") - len(data))))
    data[offset : offset + len(new or b"")] = new or b""


class Disk:
    """The directory of a job, as far as the system calls up to an instant have made it."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.root = Node(is_directory=True)
        self.positions: dict[str, int] = {}
        self.printed = ""

    def node(self, path: str) -> Node | None:
        if path != self.home and not path.startswith(f"{self.home}/"):
            return None
        node: Node | None = self.root
        for name in path[len(self.home) + 1 :].split("/") if path != self.home else ():
            node = None if node is None else node.live_entries().get(name)
        return node

    def name(self, path: str, node: Node | None) -> None:
        parent = self.node(path.rpartition("/")[0])
        if parent is not None:
            parent.changes.append((path.rpartition("/")[2], node))

    def run(self, call: str, places: list[str], texts: list[bytes], rest: str) -> None:
        """Do one call. `places` are the paths of descriptors, `texts` the strings."""
        if call in {"openat", "mkdir", "mkdirat"}:
            self._open(call, places[-1] if call == "openat" else _path(places, texts[0]), rest)
        elif call in {"rename", "renameat"}:
            old, new = (_path(places, text) for text in texts)
            node = self.node(old)
            if node is not None:
                self.name(new, node)
                self.name(old, None)
        elif call == "unlink":
            self.name(os.fsdecode(texts[0]), None)
        elif places[0].startswith("pipe:"):
            self.printed += os.fsdecode(texts[0]) if call == "write" else ""
        else:
            self._change(call, places[0], texts, rest)

    def _open(self, call: str, path: str, flags: str) -> None:
        if call != "openat":
            self.name(path, Node(is_directory=True))
        elif "O_CREAT" in flags and self.node(path) is None:
            self.name(path, Node())
        if "O_TRUNC" in flags and (node := self.node(path)) is not None:
            node.writes.append((0, None))
        self.positions[path] = 0

    def _change(self, call: str, path: str, texts: list[bytes], rest: str) -> None:
        node, numbers = self.node(path), [int(number) for number in re.findall(r", (\d+)", rest)]
        if node is None:
            return
        if call in {"fsync", "fdatasync"}:
            node.flush()
        elif call == "ftruncate":
            node.writes.append((numbers[0], None))
        elif call == "pwrite64":
            node.writes.append((numbers[1], texts[0]))
        else:
            node.writes.append((self.positions.get(path, 0), texts[0]))
            self.positions[path] = self.positions.get(path, 0) + len(texts[0])

    def cut(self, target: Path, rng: random.Random) -> set[int]:
        """Write what a power cut leaves into `target`. Return the acknowledged slots."""
        self._restore(self.root, target, rng)
        return {int(index) for index in re.findall(r"committed (\d+)\n", self.printed)}

    def _restore(self, node: Node, target: Path, rng: random.Random) -> None:
        if not node.is_directory:
            data = bytearray(node.data)
            for offset, new in node.writes:
                if new is None and rng.random() < 0.5:
                    _write(data, offset, None)
                for start in range(0, len(new or b""), SECTOR):
                    if rng.random() < 0.5:
                        _write(data, offset + start, (new or b"")[start : start + SECTOR])
            target.write_bytes(data)
            return
        target.mkdir()
        kept = rng.randrange(len(node.changes) + 1)
        for name, child in _changed(node.entries, node.changes[:kept]).items():
            is_promised = name not in {"facts", "evidence", "runtime", "record.db-shm"}
            if is_promised:
                self._restore(child, target / name, rng)


def _path(places: list[str], text: bytes) -> str:
    name = os.fsdecode(text)
    return name if name.startswith("/") else f"{places[0]}/{name}"


def calls(log: Path) -> Iterator[tuple[str, list[str], list[bytes], str]]:
    """Yield the successful calls in the order of their ends."""
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>")
            continue
        resumed = RESUMED.match(text)
        if resumed is not None:
            text = begun.pop(thread) + resumed[1]
        match = CALL.match(text)
        if match is None:
            continue
        call, given, _, result = match.groups()
        places = [os.fsdecode(_bytes(each)) for each in PLACE.findall(given)]
        places += [] if result is None else [os.fsdecode(_bytes(result))]
        rest = TEXT.sub("", given)
        yield call, places, [_bytes(each) for each in TEXT.findall(given)], rest


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if "\\x" in text else text.encode()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[tuple[object, ...]]]:
    """Record the system calls of a job from its first to its last commit."""
    home = tmp_path_factory.mktemp("power")
    job, log = home / "job", home / "log"
    job.mkdir()
    trace = ["strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}"]
    program = [sys.executable, job_records.__file__, str(job / "record.db"), str(SLOTS), "2", "6"]
    command = [*trace, "-o", str(log), *program]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120)
    return str(job), list(calls(log))


def disk_at(recorded: tuple[str, list[tuple[object, ...]]], instant: int, *, flushes: bool) -> Disk:
    disk = Disk(recorded[0])
    for call, *rest in recorded[1][:instant]:
        if flushes or call not in {"fsync", "fdatasync"}:
            disk.run(call, *rest)  # type: ignore[arg-type]
    return disk


def instants(recorded: tuple[str, list[tuple[object, ...]]], rng: random.Random) -> list[int]:
    """Return random instants after the first change of the directory."""
    place = recorded[0].encode()
    first = next(
        number
        for number, (_, places, texts, _) in enumerate(recorded[1])
        if any(str(recorded[0]) in str(each) for each in places)  # type: ignore[attr-defined]
        or place in b"".join(texts)  # type: ignore[arg-type]
    )
    return [rng.randrange(first, len(recorded[1]) + 1) for _ in range(40)]


def test_a_power_cut_loses_nothing_that_was_acknowledged(
    recorded: tuple[str, list[tuple[object, ...]]], tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for number, instant in enumerate(instants(recorded, rng)):
        job = tmp_path / str(number)
        acknowledged = disk_at(recorded, instant, flushes=True).cut(job, rng)
        if acknowledged:
            check_whole(job / "record.db", acknowledged)
        asyncio.run(write_pending(job / "record.db", SLOTS, 1, SLOTS))
        check_whole(job / "record.db", set(range(SLOTS)))
        assert verify(job).problems == ()


def test_the_replay_notices_flushes_that_are_missing(
    recorded: tuple[str, list[tuple[object, ...]]], tmp_path: Path
) -> None:
    disk = disk_at(recorded, len(recorded[1]), flushes=False)
    acknowledged = disk.cut(tmp_path / "job", random.Random(7))
    assert acknowledged == set(range(SLOTS))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever is missing
        check_whole(tmp_path / "job/record.db", acknowledged)
