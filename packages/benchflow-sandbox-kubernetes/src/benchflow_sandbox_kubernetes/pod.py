"""The pod of a sandbox."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import lifetime_command, seconds_left, tags_of

CONTAINER = "main"
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
    """Return the manifest of the pod of a sandbox."""
    limits, left = spec.limits, seconds_left(labels)
    own = {key: value for key, value in labels.items() if _VALUE.fullmatch(value)}
    given = {
        "cpu": f"{round(limits.cpus * 1000)}m" if limits.cpus else None,
        "memory": f"{limits.memory_mb}Mi" if limits.memory_mb else None,
        "ephemeral-storage": f"{limits.disk_mb}Mi" if limits.disk_mb else None,
    }
    container = {
        "name": CONTAINER,
        "image": image,
        "command": lifetime_command(lifetime),
        "resources": {"limits": {kind: value for kind, value in given.items() if value}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {
                "drop": ["ALL"],
                # The link changes users and owners. Nothing else needs a right of root.
                "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
            },
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**own, "benchflow.network": network},
            "annotations": tags_of(LABELS, labels),
        },
        "spec": {
            "activeDeadlineSeconds": (
                _MAX_SECONDS if left is None else round(left) + _GRACE_SECONDS
            ),
            "automountServiceAccountToken": False,
            "containers": [container],
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            **({"runtimeClassName": runtime_class} if runtime_class else {}),
        },
    }
