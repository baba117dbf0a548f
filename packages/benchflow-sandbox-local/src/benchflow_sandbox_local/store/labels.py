"""The label file of each sandbox: created before the sandbox, deleted after it."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchflow_contracts import host_error
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox_record import SandboxRecord
from benchflow_sandbox_core.atomic_file import replace
from benchflow_sandbox_core.owner import HostOwner
from pydantic import BaseModel, ConfigDict, Field, ValidationError

PROVIDER = "local"
LOCKS = "launchers"
"""The directory of the locks of launchers, below the store."""
_MAX_LABEL = 1 << 20


class Label(BaseModel):
    """The record of one sandbox on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    owner: HostOwner
    launcher: str | None = Field(pattern=r"^[0-9a-f]{32}$")
    """The name of the launcher's lock; `None` for a sandbox without a launcher."""
    created_at: float
    labels: dict[str, str]
    groups: tuple[str, ...]
    """Control group directories."""
    plain: bool = False
    """Whether the sandbox is unisolated, with a directory of its own."""

    def record(self) -> SandboxRecord:
        """Return the public view."""
        return SandboxRecord(
            id=self.id,
            provider=PROVIDER,
            owner=self.owner,
            owner_alive=self.owner.alive,
            created_at=self.created_at,
            identity=RolloutIdentity.of_labels(self.labels),
        )


class LabelStore:
    """The label files of one user on this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def plain(self) -> Path:
        """The parent of the directories of unisolated sandboxes."""
        return self._directory.parent / "plain"

    def launcher_lock(self, launcher: str) -> Path:
        """Return the file that a launcher of this name locks while it lives."""
        return self._directory.parent / LOCKS / launcher

    def write(self, label: Label) -> None:
        """Write one label, completely or not at all."""
        try:
            replace(self._path(label.id), label.model_dump_json())
        except OSError as error:
            raise host_error(f"label sandbox {label.id!r}", error) from error

    def remove(self, box: str) -> None:
        """Delete the label of a sandbox. Idempotent."""
        self._path(box).unlink(missing_ok=True)

    def all(self) -> Iterator[Label]:
        """Yield every label that can be read, by id."""
        if not self._directory.is_dir():
            return  # this store has never had a sandbox
        for name in sorted(path.name for path in self._directory.iterdir()):
            if name.startswith(".") or not name.endswith(".json"):
                continue
            label = self._read(self._directory / name)
            if label is not None and f"{label.id}.json" == name:
                yield label

    def _path(self, box: str) -> Path:
        return self._directory / f"{box}.json"

    @staticmethod
    def _read(path: Path) -> Label | None:
        try:
            with path.open("rb") as file:
                return Label.model_validate(json.loads(file.read(_MAX_LABEL)))
        except (FileNotFoundError, ValueError, ValidationError):
            return None  # removed meanwhile, or not a label
