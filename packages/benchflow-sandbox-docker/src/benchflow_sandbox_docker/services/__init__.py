"""Containers beside a sandbox's own, in a network that they share."""

from .reap import sweep_services
from .service_config import with_options
from .stack import ServiceStack

__all__ = ["ServiceStack", "sweep_services", "with_options"]
