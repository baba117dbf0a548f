"""The native programs of BenchFlow's sandboxes, and the client of init."""

from benchflow_sandbox_native.binary import (
    engine_library,
    guest_path,
    identity_library,
    init_path,
    link_path,
    pager_path,
)
from benchflow_sandbox_native.client import InitClient
from benchflow_sandbox_native.errors import STAGES, InitError, NativeMissingError

__all__ = [
    "STAGES",
    "InitClient",
    "InitError",
    "NativeMissingError",
    "engine_library",
    "guest_path",
    "identity_library",
    "init_path",
    "link_path",
    "pager_path",
]
