"""The states of a rollout's environment, each once by its digest: their writer and their reader."""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchflow_contracts import EnvState, StateRef, StoreError
from pydantic import ValidationError

_FOLDERS: Final = ("states", "sha256")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ALGORITHM: Final = "sha256:"


def state_ref(text: bytes, *, has_file: bool = False) -> StateRef:
    """Return the reference of a state with the JSON text `text`."""
    name = hashlib.sha256(text).hexdigest()
    path = f"{'/'.join(_FOLDERS)}/{name}.json" if has_file else None
    return StateRef(digest=f"{_ALGORITHM}{name}", size=len(text), path=path)


class StateWriter:
    """Writes states below a rollout's directory, each digest once and completely or not at all."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: set[str] = set()

    @property
    def has_directory(self) -> bool:
        """Whether states are written to disk."""
        return self._directory is not None

    def write(self, text: bytes) -> StateRef:
        """Write the state with this JSON text, if its file does not exist yet.

        Raises:
            OSError: The file cannot be written, or a link is in its place.
        """
        ref = state_ref(text, has_file=self.has_directory)
        if self._directory is None or ref.digest in self._known:
            return ref
        with _folder(self._directory, create=True) as folder:
            _replace(folder, _file_name(ref), text)
        self._known.add(ref.digest)
        return ref


def read_state(directory: Path, ref: StateRef) -> EnvState:
    """Return a state of the rollout in `directory`.

    Only a regular file with the digest of `ref` is accepted, and no link below `directory`.

    Raises:
        StoreError: The state has no file, the file cannot be read, or its content is another one.
    """
    where = str(directory.joinpath(*_FOLDERS, _file_name(ref)))
    if ref.path is None:
        raise StoreError(f"the state {ref.digest} has no file", where=str(directory))
    try:
        with _folder(directory) as folder:
            text = _read(folder, _file_name(ref), ref.size + 1)
    except OSError as error:
        raise StoreError(f"a state cannot be read: {error.strerror}", where=where) from error
    if state_ref(text).digest != ref.digest:
        raise StoreError("the file of a state was changed: its digest differs", where=where)
    try:
        return EnvState.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        raise StoreError(f"not a state: {problem['msg']}", where=where) from error


def _file_name(ref: StateRef) -> str:
    # The digest has only hex digits, so this name is safe; the path in a log may not be.
    return f"{ref.digest.removeprefix(_ALGORITHM)}.json"


@contextmanager
def _folder(directory: Path, *, create: bool = False) -> Generator[int]:
    """Open the directory of the states, without a link below `directory`."""
    folder = os.open(directory, _DIRECTORY)
    try:
        for name in _FOLDERS:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            parent, folder = folder, os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(parent)
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str, most: int) -> bytes:
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most)


def _replace(folder: int, name: str, text: bytes) -> None:
    part = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, 0o666, dir_fd=folder), "wb") as file:
            file.write(text)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise
