"""COPY and ADD instructions: sources, target and owner."""

import tarfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, TaskError
from benchflow_contracts.scratch import scratch_directory
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
    """One parsed COPY or ADD."""

    sources: tuple[str, ...]
    target: str
    """An absolute path; it ends with `/` if it must be a directory."""
    from_stage: str
    """The name of a stage or an image; empty for the context."""
    chown: str
    mode: int | None
    unpacks: bool
    documents: tuple[tuple[str, str], ...]
    """Names and texts of the here-documents, which are copied after the sources."""
    where: str

    @classmethod
    def of(cls, instruction: Instruction, stage: Stage, where: str) -> "CopyInstruction":
        """Read an instruction.

        Raises:
            TaskError: The instruction is malformed.
            SandboxUnsupportedError: The instruction needs the network, or has an unsupported flag.
        """
        words, flags = stage.scope.words(where), dict(instruction.flags)
        if unknown := sorted(set(flags) - _FLAGS[instruction.name]):
            raise SandboxUnsupportedError(
                f"{instruction.name} --{unknown[0]} is not supported by the local sandbox",
                where=where,
                hint="use the docker sandbox for this task",
            )
        raw = words.raw(instruction.text) if instruction.array is None else list(instruction.array)
        if instruction.documents:
            target = raw[-1]
            raw = [word for word in raw if heredoc_start(word, where) is None]
            _check_target(target, len(raw), where)
        paths, count = [words.resolve(word) for word in raw], len(raw) + len(instruction.documents)
        if not paths or count < 2:
            raise TaskError(f"{instruction.name} needs a source and a target", where=where)
        remote = next((path for path in paths[:-1] if path.startswith(_REMOTE)), None)
        if remote is not None:
            raise SandboxUnsupportedError(
                f"{instruction.name} of {remote[:200]!r}: a local build does not have a network",
                where=where,
                hint="put the file into the context, or use the docker sandbox",
            )
        last = paths[-1]
        directory = last.endswith(("/", "/.")) or last == "." or len(paths) > 2
        return cls(
            sources=tuple(paths[:-1]),
            target=stage.path(last).rstrip("/") + ("/" if directory else ""),
            from_stage=words.resolve(flags.get("from", "")),
            chown=words.resolve(flags.get("chown", "")),
            mode=_mode(words.resolve(flags.get("chmod", "")), where),
            unpacks=instruction.name == "ADD",
            documents=tuple((item.name, item.content(words)) for item in instruction.documents),
            where=where,
        )

    def key_parts(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Return the parts of the result's key: the instruction and digests of the sources."""
        options = (self.target, self.chown, str(self.mode), str(self.unpacks))
        texts = (text for document in self.documents for text in document)
        return ("copy", *options, *self.sources, *digests, *texts)

    def digests(self, tree: Tree) -> list[str]:
        """Return digests of the sources in the context."""
        return [
            f"{path}\0{tree.digest(path)}" for source in self.sources for path in tree.find(source)
        ]

    def copy(self, tree: Tree, root: Path, copier: Copier) -> None:
        """Copy the sources from a tree whose directory is `root`."""
        paths = [path for source in self.sources for path in tree.find(source)]
        for path in paths:
            self._copy_source(tree, root, path, copier, several=len(paths) > 1)
        if self.documents:
            self._write(copier)

    def _write(self, copier: Copier) -> None:
        with scratch_directory("copy") as directory:
            for name, text in self.documents:
                path = directory / name
                path.write_text(text, encoding="utf-8", newline="")
                path.chmod(0o644)
                tree = Tree(directory, self.where)
                self._copy_source(tree, directory, name, copier, several=False)

    def copy_inside(self, root: int, copier: Copier) -> None:
        """Copy the sources from the root of another sandbox in which no process runs."""
        directory = Path(f"/proc/self/fd/{root}")
        tree = Tree(directory, self.where, name=repr(self.from_stage))
        for source in self.sources:
            for path in tree.find(source):
                self._copy_source(tree, directory, path, copier, several=len(self.sources) > 1)

    def _copy_source(
        self, tree: Tree, root: Path, path: str, copier: Copier, *, several: bool
    ) -> None:
        files = tree.walk(path)
        place, name = root / tree.resolve(path), path.rpartition("/")[2]
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
    """Check the target of an instruction with here-documents as BuildKit does."""
    if heredoc_start(target, where) is not None:
        raise TaskError("a here-document needs a target after it", where=where)
    if count > 2 and not target.endswith("/"):
        raise TaskError(f"{target[:80]!r} must end with / for several files", where=where)


@contextmanager
def _unpacked(archive: Path, stop: StopFlag) -> Generator[Path]:
    with scratch_directory("add") as directory:
        try:
            with tarfile.open(archive) as tar:
                extract(tar, archive.name, directory, stop=stop)
        except (OSError, tarfile.TarError, EOFError, ValueError) as error:
            raise SandboxError(f"cannot unpack {archive.name!r}: {error}") from error
        yield directory


def _mode(text: str, where: str) -> int | None:
    if not text:
        return None
    try:
        return int(text, 8) & 0o7777
    except ValueError as error:
        raise TaskError(
            f"--chmod={text[:40]!r} is not an octal number", where=where, hint="write --chmod=0755"
        ) from error
