"""Failures attributed to one boundary, deadlines, and work that must finish."""

from .boundary import boundary, classify, node_error
from .deadline import within
from .proven import proven
from .shield import shielded, shielded_beside

__all__ = ["boundary", "classify", "node_error", "proven", "shielded", "shielded_beside", "within"]
