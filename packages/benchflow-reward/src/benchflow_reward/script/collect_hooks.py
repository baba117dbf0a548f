"""Collect hooks: commands of the task that run in the agent's sandbox before it is copied."""

from typing import Any

from benchflow_contracts import CollectCommand, SandboxError, SupportsServices, caused_outside

from .grading_protocol import LiveNode

_SHOWN = 500

IN_BASH = """for b in /bin/bash /usr/bin/bash /usr/local/bin/bash; do
  [ ! -x "$b" ] || exec "$b" -c "$1"
done
exec /bin/sh -c "$1"
"""
"""Run `$1` by a bash that reads no start-up file, or by `sh` if there is no bash."""


async def run_collect_hooks(live: LiveNode) -> dict[str, Any]:
    """Run `[[verifier.collect]]` in order, and return how each ended, for the verdict's `meta`.

    A hook that fails, cannot be started or does not end is noted, and the grading continues.

    Raises:
        SandboxError: The host or the operator caused the failure of a hook.
    """
    hooks = live.task.config.verifier.collect
    return {"collect": [await _run(live, hook) for hook in hooks]} if hooks else {}


async def _run(live: LiveNode, hook: CollectCommand) -> dict[str, Any]:
    if hook.service:
        return await _run_beside(live, hook)
    try:
        done = await live.sandbox.exec(
            ["/bin/sh", "-c", IN_BASH, "sh", hook.command],
            user=hook.user or None,
            timeout=hook.timeout_sec,
            cwd=hook.cwd,
            env=hook.env,
        )
    except SandboxError as error:
        if caused_outside(error):
            raise
        return {"command": hook.command, "exit_code": None, "error": str(error)[:_SHOWN]}
    said = "" if done.ok else done.stderr[-_SHOWN:]
    return {"command": hook.command, "exit_code": done.exit_code, "error": said}


async def _run_beside(live: LiveNode, hook: CollectCommand) -> dict[str, Any]:
    told = {"command": hook.command, "service": hook.service}
    if not isinstance(live.sandbox, SupportsServices):
        return {**told, "exit_code": None, "error": "this sandbox has no services"}
    try:
        code = await live.sandbox.service_exec(
            hook.service, hook.command, user=hook.user or None, timeout=hook.timeout_sec
        )
    except SandboxError as error:
        if caused_outside(error):
            raise
        return {**told, "exit_code": None, "error": str(error)[:_SHOWN]}
    return {**told, "exit_code": code, "error": ""}
