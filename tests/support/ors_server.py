"""Serve tasks over ORS on a free port: `ors_server.py HOME SANDBOX [KEY [SECRET_NAME]] -- DIRS`.

Print the address as the first line. `SANDBOX` is `memory` (each reward is 0.5) or a provider. The
toolset `codex` has the shell alone. A group is scored by the lengths of its last answers.
"""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchflow_adapters_ors.server import OrsServerSettings, serve
from benchflow_contracts import RolloutNode, Task, VerifyResult
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


class AnswerLengths:
    """Scores a leaf by the length of its last answer."""

    name = "lengths"

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return the lengths."""
        assert task.id
        texts = [leaf.steps[-1].message for leaf in leaves]
        return [VerifyResult(reward=len(text), items={"length": len(text)}) for text in texts]


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
        toolsets={"codex": ("bash",)},
        group_reward=AnswerLengths(),
    )
    serve(settings, on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
