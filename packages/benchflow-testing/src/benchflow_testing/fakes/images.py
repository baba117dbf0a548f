"""The snapshots of a fake provider."""

import hashlib
import io
import json
import pickle
import shutil
from pathlib import Path
from uuid import uuid4

from benchflow_contracts._model import Model
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxImage, SnapshotLevel
from pydantic import ValidationError

from .machine import FakeMachine

_HEAD = "image.json"
_BODY = "machine.pickle"


class _Head(Model):
    image: SandboxImage
    sha256: str
    """The digest of the pickled machine."""


def save(machine: FakeMachine, image: SandboxImage, to: Path) -> None:
    """Write a sealed machine to the new directory `to`. If this fails, `to` does not exist."""
    staging = to.with_name(f"{to.name}.{uuid4().hex[:8]}")
    try:
        body = io.BytesIO()
        pickle.Pickler(body, protocol=5).dump(machine)
        head = _Head(image=image, sha256=hashlib.sha256(body.getvalue()).hexdigest())
        staging.mkdir(parents=True)
        (staging / _BODY).write_bytes(body.getvalue())
        (staging / _HEAD).write_text(head.model_dump_json(), encoding="utf-8")
        to.mkdir()
        staging.replace(to)
    except (OSError, pickle.PicklingError, AttributeError, TypeError) as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise SnapshotError(f"snapshot {image.ref!r} cannot be saved: {error}") from error


def load(saved: Path, provider: str) -> tuple[FakeMachine, SandboxImage]:
    """Read a snapshot that `save` wrote for the provider of this name."""
    try:
        text = (saved / _HEAD).read_text(encoding="utf-8")
        body = (saved / _BODY).read_bytes()
        head = _Head.model_validate(json.loads(text))
    except (OSError, ValueError, ValidationError) as error:
        raise SnapshotError(f"{str(saved)!r} is not a saved snapshot: {error}") from error
    if head.image.provider != provider:
        raise SnapshotError(f"{str(saved)!r} is of provider {head.image.provider!r}")
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise SnapshotError(f"{str(saved)!r} has changed since it was saved: its digest differs")
    machine = pickle.loads(body)  # noqa: S301 - what a test's own process saved; no boundary
    assert isinstance(machine, FakeMachine)
    return machine, head.image


class FakeImageStore:
    """The snapshots of one fake provider, by reference."""

    def __init__(self) -> None:
        self._sealed: dict[str, FakeMachine] = {}

    def seal(self, machine: FakeMachine, provider: str, level: SnapshotLevel) -> SandboxImage:
        """Store a copy of `machine`. Only the level `live` includes its processes.

        Raises:
            SnapshotError: A process cannot be copied.
        """
        files = level == "filesystem"
        sealed = FakeMachine(machine.files.copy()) if files else machine.copy()
        return self.add(sealed, provider, level)

    def add(self, sealed: FakeMachine, provider: str, level: SnapshotLevel) -> SandboxImage:
        """Store `sealed`."""
        ref = f"fake-image-{uuid4().hex[:12]}"
        self._sealed[ref] = sealed
        return SandboxImage(
            provider=provider,
            level=level,
            consistency="instant",
            ref=ref,
            digest=digest_of(sealed),
            bytes=sealed.files.size,
        )

    def open(self, image: SandboxImage) -> FakeMachine | None:
        """Return a new copy of a stored machine, or `None`. Its processes do not run yet."""
        sealed = self._sealed.get(image.ref)
        return None if sealed is None else sealed.copy()

    def drop(self, image: SandboxImage) -> None:
        """Delete a snapshot. Idempotent."""
        self._sealed.pop(image.ref, None)

    def clear(self) -> None:
        """Delete every snapshot."""
        self._sealed.clear()

    def __len__(self) -> int:
        return len(self._sealed)


def digest_of(machine: FakeMachine) -> str:
    """Return a sha256 over the files and the ids of the processes."""
    total = hashlib.sha256(machine.files.digest.encode())
    for group in machine.groups:
        total.update(f" {group.pid}".encode())
    return f"sha256:{total.hexdigest()}"
