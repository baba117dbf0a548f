"""The pod of a sandbox."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import lifetime_command, seconds_left, tags_of

CONTAINER = "main"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # of a runner in a pod
LABELS = "benchflow.dev/labels-"
"""The beginning of the annotations with all labels, which cannot all be labels of Kubernetes."""
Network = Literal["none", "public", "open"]
"""The label that the network policies of `install.yaml` select. `open` pods have no policy: they
prove that the policy is the reason why others are closed."""
_MAX_SECONDS, _GRACE_SECONDS = 86_400, 3_600
"""The cluster's own end of a pod: after a day, or an hour after the deadline of its rollout."""
_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def pod_manifest(
    spec: SandboxSpec,
    *,
    name: str,
    image: str,
    labels: Mapping[str, str],
    lifetime: float,
    network: Network,
    runtime_class: str | None = None,
) -> dict[str, Any]:
    """Return the manifest of the pod of a sandbox: `pod.yaml` with these values."""
    limits, left = spec.limits, seconds_left(labels)
    own = {key: value for key, value in labels.items() if _VALUE.fullmatch(value)}
    given = {
        "cpu": f"{round(limits.cpus * 1000)}m" if limits.cpus else None,
        "memory": f"{limits.memory_mb}Mi" if limits.memory_mb else None,
        "ephemeral-storage": f"{limits.disk_mb}Mi" if limits.disk_mb else None,
    }
    values: dict[str, Any] = {
        "name": name,
        "image": image,
        "labels": {**own, "benchflow.network": network},
        "annotations": tags_of(LABELS, labels),
        "command": lifetime_command(lifetime),
        "limits": {kind: value for kind, value in given.items() if value},
        "runtime_class": runtime_class,
        "seconds": _MAX_SECONDS if left is None else round(left) + _GRACE_SECONDS,
    }
    text = files("benchflow_sandbox_kubernetes").joinpath("pod.yaml").read_text()
    quoted = {key: json.dumps(each) for key, each in values.items()}
    pod: dict[str, Any] = yaml.safe_load(Template(text).substitute(quoted))
    return pod
