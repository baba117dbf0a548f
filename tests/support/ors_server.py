"""Serve tasks over ORS on a free port: `ors_server.py HOME SANDBOX [KEY [SECRET_NAME]] -- DIRS`.

Print the address as the first line. `SANDBOX` is `memory` (each reward is 0.5) or a provider.
"""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchflow_adapters_ors.server import OrsServerSettings, serve
from benchflow_engine.config import RunConfig, SandboxConfig
from pydantic import SecretStr


@contextmanager
def served(
    home: Path, *environments: str | Path, sandbox: str = "local", more: tuple[str, ...] = ()
) -> Generator[str]:
    """Yield the address of a server process. `more` is a key, and the name of a secret."""
    command = [sys.executable, __file__, str(home), sandbox, *more, "--", *map(str, environments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the server did not start"
            yield url
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    """Serve until SIGTERM."""
    split = sys.argv.index("--")
    home, sandbox, *more = sys.argv[1:split]
    if sandbox == "memory":
        import session_parts  # noqa: PLC0415 - costs an import

        config = session_parts.config()
    else:
        config = RunConfig(sandbox=SandboxConfig(provider=sandbox))
    settings = OrsServerSettings(
        tuple(sys.argv[split + 1 :]),
        config,
        port=0,
        jobs_dir=Path(home) / "jobs",
        api_key=SecretStr(more[0]) if more else None,
        allowed_secrets=tuple(more[1:]),
    )
    serve(settings, on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
