"""Workers of a job on the nodes of a Ray cluster."""

from .backend import RayBackend
from .cluster import LocalCluster
from .errors import RayStartError

__all__ = ["LocalCluster", "RayBackend", "RayStartError"]
