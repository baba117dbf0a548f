"""Place tests, run them and read their reward as Harbor 0.24 does, but safely."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_contracts import (
    NO_REWARDS,
    ExecResult,
    RewardError,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
    TransferError,
    VerifyResult,
    caused_outside,
)
from benchflow_reward import GradingTarget, ProtocolRules, ScriptRun
from benchflow_reward.at_rest import at_rest
from benchflow_reward.collect import Collected
from benchflow_reward.script.artifacts import START_UP, START_UP_DIRS
from benchflow_reward.script.collect_hooks import IN_BASH
from benchflow_reward.script.grading_protocol import find_tests, verifier_timeout
from benchflow_reward.script.grading_sandbox import grading_sandbox, run_checked
from benchflow_reward.script.grading_spec import grading_spec
from benchflow_reward.script.layout import ARTIFACTS, TESTS, VERIFIER_LOGS
from benchflow_reward.script.native import PROTECT
from benchflow_reward.script.test_log import save_stdout

from .reward_files import parse_rewards, return_of


class AddTestsDirError(RewardError):
    """The tests could not be placed in the grading sandbox."""


class DownloadVerifierDirError(RewardError):
    """The output of the tests could not be fetched."""


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
"""Print whether /tests exists. `$@` are paths of the agent to delete."""

_NAMES: Final = " -o ".join(f"-name '{name}'" for name in [*sorted(START_UP), "*.pth"])
_DIRS: Final = " -o ".join(f"-path '*/{name}/*'" for name in [*sorted(START_UP_DIRS), ".git/hooks"])
_CLEAR_AROUND = f"""set -eu
for p in "$@"; do
  if [ ! -d "$p" ] || [ -L "$p" ] || ! command -v find >/dev/null; then rm -rf -- "$p"; continue; fi
  find "$p" ! -type d ! \\( {_NAMES} -o {_DIRS} \\) -exec rm -f -- {{}} +
  find "$p" -depth -mindepth 1 -type d -exec rmdir -- {{}} + 2>/dev/null || :
done
"""
"""Keep the image's own start-up files, which an artifact never contains."""
_CLEAR = 'set -eu; for p in "$@"; do rm -rf -- "$p"; done'


_RULES: Final = ProtocolRules(
    pins_variables=False,
    grader_paths=(TESTS, VERIFIER_LOGS),
    closed_paths=(TESTS, VERIFIER_LOGS),
    artifacts=(ARTIFACTS,),
    relative_artifacts=True,
    copies_partly=True,
    restarts_entrypoint=True,
)


@dataclass(frozen=True, slots=True)
class HarborProtocol:
    """`protocol = "harbor"`: the script's first line, any exit code and any finite numbers.

    Unlike in Harbor, only the verifier's user can write to `/logs/verifier`, and two reward files
    are an error, unless `[verifier] reward_files` is `open`.
    """

    rules: ProtocolRules = _RULES

    async def place_artifacts(self, sandbox: Sandbox, artifacts: Sequence[Collected]) -> None:
        """Put each copied artifact at its own path, as Harbor does.

        A directory replaces that of the image, except for the image's start-up files, and every
        user may write to it. A missing artifact stays as the image has it.
        """
        copies = [(item.path, item.local) for item in artifacts if item.local is not None]
        if not copies:
            return
        await _clear(sandbox, _CLEAR_AROUND, [path for path, _ in copies])
        for path, local in copies:
            try:
                await sandbox.upload(local, path)
            except TransferError as error:
                if error.retryable:
                    raise
                # A file where the image has a directory of start-up files, or the reverse.
                await _clear(sandbox, _CLEAR, [path])
                await sandbox.upload(local, path)
        if directories := [path for path, local in copies if local.is_dir()]:
            await run_checked(sandbox, ["chmod", "777", *directories])

    async def place_tests(self, target: GradingTarget, scratch: Path) -> None:
        """Create an empty `/logs/verifier` for the verifier, and merge the tests into `/tests`.

        In a twin, `/tests` may have files of the agent: it is deleted, and the image's own
        `/tests` is copied from a fresh sandbox.

        Raises:
            AddTestsDirError: They could not be placed.
        """
        live, sandbox = target.live, target.sandbox
        verifier = live.task.config.verifier
        tests = () if verifier.tests_in_image else find_tests(live)
        gone = [TESTS] if target.grading == "twin" else []
        strict = verifier.reward_files == "strict"
        owner = (verifier.user or sandbox.spec.user) if strict else "root"
        prepare = ["/bin/sh", "-c", _PREPARE, "sh", owner, _CLOSED if strict else _OPEN]
        prepared = await run_checked(sandbox, [*prepare, *gone])
        try:
            if gone and prepared.stdout:
                await _restore_tests(target, scratch / "image-tests")
            for directory in tests:
                await sandbox.upload(directory, TESTS)
        except SandboxError as error:
            raise AddTestsDirError(
                f"the tests of {live.task.id!r} could not be placed: {error}",
                hint=error.hint,
                retryable=error.retryable,
            ) from error
        # As in Harbor, whether or not the script exists.
        await sandbox.exec(["chmod", "+x", _script(target)], user="root", cwd="/", timeout=60)

    async def run_tests(self, target: GradingTarget, scratch: Path) -> ScriptRun:
        """Run the script in the sandbox's working directory, as the verifier's user.

        Variables are those of the sandbox and `[verifier] env`. Both streams go to
        `test-stdout.txt` in `/logs/verifier`, which is copied also if the time runs out.

        Raises:
            VerifierTimeoutError: It ran longer than the task allows.
            DownloadVerifierDirError: Its output could not be fetched.
        """
        try:
            result = await _execute(target)
        except SandboxTimeoutError as error:
            try:
                await _copy_logs(target, scratch)
            except RewardError as failed:
                if caused_outside(failed):
                    raise
            raise verifier_timeout(target.live, error) from error
        return ScriptRun(result, await _copy_logs(target, scratch))

    def read_verdict(self, target: GradingTarget, run: ScriptRun) -> VerifyResult:
        """Return the rewards by name, and the one number that stands for them.

        Raises:
            RewardFormatError: A subclass of it, named as in Harbor.
        """
        reward_files = target.live.task.config.verifier.reward_files
        rewards = parse_rewards(run.logs, reward_files)
        reward = return_of(rewards)
        if reward is None:
            reason = "reward.json has no reward"
            return VerifyResult.unscored(reason, grading=target.grading, error_type=NO_REWARDS)
        return VerifyResult(
            reward=reward,
            items=rewards,
            reward_in_items=True,
            grading=target.grading,
            meta={"reward_files": reward_files},
        )


HARBOR = HarborProtocol()


async def _clear(sandbox: Sandbox, script: str, paths: Sequence[str]) -> None:
    await run_checked(sandbox, ["/bin/sh", "-c", script, "sh", *paths])


def _script(target: GradingTarget) -> str:
    return f"{TESTS}/{target.live.task.parts.test_script}"


async def _restore_tests(target: GradingTarget, local: Path) -> None:
    async with grading_sandbox(target.live, grading_spec(target.live, "twin")) as pristine:
        test = await pristine.exec(["/bin/sh", "-c", "[ -d /tests ]"], user="root", cwd="/")
        if test.ok:
            await pristine.download(TESTS, local, leave_out=True)
            await target.sandbox.upload(local, TESTS)


async def _execute(target: GradingTarget) -> ExecResult:
    verifier = target.live.task.config.verifier
    command = f"({shlex.quote(_script(target))}) > {VERIFIER_LOGS}/test-stdout.txt 2>&1"
    return await target.sandbox.exec(
        ["/bin/sh", "-c", IN_BASH, "sh", command],
        user=verifier.user or None,
        timeout=verifier.timeout_sec,
        env=verifier.env,
    )


async def _copy_logs(target: GradingTarget, scratch: Path) -> Path:
    live, sandbox, logs = target.live, target.sandbox, scratch / "logs"
    try:
        is_needed = target.grading == "shared" and live.continues
        async with at_rest(sandbox, may_kill=not is_needed):
            await sandbox.download(VERIFIER_LOGS, logs, max_bytes=MAX_LOG_BYTES, leave_out=True)
    except SandboxError as error:
        raise DownloadVerifierDirError(
            f"the output of the tests of {live.task.id!r} could not be fetched: {error}",
            hint=error.hint,
            retryable=error.retryable,
        ) from error
    await asyncio.to_thread(save_stdout, logs, live.log_dir)
    return logs
