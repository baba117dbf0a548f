"""A box that grades: how it is made, filled, run and read."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    ExecResult,
    RewardError,
    Sandbox,
    SandboxImage,
    SandboxTimeoutError,
)

from benchflow_reward.live_node import LiveNode

from .layout import EVIDENCE, RUN_UNTRUSTED, TESTS, TOOLS, VERIFIER_LOGS
from .test_log import write_stdout
from .verifier_env import without_steering

MAX_LOG_BYTES = 64 * 1024 * 1024

_PREPARE = """set -eu
owner=$1; shift
[ ! -L /logs ] || rm -f /logs
rm -rf -- "$@"
mkdir -p "$@"
chmod 700 "$@"
chown "$owner" "$@"
"""

_RUN = "[ ! -x /bin/bash ] || exec /bin/bash /tests/test.sh; exec /bin/sh /tests/test.sh"


@asynccontextmanager
async def grading_box(
    live: LiveNode, image: SandboxImage | None = None
) -> AsyncGenerator[Sandbox, None]:
    """Make a box that no agent has ever been in, or one from `image`.

    On exit, also by an error, it is gone with everything in it.
    """
    spec = without_steering(live.grading_spec)
    labels = {**live.labels, "benchflow.purpose": "grading", "benchflow.node": live.node.id}
    box = await live.provider.create(spec, image=image, labels=labels)
    try:
        yield box
    finally:
        await box.teardown()


async def furnish(box: Sandbox, live: LiveNode) -> None:
    """Set the task's world up as it was before the agent: files, then commands.

    The commands are the task's and nothing of the agent is here yet, so they have the
    variables that they had in the agent's box.

    Raises:
        RewardError: A setup command failed.
    """
    task, env = live.task, live.grading_spec.env
    if task.parts.files is not None:
        await box.upload(task.parts.files, "/")
    if task.parts.workdir_files is not None:
        await box.upload(task.parts.workdir_files, box.spec.workdir, user=box.spec.user)
    for setup in task.config.environment.setup_commands:
        result = await box.exec(
            setup.command,
            user=setup.user,
            timeout=setup.timeout_sec,
            cwd=setup.cwd,
            env={**env, **setup.env},
        )
        if not result.ok:
            raise RewardError(
                f"setup command {setup.command!r} failed in the grading box with exit code "
                f"{result.exit_code}: {result.stderr[-500:]}"
            )


@dataclass(frozen=True, slots=True)
class Bench:
    """A furnished box with the tests in it, ready to run them."""

    box: Sandbox
    live: LiveNode

    async def place_tests(self, scratch: Path) -> None:
        """Put the tests, the evidence and the tools in, for the verifier alone.

        The directories are made anew and closed to others before they are filled.
        """
        task = self.live.task
        verifier = task.config.verifier
        tests, script = task.parts.tests, task.parts.test_script
        if not any((directory / script).is_file() for directory in tests):
            raise RewardError(f"task {task.id!r} has no tests/{script}")
        tools = [TOOLS] if verifier.executes_artifacts else []
        directories = [VERIFIER_LOGS, TESTS, EVIDENCE, *tools]
        await run_checked(self.box, ["/bin/sh", "-c", _PREPARE, "sh", verifier.user, *directories])
        evidence = scratch / "evidence"
        await asyncio.to_thread(self._write_evidence, evidence)
        for directory in tests:
            await self.box.upload(directory, TESTS, user=verifier.user)
        await self.box.upload(evidence, EVIDENCE, user=verifier.user)
        if tools:
            await self.box.upload(
                RUN_UNTRUSTED, f"{TOOLS}/{RUN_UNTRUSTED.name}", user=verifier.user
            )

    def _write_evidence(self, directory: Path) -> None:
        directory.mkdir()
        # In ASCII, so that no text of the agent's can fail to be written.
        lines = [json.dumps(step.model_dump(mode="json")) + "\n" for step in self.live.node.steps]
        (directory / "steps.jsonl").write_text("".join(lines), "ascii")
        state = self.live.env_state
        if state is not None:
            text = json.dumps(state.model_dump(mode="json"))
            (directory / "env_state.json").write_text(text, "ascii")

    async def run(self, *, cwd: str, env: Mapping[str, str]) -> ExecResult:
        """Run test.sh by its absolute path; its output is kept in the log directory.

        Raises:
            RewardError: `verifier_timeout`: it ran longer than the task allows.
        """
        verifier = self.live.task.config.verifier
        try:
            result = await self.box.exec(
                ["/bin/sh", "-c", _RUN],
                user=verifier.user,
                timeout=verifier.timeout_sec,
                cwd=cwd,
                env=env,
            )
        except SandboxTimeoutError as error:
            raise RewardError(
                f"verifier_timeout: test.sh of {self.live.task.id!r} ran longer than "
                f"{verifier.timeout_sec:g} s",
                hint="raise [verifier] timeout_sec in task.toml",
            ) from error

        await asyncio.to_thread(write_stdout, result, self.live.log_dir)
        return result

    async def take_logs(self, scratch: Path) -> Path:
        """Copy `/logs/verifier` to a private host directory."""
        logs = scratch / "logs"
        await self.box.download(VERIFIER_LOGS, logs, max_bytes=MAX_LOG_BYTES)
        return logs


async def run_checked(box: Sandbox, cmd: Sequence[str]) -> ExecResult:
    """Run a command of ours as root. Raises `RewardError` when it fails."""
    result = await box.exec(cmd, user="root", cwd="/", timeout=120)
    if not result.ok:
        raise RewardError(
            f"the grading box could not be prepared: exit code {result.exit_code}: "
            f"{result.stderr[-500:]}"
        )
    return result
