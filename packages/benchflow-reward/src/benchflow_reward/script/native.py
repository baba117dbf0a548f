"""The protocol of BenchFlow's own tasks: how the tests are placed, run and read."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_contracts import ExecResult, RewardError, Sandbox, SandboxTimeoutError, VerifyResult

from benchflow_reward.at_rest import at_rest
from benchflow_reward.collect import Collected
from benchflow_reward.reward_file import parse_reward

from .grading_protocol import (
    GradingTarget,
    LiveNode,
    ProtocolRules,
    ScriptRun,
    find_tests,
    verifier_timeout,
)
from .grading_sandbox import run_checked
from .layout import EVIDENCE, RUN_UNTRUSTED, TESTS, TOOLS, VERIFIER_LOGS
from .test_log import write_stdout
from .verifier_env import pinned_env

PROTECT = """set -eu
umask 022
protect() {
  [ -d /logs ] && [ ! -L /logs ] || rm -rf -- /logs
  [ -d /logs ] || mkdir -- /logs
  chown 0:0 / /logs
  chmod u=rwx,go=rx / /logs
}
make_empty() {
  if rm -rf -- "$1" 2>/dev/null; then
    mkdir -m "$3" -- "$1"
    [ "$2" = root ] || chown "$2" "$1"
    return
  fi
  [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$(ls -A -- "$1")" ] || exit 1
  owner_id=$2; [ "$2" != root ] || owner_id=0
  chown "$owner_id" "$1"
  chmod "$3" "$1"
}
"""
"""Two shell functions. `protect` lets only root add, delete or rename entries of `/` and `/logs`:
a user who can rename `/logs/verifier` can put another directory in its place. `make_empty
DIRECTORY OWNER MODE` makes a directory anew; of a mount point, which cannot be deleted, it deletes
what is in it. Root is named by number, because a small image has no `/etc/passwd`. Mode 700 also
disables the access control lists that files in it inherit: no other user can pass through the
directory."""


MAX_LOG_BYTES = 64 * 1024 * 1024

_PREPARE = f"""{PROTECT}
owner=$1; shift
protect
for directory in "$@"; do make_empty "$directory" "$owner" 700; done
"""

_CLEAR = 'set -eu; for p in "$@"; do rm -rf -- "$p"; done'
_RUN = "[ ! -x /bin/bash ] || exec /bin/bash /tests/test.sh; exec /bin/sh /tests/test.sh"


@dataclass(frozen=True, slots=True)
class NativeProtocol:
    """`protocol = "benchflow"`: pinned variables, closed directories, a strict reward file."""

    rules: ProtocolRules = field(default_factory=ProtocolRules)

    async def place_artifacts(self, sandbox: Sandbox, artifacts: Sequence[Collected]) -> None:
        """Put each artifact at its own path. What the agent deleted is deleted here, too."""
        if not artifacts:
            return
        paths = [item.path for item in artifacts]
        await run_checked(sandbox, ["/bin/sh", "-c", _CLEAR, "sh", *paths])
        for item in artifacts:
            if item.local is not None:
                await sandbox.upload(item.local, item.path)

    async def place_tests(self, target: GradingTarget, scratch: Path) -> None:
        """Put the tests, the evidence and the tools in, for the verifier alone.

        The directories are made anew and closed to others before they are filled; in `shared`
        grading, tests are added to what is there.
        """
        live, sandbox = target.live, target.sandbox
        verifier = live.task.config.verifier
        user = verifier.user or sandbox.spec.user
        tests = () if verifier.tests_in_image else find_tests(live)
        apart = target.grading != "shared"
        tools = [TOOLS] if apart and verifier.executes_artifacts else []
        directories = [VERIFIER_LOGS, *tools, *([EVIDENCE] if apart else [])]
        directories += [TESTS] if apart and tests else []
        await run_checked(sandbox, ["/bin/sh", "-c", _PREPARE, "sh", user, *directories])
        if apart:
            await asyncio.to_thread(_write_evidence, live, scratch / "evidence")
            await sandbox.upload(scratch / "evidence", EVIDENCE, user=user)
            if tools:
                await sandbox.upload(RUN_UNTRUSTED, f"{TOOLS}/{RUN_UNTRUSTED.name}", user=user)
        for directory in tests:
            await sandbox.upload(directory, TESTS, user=user)

    async def run_tests(self, target: GradingTarget, scratch: Path) -> ScriptRun:
        """Run test.sh by its absolute path. Copy its logs while nothing runs, but in `shared`."""
        verifier, sandbox = target.live.task.config.verifier, target.sandbox
        cwd = "/" if target.grading == "hermetic" else sandbox.spec.workdir
        if target.grading == "shared":
            result = await _execute(target, cwd, verifier.env)
            return ScriptRun(result, await _copy_logs(sandbox, scratch))
        result = await _execute(target, cwd, pinned_env(verifier))
        async with at_rest(sandbox, may_kill=True):
            return ScriptRun(result, await _copy_logs(sandbox, scratch))

    def read_verdict(self, target: GradingTarget, run: ScriptRun) -> VerifyResult:
        """Return the verdict, strictly by our grammar and within the declared range.

        Raises:
            RewardFormatError: The reward files break the grammar.
            RewardError: Hermetic tests ended with a non-zero exit code.
        """
        if target.grading == "hermetic" and not run.result.ok:
            # Foreign test scripts may end with pytest's exit code. A script of this protocol ends
            # with 0 when it has written a verdict, so any other exit code is a crash.
            raise RewardError(
                f"test.sh ended with exit code {run.result.exit_code}; no reward is read",
                hint="read verifier/test-stdout.txt; test.sh exits 0 after it wrote its verdict",
                caused_by="inside",
            )
        within = target.live.task.config.verifier.reward_range
        parsed = parse_reward(run.logs, reward_range=within)
        meta = {"metadata": dict(parsed.metadata)}
        return VerifyResult(
            reward=parsed.reward, items=parsed.items, grading=target.grading, meta=meta
        )


NATIVE = NativeProtocol()


def _write_evidence(live: LiveNode, directory: Path) -> None:
    directory.mkdir()
    # In ASCII, so that every text of the agent can be written.
    lines = [json.dumps(step.model_dump(mode="json")) + "\n" for step in live.node.steps]
    (directory / "steps.jsonl").write_text("".join(lines), "ascii")
    if live.env_state is not None:
        text = json.dumps(live.env_state.model_dump(mode="json"))
        (directory / "env_state.json").write_text(text, "ascii")


async def _execute(target: GradingTarget, cwd: str, env: Mapping[str, str]) -> ExecResult:
    verifier = target.live.task.config.verifier
    try:
        result = await target.sandbox.exec(
            ["/bin/sh", "-c", _RUN],
            user=verifier.user or None,
            timeout=verifier.timeout_sec,
            cwd=cwd,
            env=env,
        )
    except SandboxTimeoutError as error:
        raise verifier_timeout(target.live, error) from error
    await asyncio.to_thread(write_stdout, result, target.live.log_dir)
    return result


async def _copy_logs(sandbox: Sandbox, scratch: Path) -> Path:
    logs = scratch / "logs"
    await sandbox.download(VERIFIER_LOGS, logs, max_bytes=MAX_LOG_BYTES)
    return logs
