"""Sandboxes in the pods of a Kubernetes cluster."""

from .pod import pod_manifest
from .provider import KubernetesProvider

__all__ = ["KubernetesProvider", "pod_manifest"]
