"""Convert the services of a compose file to the contracts of BenchFlow."""

from .stack import composed_stack
from .task import with_stack

__all__ = ["composed_stack", "with_stack"]
