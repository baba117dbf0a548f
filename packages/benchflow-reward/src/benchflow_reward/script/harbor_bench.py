"""How Harbor 0.24 puts the tests in, runs them and reads what they leave, done safely."""

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    NO_REWARDS,
    AddTestsDirError,
    DownloadVerifierDirError,
    ExecResult,
    Grading,
    RewardError,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
    VerifyResult,
)

from benchflow_reward.at_rest import at_rest
from benchflow_reward.harbor_rewards import parse_harbor_rewards, return_of
from benchflow_reward.live_node import LiveNode

from .bench import ScriptRun, tests_of, too_late
from .grading_box import grading_box, run_checked
from .grading_spec import grading_spec
from .layout import TESTS, VERIFIER_LOGS
from .reward_directory import PROTECT
from .test_log import keep_stdout

MAX_LOG_BYTES = 256 * 1024 * 1024

_CLOSED, _OPEN = "700", "777"

_PREPARE = f"""{PROTECT}
owner=$1 mode=$2; shift 2
[ -d /logs ] && [ ! -L /logs ] || rm -rf /logs
mkdir -p /logs
[ "$mode" = {_OPEN} ] || protect
if [ -e /tests ] || [ -L /tests ]; then echo tests; fi
rm -rf -- "$@"
make_empty {VERIFIER_LOGS} "$owner" "$mode"
"""
"""Prints whether something is at /tests. `$@` is what must not outlive the agent."""

IN_BASH = """for b in /bin/bash /usr/bin/bash /usr/local/bin/bash; do
  [ ! -x "$b" ] || exec "$b" -c "$1"
done
exec /bin/sh -c "$1"
"""
"""Run `$1` as Harbor runs every command: by a bash that reads no start-up file, if there is one."""


@dataclass(frozen=True, slots=True)
class HarborBench:
    """`protocol = "harbor"`: by the script's first line, any exit code, any finite numbers.

    Unlike in Harbor, only the verifier's user can write to `/logs/verifier`, and two reward files
    are an error, unless `[verifier] reward_files` is `harbor`.
    """

    box: Sandbox
    live: LiveNode
    grading: Grading

    async def place_tests(self, scratch: Path) -> None:
        """Make `/logs/verifier` anew for the verifier's user, and merge the tests into `/tests`.

        What a twin has at `/tests` may be the agent's: it goes, and what the image brings
        there comes from a fresh box.

        Raises:
            AddTestsDirError: They could not be put in.
        """
        verifier = self.live.task.config.verifier
        tests = () if verifier.tests_in_image else tests_of(self.live)
        gone = [TESTS] if self.grading == "twin" else []
        strict = verifier.reward_files == "strict"
        owner = (verifier.user or self.box.spec.user) if strict else "root"
        prepare = ["/bin/sh", "-c", _PREPARE, "sh", owner, _CLOSED if strict else _OPEN]
        prepared = await run_checked(self.box, [*prepare, *gone])
        try:
            if gone and prepared.stdout:
                await self._restore_tests(scratch / "image-tests")
            for directory in tests:
                await self.box.upload(directory, TESTS)
        except SandboxError as error:
            raise AddTestsDirError(
                f"the tests of {self.live.task.id!r} could not be placed: {error}",
                hint=error.hint,
                retryable=error.retryable,
            ) from error
        # As in Harbor, whether or not the script is there.
        await self.box.exec(["chmod", "+x", self._script], user="root", cwd="/", timeout=60)

    @property
    def _script(self) -> str:
        return f"{TESTS}/{self.live.task.parts.test_script}"

    async def _restore_tests(self, local: Path) -> None:
        async with grading_box(self.live, grading_spec(self.live, "twin")) as pristine:
            there = await pristine.exec(["/bin/sh", "-c", "[ -d /tests ]"], user="root", cwd="/")
            if there.ok:
                await pristine.download(TESTS, local, leave_out=True)
                await self.box.upload(local, TESTS)

    async def run(self, scratch: Path) -> ScriptRun:
        """Run the script in the box's working directory, as the verifier's user.

        Variables are the box's and `[verifier] env`; both streams go to `test-stdout.txt` in
        `/logs/verifier`, of which also a script that is ended leaves a copy.

        Raises:
            VerifierTimeoutError: It ran longer than the task allows.
            DownloadVerifierDirError: What it left could not be fetched.
        """
        try:
            result = await self._exec()
        except SandboxTimeoutError as error:
            with suppress(RewardError):
                await self._take_logs(scratch)
            raise too_late(self.live, error) from error
        return ScriptRun(result, await self._take_logs(scratch))

    async def _exec(self) -> ExecResult:
        verifier = self.live.task.config.verifier
        command = f"({shlex.quote(self._script)}) > {VERIFIER_LOGS}/test-stdout.txt 2>&1"
        return await self.box.exec(
            ["/bin/sh", "-c", IN_BASH, "sh", command],
            user=verifier.user or None,
            timeout=verifier.timeout_sec,
            env=verifier.env,
        )

    async def _take_logs(self, scratch: Path) -> Path:
        logs = scratch / "logs"
        try:
            needed = self.grading == "shared" and self.live.continues
            async with at_rest(self.box, may_kill=not needed):
                await self.box.download(
                    VERIFIER_LOGS, logs, max_bytes=MAX_LOG_BYTES, leave_out=True
                )
        except SandboxError as error:
            raise DownloadVerifierDirError(
                f"what the tests of {self.live.task.id!r} left could not be fetched: {error}",
                hint=error.hint,
                retryable=error.retryable,
            ) from error
        await asyncio.to_thread(keep_stdout, logs, self.live.log_dir)
        return logs

    def read(self, run: ScriptRun) -> VerifyResult:
        """Return the rewards by name, and the one number that stands for them.

        Raises:
            RewardFormatError: A subclass of it, named as in Harbor.
        """
        reward_files = self.live.task.config.verifier.reward_files
        rewards = parse_harbor_rewards(run.logs, reward_files)
        reward = return_of(rewards)
        if reward is None:
            why = "reward.json names no reward"
            return VerifyResult.unscored(why, grading=self.grading, error_type=NO_REWARDS)
        meta = {"reward_files": reward_files}
        return VerifyResult(reward=reward, items=rewards, grading=self.grading, meta=meta)
