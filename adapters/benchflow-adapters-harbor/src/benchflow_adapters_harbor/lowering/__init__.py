"""From a HarborTask to the Task that is run."""

from .force_build import built_anew
from .lower import lower
from .unsaid import unsaid

__all__ = ["built_anew", "lower", "unsaid"]
