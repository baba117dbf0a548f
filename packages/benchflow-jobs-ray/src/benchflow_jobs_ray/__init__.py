"""Workers of a job on the nodes of a Ray cluster."""

from .backend import RayBackend
from .cluster import LocalCluster
from .errors import NoNodeError, RayStartError

__all__ = ["LocalCluster", "NoNodeError", "RayBackend", "RayStartError"]
