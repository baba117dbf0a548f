"""A compose file's services, in the words of our contracts."""

from .stack import composed_stack
from .task import with_stack

__all__ = ["composed_stack", "with_stack"]
