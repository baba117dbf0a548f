"""RUN --mount: files that an instruction can read and that no layer contains."""

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import SandboxUnsupportedError, TaskError

from benchflow_sandbox_local.launcher_process.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

from .copier import Copier
from .copy_instruction import CopyInstruction
from .stage import Stage

_PLAIN = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS
_MODES = {"cache": 0o755, "tmpfs": 0o1777}
_NAMES = {"dst": "target", "destination": "target", "src": "source", "readwrite": "rw"}
_READ = {
    "bind": {"target", "source", "from", "readonly", "ro"},
    "cache": {"target", "id", "sharing", "uid", "gid", "mode"},
    "tmpfs": {"target", "size"},
}


@dataclass(frozen=True, slots=True)
class RunMount:
    """One mount. Without `copying`, it is a cache or tmpfs that is empty at the start."""

    target: str
    """An absolute path."""
    copying: CopyInstruction | None
    """The files of a bind mount, as a copy to `/bind`."""
    owner: tuple[int, int]
    mode: int
    where: str

    @classmethod
    def of(cls, value: str, stage: Stage, where: str) -> "RunMount":
        """Read the value of a flag. Source: the Dockerfile reference, "RUN --mount".

        Raises:
            TaskError: The value is malformed.
            SandboxUnsupportedError: The type or an option is not supported here.
        """
        pairs = (part.partition("=") for part in stage.scope.words(where).resolve(value).split(","))
        options = {_NAMES.get(key.lower(), key.lower()): text for key, _, text in pairs}
        kind = options.pop("type", "bind")
        unknown = sorted(set(options) - _READ.get(kind, set()))
        if kind not in _READ or unknown:
            raise SandboxUnsupportedError(
                f"RUN --mount=type={kind[:40]} {unknown[:1]} is not supported by the local sandbox",
                where=where,
                hint="remove the mount, or use the docker sandbox for this task",
            )
        target = stage.path(options.get("target", ""))
        if "target" not in options or target == "/":
            raise TaskError("RUN --mount needs a target below /", where=where)
        copying = _bind(options, where) if kind == "bind" else None
        try:
            owner = int(options.get("uid", "0")), int(options.get("gid", "0"))
            mode = int(options["mode"], 8) if "mode" in options else _MODES.get(kind, 0)
        except ValueError as error:
            raise TaskError("uid, gid and mode of RUN --mount are numbers", where=where) from error
        return cls(target, copying, owner, mode & 0o1777, where)

    def empty(self, copier: Copier) -> None:
        """Empty the target directory of a cache or tmpfs. No process may run in the sandbox."""
        if self.copying is not None:
            return
        above, _, name = self.target.rpartition("/")
        os.close(copier.make(above))
        parent = self._parent(copier.root, above)
        try:
            _remove(parent, name)
            os.mkdir(name, dir_fd=parent)
            os.chown(name, *self.owner, dir_fd=parent)
            os.chmod(name, self.mode, dir_fd=parent)
        finally:
            os.close(parent)

    def _parent(self, root: int, above: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return openat2(root, above.lstrip("/") or ".", flags, resolve=_PLAIN)
        except OSError as error:
            refuse_shortage(f"mount {self.target!r}", error)
            raise SandboxUnsupportedError(
                f"RUN --mount at {self.target!r}, which is below a symlink of the image",
                where=self.where,
                hint="name the target of the symlink instead",
            ) from error


def _bind(options: dict[str, str], where: str) -> CopyInstruction:
    return CopyInstruction(
        sources=(options.get("source", "/"),),
        target="/bind",
        from_stage=options.get("from", ""),
        chown="",
        mode=None,
        unpacks=False,
        documents=(),
        where=where,
    )


def strip(layer: Path, mounts: Sequence[RunMount]) -> None:
    """Remove the mount targets from a layer, so that it does not hide lower files."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open(layer, flags)
    try:
        for mount in mounts:
            above, _, name = mount.target.rpartition("/")
            try:
                # The instruction may have replaced a directory by a symlink.
                inside = above.lstrip("/") or "."
                parent = openat2(top, inside, flags, resolve=_PLAIN | RESOLVE_NO_XDEV)
            except OSError as error:
                refuse_shortage(f"remove {mount.target!r} from a layer", error)
                continue
            try:
                _remove(parent, name)
            finally:
                os.close(parent)
    finally:
        os.close(top)


def _remove(parent: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
