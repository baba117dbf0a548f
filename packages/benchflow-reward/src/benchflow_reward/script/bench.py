"""A furnished box, and how the tests are put in, run and read there in our own protocol."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchflow_contracts import (
    ExecResult,
    Grading,
    RewardError,
    Sandbox,
    SandboxTimeoutError,
    VerifierTimeoutError,
    VerifyResult,
)

from benchflow_reward.at_rest import at_rest
from benchflow_reward.live_node import LiveNode
from benchflow_reward.reward_file import parse_reward

from .grading_box import run_checked
from .layout import EVIDENCE, RUN_UNTRUSTED, TESTS, TOOLS, VERIFIER_LOGS
from .reward_directory import PROTECT
from .test_log import write_stdout
from .verifier_env import pinned_env

MAX_LOG_BYTES = 64 * 1024 * 1024

_PREPARE = f"""{PROTECT}
owner=$1; shift
protect
for directory in "$@"; do make_empty "$directory" "$owner" 700; done
"""

_RUN = "[ ! -x /bin/bash ] || exec /bin/bash /tests/test.sh; exec /bin/sh /tests/test.sh"


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """How test.sh ended, and a private host copy of what it left in `/logs/verifier`."""

    result: ExecResult
    logs: Path


class Bench(Protocol):
    """How one protocol puts the tests in, runs them and reads what they leave."""

    async def place_tests(self, scratch: Path) -> None:
        """Put the tests in. `scratch` is a host directory that ends with the grading."""
        ...

    async def run(self, scratch: Path) -> ScriptRun:
        """Run test.sh and take its logs.

        Raises:
            VerifierTimeoutError: It ran longer than the task allows.
        """
        ...

    def read(self, run: ScriptRun) -> VerifyResult:
        """Return the verdict. Reads files; raises `RewardFormatError` when there is none."""
        ...


def tests_of(live: LiveNode) -> tuple[Path, ...]:
    """Return the directories of the tests, of which one has the script.

    Raises:
        RewardError: None has it.
    """
    parts = live.task.parts
    if not any((directory / parts.test_script).is_file() for directory in parts.tests):
        raise RewardError(f"task {live.task.id!r} has no tests/{parts.test_script}")
    return parts.tests


def too_late(live: LiveNode, error: SandboxTimeoutError) -> VerifierTimeoutError:
    """Return the error of tests that did not end, which `error` ended."""
    seconds = live.task.config.verifier.timeout_sec
    return VerifierTimeoutError(
        f"verifier_timeout: test.sh of {live.task.id!r} ran longer than {seconds:g} s",
        caused_by=error.caused_by,
    )


@dataclass(frozen=True, slots=True)
class OurBench:
    """`protocol = "benchflow"`: pinned variables, closed directories, a strict reward file."""

    box: Sandbox
    live: LiveNode
    grading: Grading

    async def place_tests(self, scratch: Path) -> None:
        """Put the tests, the evidence and the tools in, for the verifier alone.

        The directories are made anew and closed to others before they are filled; in `shared`
        grading, tests are added to what is there.
        """
        verifier = self.live.task.config.verifier
        user = verifier.user or self.box.spec.user
        tests = () if verifier.tests_in_image else tests_of(self.live)
        apart = self.grading != "shared"
        tools = [TOOLS] if apart and verifier.executes_artifacts else []
        made = [VERIFIER_LOGS, *tools, *([EVIDENCE] if apart else [])]
        made += [TESTS] if apart and tests else []
        await run_checked(self.box, ["/bin/sh", "-c", _PREPARE, "sh", user, *made])
        if apart:
            await self._place_evidence(scratch / "evidence", user)
            if tools:
                await self.box.upload(RUN_UNTRUSTED, f"{TOOLS}/{RUN_UNTRUSTED.name}", user=user)
        for directory in tests:
            await self.box.upload(directory, TESTS, user=user)

    async def _place_evidence(self, directory: Path, user: str) -> None:
        await asyncio.to_thread(self._write_evidence, directory)
        await self.box.upload(directory, EVIDENCE, user=user)

    def _write_evidence(self, directory: Path) -> None:
        directory.mkdir()
        # In ASCII, so that no text of the agent's can fail to be written.
        lines = [json.dumps(step.model_dump(mode="json")) + "\n" for step in self.live.node.steps]
        (directory / "steps.jsonl").write_text("".join(lines), "ascii")
        state = self.live.env_state
        if state is not None:
            text = json.dumps(state.model_dump(mode="json"))
            (directory / "env_state.json").write_text(text, "ascii")

    async def run(self, scratch: Path) -> ScriptRun:
        """Run test.sh by its absolute path; take its logs, while nothing runs but in `shared`."""
        verifier = self.live.task.config.verifier
        cwd = "/" if self.grading == "hermetic" else self.box.spec.workdir
        if self.grading == "shared":
            result = await self._exec(cwd, verifier.env)
            return ScriptRun(result, await self._take_logs(scratch))
        result = await self._exec(cwd, pinned_env(verifier))
        async with at_rest(self.box, may_kill=True):
            return ScriptRun(result, await self._take_logs(scratch))

    async def _exec(self, cwd: str, env: Mapping[str, str]) -> ExecResult:
        verifier = self.live.task.config.verifier
        try:
            result = await self.box.exec(
                ["/bin/sh", "-c", _RUN],
                user=verifier.user or None,
                timeout=verifier.timeout_sec,
                cwd=cwd,
                env=env,
            )
        except SandboxTimeoutError as error:
            raise too_late(self.live, error) from error
        await asyncio.to_thread(write_stdout, result, self.live.log_dir)
        return result

    async def _take_logs(self, scratch: Path) -> Path:
        logs = scratch / "logs"
        await self.box.download(VERIFIER_LOGS, logs, max_bytes=MAX_LOG_BYTES)
        return logs

    def read(self, run: ScriptRun) -> VerifyResult:
        """Return the verdict, strictly by our grammar and within the declared range.

        Raises:
            RewardFormatError: The reward files break the grammar.
            RewardError: Hermetic tests ended with a non-zero exit code.
        """
        if self.grading == "hermetic" and not run.result.ok:
            # Foreign test scripts end with pytest's exit code and so may fail; ours
            # end with 0 when they came to a verdict. Anything else is a crash.
            raise RewardError(
                f"test.sh ended with exit code {run.result.exit_code}; no reward is read",
                hint="read verifier/test-stdout.txt; test.sh exits 0 after it wrote its verdict",
                caused_by="inside",
            )
        within = self.live.task.config.verifier.reward_range
        parsed = parse_reward(run.logs, reward_range=within)
        meta = {"metadata": dict(parsed.metadata)}
        return VerifyResult(
            reward=parsed.reward, items=parsed.items, grading=self.grading, meta=meta
        )
