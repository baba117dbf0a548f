"""Attribute failures to one boundary, set deadlines, and finish work despite cancellation."""

from .boundary import boundary, classify, node_error
from .deadline import within
from .proven import proven
from .shield import shielded, shielded_beside

__all__ = ["boundary", "classify", "node_error", "proven", "shielded", "shielded_beside", "within"]
