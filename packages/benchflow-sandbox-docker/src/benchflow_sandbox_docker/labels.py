"""The labels of what is ours in an engine that others use, too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_contracts.sandbox_record import SandboxRecord
from benchflow_sandbox_core.owner import ProcessIdentity

PROVIDER = "docker"
KIND = "benchflow.kind"
SANDBOX, IMAGE, BUILT = "sandbox", "snapshot", "built"
PREFIX = "benchflow-"
"""Of the names of our containers."""
ID = "benchflow.id"
_OWNER, _CREATED, _GIVEN = (f"benchflow.{key}" for key in ("owner", "created", "labels"))


@dataclass(frozen=True, slots=True)
class ResourceLabel:
    """What one of our containers or images says of itself."""

    id: str
    owner: ProcessIdentity
    created_at: float
    labels: Mapping[str, str]

    def encode(self, kind: str) -> dict[str, str]:
        """Return it as labels of the engine; each label that was given is one of its own, too."""
        given = {f"{_GIVEN}.{key}": value for key, value in self.labels.items()}
        return {
            KIND: kind,
            ID: self.id,
            _OWNER: json.dumps(self.owner.to_json()),
            _CREATED: repr(self.created_at),
            _GIVEN: json.dumps(dict(self.labels)),
            **given,
        }

    @classmethod
    def decode(cls, labels: Mapping[str, str] | None) -> "ResourceLabel | None":
        """Read it back; `None` when it is not ours, or not whole."""
        try:
            found = labels or {}
            owner = ProcessIdentity(**json.loads(found[_OWNER]))
            given: Any = json.loads(found[_GIVEN])
            return cls(found[ID], owner, float(found[_CREATED]), given)
        except (KeyError, TypeError, ValueError):
            return None

    def record(self) -> SandboxRecord:
        """Return the public view."""
        return SandboxRecord(
            id=self.id,
            provider=PROVIDER,
            owner_alive=self.owner.alive,
            created_at=self.created_at,
            labels=self.labels,
        )


def sandbox_label(container: Mapping[str, Any]) -> ResourceLabel | None:
    """Return the label of a listed container, when it is one that we made.

    A container that somebody else starts from one of our snapshots inherits labels of ours,
    but neither the kind nor the name.
    """
    label = ResourceLabel.decode(container["Labels"])
    if label is None or container["Labels"].get(KIND) != SANDBOX:
        return None
    # A removal that failed has taken the name already.
    nameless = not container["Names"] and container["State"] in {"dead", "removing"}
    return label if nameless or container["Names"] == [f"/{PREFIX}{label.id}"] else None
