"""Convert a HarborTask into the Task that is run."""

from .lower import lower

__all__ = ["lower"]
