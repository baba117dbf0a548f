"""The server of a host: `python -m benchflow_sandbox_remote.ssh PROVIDER SOCKET`."""

import asyncio
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

from .server import RemoteHostServer


def main(name: str, path: str) -> None:
    """Serve the sandboxes of the provider with this name until there is nothing to do."""
    known = importlib.metadata.entry_points(group="benchflow.sandboxes")
    if name not in known.names:
        sys.exit(f"no sandbox provider {name!r}; known here: {', '.join(sorted(known.names))}")
    provider: Any = known[name].load()()
    os.umask(0o077)
    Path(path).unlink(missing_ok=True)
    Path(f"{path}.log").write_bytes(b"")
    asyncio.run(RemoteHostServer(provider).serve(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
