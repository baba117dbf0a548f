"""From a HarborTask to the Task that is run."""

from .lower import lower
from .unsaid import unsaid

__all__ = ["lower", "unsaid"]
