"""Service containers beside the sandbox's container, on shared networks."""

from .service_config import with_options
from .stack import ServiceStack

__all__ = ["ServiceStack", "with_options"]
