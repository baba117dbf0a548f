"""Bundles: the pages of some rollouts as static files that open from disk."""

from .options import BundleOptions, BundleReport
from .write import write_bundle

__all__ = ["BundleOptions", "BundleReport", "write_bundle"]
