"""The labels of BenchFlow's resources in an engine that other programs also use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox_record import SandboxRecord
from benchflow_sandbox_core.owner import HostOwner

PROVIDER = "docker"
KIND = "benchflow.kind"
SANDBOX, IMAGE, BUILT = "sandbox", "snapshot", "built"
PREFIX = "benchflow-"
"""The prefix of the names of BenchFlow's containers."""
ID = "benchflow.id"
_OWNER, _CREATED, _GIVEN = (f"benchflow.{key}" for key in ("owner", "created", "labels"))


@dataclass(frozen=True, slots=True)
class ResourceLabel:
    """The identity and owner of a container or image of BenchFlow."""

    id: str
    owner: HostOwner
    created_at: float
    labels: Mapping[str, str]

    def encode(self, kind: str) -> dict[str, str]:
        """Return the engine's labels. Each given label also becomes a separate label."""
        given = {f"{_GIVEN}.{key}": value for key, value in self.labels.items()}
        return {
            KIND: kind,
            ID: self.id,
            _OWNER: self.owner.model_dump_json(),
            _CREATED: repr(self.created_at),
            _GIVEN: json.dumps(dict(self.labels)),
            **given,
        }

    @classmethod
    def decode(cls, labels: Mapping[str, str] | None) -> "ResourceLabel | None":
        """Decode the labels of a resource. Return `None` if they are foreign or incomplete."""
        try:
            found = labels or {}
            owner = HostOwner.model_validate_json(found[_OWNER])
            given: Any = json.loads(found[_GIVEN])
            return cls(found[ID], owner, float(found[_CREATED]), given)
        except (KeyError, TypeError, ValueError):
            return None

    def record(self) -> SandboxRecord:
        """Return the public record."""
        return SandboxRecord(
            id=self.id,
            provider=PROVIDER,
            owner=self.owner,
            owner_alive=self.owner.alive,
            created_at=self.created_at,
            identity=RolloutIdentity.of_labels(self.labels),
        )


def sandbox_label(container: Mapping[str, Any]) -> ResourceLabel | None:
    """Return the label of a listed container if BenchFlow created the container.

    A container that another user starts from a snapshot image inherits some labels, but
    neither the kind nor the name.
    """
    label = ResourceLabel.decode(container["Labels"])
    if label is None or container["Labels"].get(KIND) != SANDBOX:
        return None
    # A failed removal has already removed the name.
    nameless = not container["Names"] and container["State"] in {"dead", "removing"}
    return label if nameless or container["Names"] == [f"/{PREFIX}{label.id}"] else None
