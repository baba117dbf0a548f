"""A BenchFlow sandbox provider in plain subprocesses. It isolates nothing."""

from .provider import SubprocessProvider
from .sandbox import SubprocessSandbox

__all__ = ["SubprocessProvider", "SubprocessSandbox"]
