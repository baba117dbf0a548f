"""The snapshots of a fake provider."""

import hashlib
from uuid import uuid4

from benchflow_contracts.sandbox import SandboxImage, SnapshotLevel

from .machine import FakeMachine


class FakeImageStore:
    """The snapshots of one fake provider, by reference."""

    def __init__(self) -> None:
        self._sealed: dict[str, FakeMachine] = {}

    def seal(self, machine: FakeMachine, provider: str, level: SnapshotLevel) -> SandboxImage:
        """Keep a copy of `machine`, without its processes unless `level` is `live`.

        Raises:
            SnapshotError: A process cannot be copied; nothing is kept.
        """
        files = level == "filesystem"
        sealed = FakeMachine(machine.files.copy()) if files else machine.copy()
        return self.keep(sealed, provider, level)

    def keep(self, sealed: FakeMachine, provider: str, level: SnapshotLevel) -> SandboxImage:
        """Keep `sealed` itself."""
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
        """Return a fresh copy of what was sealed, or `None`. Nothing in it runs yet."""
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
