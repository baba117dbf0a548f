"""COPY and ADD instructions: sources, target and owner."""

import tarfile
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, TaskError
from benchflow_sandbox_core.recipe.dockerfile import Instruction
from benchflow_sandbox_core.recipe.heredoc import heredoc_start
from benchflow_sandbox_core.thread import StopFlag

from benchflow_sandbox_local.rootfs.archive import extract

from .copier import Copier
from .source_files import Tree
from .stage import Stage

_FLAGS = {"COPY": {"from", "chown", "chmod", "link"}, "ADD": {"chown", "chmod", "link"}}
_REMOTE = ("http://", "https://", "git@", "git://", "ssh://")


@dataclass(frozen=True, slots=True)
class CopyInstruction:
    """One COPY or ADD, read."""

    sources: tuple[str, ...]
    target: str
    """Absolute; ends with `/` when it must be a directory."""
    from_stage: str
    """A stage or an image; empty for the context."""
    chown: str
    mode: int | None
    unpacks: bool
    documents: tuple[tuple[str, str], ...]
    """Names and texts of files that the instruction itself holds, copied after the sources."""
    where: str

    @classmethod
    def of(cls, one: Instruction, stage: Stage, where: str) -> "CopyInstruction":
        """Read an instruction.

        Raises:
            TaskError: It is malformed.
            SandboxUnsupportedError: It needs the network, or what is not interpreted here.
        """
        words, flags = stage.scope.words(where), dict(one.flags)
        if unknown := sorted(set(flags) - _FLAGS[one.name]):
            raise SandboxUnsupportedError(
                f"{one.name} --{unknown[0]} is not supported by the local sandbox",
                where=where,
                hint="use the docker sandbox for this task",
            )
        raw = words.raw(one.text) if one.array is None else list(one.array)
        if one.documents:
            target = raw[-1]
            raw = [word for word in raw if heredoc_start(word, where) is None]
            _check_target(target, len(raw), where)
        named, count = [words.one(word) for word in raw], len(raw) + len(one.documents)
        if not named or count < 2:
            raise TaskError(f"{one.name} needs a source and a target", where=where)
        remote = next((name for name in named[:-1] if name.startswith(_REMOTE)), None)
        if remote is not None:
            raise SandboxUnsupportedError(
                f"{one.name} of {remote[:200]!r}: the local sandbox builds without a network",
                where=where,
                hint="put the file into the context, or use the docker sandbox",
            )
        last = named[-1]
        directory = last.endswith(("/", "/.")) or last == "." or len(named) > 2
        return cls(
            sources=tuple(named[:-1]),
            target=stage.path(last).rstrip("/") + ("/" if directory else ""),
            from_stage=words.one(flags.get("from", "")),
            chown=words.one(flags.get("chown", "")),
            mode=_mode(words.one(flags.get("chmod", "")), where),
            unpacks=one.name == "ADD",
            documents=tuple((each.name, each.content(words)) for each in one.documents),
            where=where,
        )

    def key_parts(self, found: Sequence[str]) -> tuple[str, ...]:
        """Return the key of the result, from the instruction and digests of the sources."""
        options = (self.target, self.chown, str(self.mode), str(self.unpacks))
        texts = (text for document in self.documents for text in document)
        return ("copy", *options, *self.sources, *found, *texts)

    def digests(self, tree: Tree) -> list[str]:
        """Return digests of the sources in the context."""
        return [
            f"{path}\0{tree.digest(path)}" for source in self.sources for path in tree.find(source)
        ]

    def copy(self, tree: Tree, root: Path, copier: Copier) -> None:
        """Copy from a tree, which lies at `root`."""
        found = [path for source in self.sources for path in tree.find(source)]
        for path in found:
            self._one(tree, root, path, copier, several=len(found) > 1)
        if self.documents:
            self._write(copier)

    def _write(self, copier: Copier) -> None:
        with tempfile.TemporaryDirectory(prefix="benchflow-copy-") as directory:
            for name, text in self.documents:
                path = Path(directory) / name
                path.write_text(text, encoding="utf-8", newline="")
                path.chmod(0o644)
                tree = Tree(Path(directory), self.where)
                self._one(tree, Path(directory), name, copier, several=False)

    def copy_inside(self, root: int, copier: Copier) -> None:
        """Copy from the root of another sandbox in which nothing runs."""
        path = Path(f"/proc/self/fd/{root}")
        tree = Tree(path, self.where, name=repr(self.from_stage))
        for source in self.sources:
            for found in tree.find(source):
                self._one(tree, path, found, copier, several=len(self.sources) > 1)

    def _one(self, tree: Tree, root: Path, path: str, copier: Copier, *, several: bool) -> None:
        files = tree.walk(path)
        place, name = root / tree.followed(path), path.rpartition("/")[2]
        if place.is_dir():
            copier.put(files, self.target, None)
        elif self.unpacks and place.is_file() and tarfile.is_tarfile(place):
            with _unpacked(place, copier.stop) as directory:
                inside = Tree(directory, self.where).walk("")
                Copier(copier.root, None, None, copier.stop).put(inside, self.target, None)
        elif several or self.target.endswith("/") or copier.is_directory(self.target):
            copier.put(files, self.target, name)
        else:
            above, _, last = self.target.rpartition("/")
            copier.put(files, above, last)


def _check_target(target: str, count: int, where: str) -> None:
    """Refuse what BuildKit refuses of an instruction with here-documents."""
    if heredoc_start(target, where) is not None:
        raise TaskError("it needs a target", where=where)
    if count > 2 and not target.endswith("/"):
        raise TaskError(f"{target[:80]!r} must end with / for several files", where=where)


@contextmanager
def _unpacked(archive: Path, stop: StopFlag) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="benchflow-add-") as directory:
        try:
            with tarfile.open(archive) as tar:
                extract(tar, archive.name, Path(directory), stop=stop)
        except (OSError, tarfile.TarError, EOFError, ValueError) as error:
            raise SandboxError(f"cannot unpack {archive.name!r}: {error}") from error
        yield Path(directory)


def _mode(text: str, where: str) -> int | None:
    if not text:
        return None
    try:
        return int(text, 8) & 0o7777
    except ValueError as error:
        raise TaskError(
            f"--chmod={text[:40]!r} is not an octal number", where=where, hint="write --chmod=0755"
        ) from error
