"""The files that a verdict rests on: logs, artifacts and the verifier's output of a rollout.

Agents choose the names and the content of these files. Links are never followed.
"""

import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from benchflow_contracts import RolloutNode, StoreError

EVIDENCE_DIRS: Final = ("verifier", "artifacts", "agent", "services", "steps", "model")
"""The directories of a rollout, and of a branch, that are evidence."""
BRANCHES_DIR: Final = "branches"
MOST_FILES: Final = 2_000
"""The maximum number of files in a listing."""
_MOST_ENTRIES: Final = 20_000
_DEEPEST: Final = 16
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One regular file below the directory of a rollout."""

    path: str
    """Relative to the rollout's directory. Bytes that are not UTF-8 are surrogates."""
    size: int
    """In bytes."""

    @property
    def text(self) -> str:
        """The path as text that can be printed and encoded."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")

    @property
    def id(self) -> str:
        """The name of the file in a URL: a digest of the path."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class EvidenceListing:
    """The files of one world: the rollout's first one, or a branch."""

    world: str
    """The directory of the world, relative to the rollout's; empty for the first world."""
    files: tuple[EvidenceFile, ...]
    """By path; at most `MOST_FILES`."""
    hidden: int
    """Further files. Of a very large directory, a lower bound."""
    refused: int
    """Links, pipes and devices, which are never opened."""


def list_evidence(
    jobs_dir: Path, parts: Sequence[str], node: RolloutNode | None
) -> EvidenceListing:
    """Return the evidence of the world of `node`; of the first world without a node.

    `parts` are the names of the job, if any, and of the rollout, below `jobs_dir`.

    Raises:
        StoreError: The directory of the rollout is missing, or is a link.
    """
    with _directory(jobs_dir, parts) as rollout:
        world = _world(rollout, node)
    with _directory(jobs_dir, [*parts, *filter(None, world.split("/"))]) as descriptor:
        found, refused = _walk(descriptor)
    prefix = f"{world}/" if world else ""
    files = sorted(
        (EvidenceFile(f"{prefix}{name}", size) for name, size in found), key=lambda each: each.path
    )
    shown = tuple(files[:MOST_FILES])
    return EvidenceListing(world, shown, len(files) - len(shown), refused)


@contextmanager
def open_evidence(jobs_dir: Path, parts: Sequence[str], file: EvidenceFile) -> Generator[BinaryIO]:
    """Open a file of a listing. No part of its path may be a link.

    Raises:
        StoreError: The file is gone, or is not a regular file any more.
    """
    *directories, name = file.path.split("/")
    _check_name(name)
    with _directory(jobs_dir, [*parts, *directories]) as directory:
        try:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        except OSError as error:
            raise StoreError(f"cannot open {file.path!r}: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{file.path!r} is not a regular file")
            yield opened


@contextmanager
def _directory(home: Path, parts: Sequence[str]) -> Generator[int]:
    """Yield the descriptor of a directory below `home`. `home` itself may be behind a link."""
    descriptor = -1
    try:
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            _check_name(part)
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    except OSError as error:
        # A link is `ENOTDIR` here, because of O_DIRECTORY, or `ELOOP`.
        place = "/".join(parts)
        raise StoreError(
            f"cannot open the directory {place!r}: {error.strerror}",
            hint="links are not followed",
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _check_name(name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise StoreError(f"not the name of a file or directory: {name!r}")


def _world(rollout: int, node: RolloutNode | None) -> str:
    """Return the directory of the newest branch on the path to `node`."""
    try:
        descriptor = os.open(BRANCHES_DIR, _DIRECTORY, dir_fd=rollout)
    except OSError:
        return ""
    try:
        branches = set(os.listdir(descriptor))  # noqa: PTH208 - a path could be a link by now
    finally:
        os.close(descriptor)
    path = [] if node is None else list(node.path)
    newest = (each.id for each in reversed(path) if each.id in branches)
    return next((f"{BRANCHES_DIR}/{name}" for name in newest), "")


def _walk(world: int) -> tuple[list[tuple[str, int]], int]:
    """Return the paths and sizes of regular files, and the number of other entries."""
    found: list[tuple[str, int]] = []
    refused = entries = 0
    for directory, names, descriptor in _directories(world):
        for name in names:
            entries += 1
            if entries > _MOST_ENTRIES:
                return found, refused
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append((f"{directory}/{name}", status.st_size))
            else:
                refused += not stat.S_ISDIR(status.st_mode)
    return found, refused


def _directories(world: int) -> Iterator[tuple[str, list[str], int]]:
    """Yield each directory of evidence, its entries and its descriptor."""
    for top in EVIDENCE_DIRS:
        with suppress(OSError):
            # `fwalk` compares each directory that it opens with what it saw: no link is entered.
            for directory, inner, files, descriptor in os.fwalk(top, dir_fd=world):
                if directory.count("/") >= _DEEPEST:
                    inner.clear()
                yield directory, [*inner, *files], descriptor
