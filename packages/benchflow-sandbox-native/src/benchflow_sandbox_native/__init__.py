"""The in-box init of BenchFlow's local sandbox: the packaged program and its client."""

from benchflow_sandbox_native.binary import init_path
from benchflow_sandbox_native.client import InitClient
from benchflow_sandbox_native.errors import STAGES, InitError, NativeMissingError

__all__ = ["STAGES", "InitClient", "InitError", "NativeMissingError", "init_path"]
