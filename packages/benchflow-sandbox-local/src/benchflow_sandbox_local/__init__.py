"""BenchFlow sandboxes on this host's own kernel: namespaces, overlay, seccomp, cgroups."""

from .provider import LocalProvider
from .sandbox import LocalSandbox

__all__ = ["LocalProvider", "LocalSandbox"]
