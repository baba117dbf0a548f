"""What the agent left, brought into a fresh grading box."""

from collections.abc import Sequence
from typing import Final

from benchflow_contracts import Sandbox, TransferError

from benchflow_reward.collect import Collected
from benchflow_reward.live_node import LiveNode

from .artifacts import START_UP, START_UP_DIRS
from .grading_box import run_checked

_CLEAR = 'set -eu; for p in "$@"; do rm -rf -- "$p"; done'

_NAMES: Final = " -o ".join(f"-name '{name}'" for name in [*sorted(START_UP), "*.pth"])
_DIRS: Final = " -o ".join(f"-path '*/{name}/*'" for name in [*sorted(START_UP_DIRS), ".git/hooks"])
_CLEAR_AROUND = f"""set -eu
for p in "$@"; do
  if [ ! -d "$p" ] || [ -L "$p" ] || ! command -v find >/dev/null; then rm -rf -- "$p"; continue; fi
  find "$p" ! -type d ! \\( {_NAMES} -o {_DIRS} \\) -exec rm -f -- {{}} +
  find "$p" -depth -mindepth 1 -type d -exec rmdir -- {{}} + 2>/dev/null || :
done
"""
"""Leaves the image's own start-up files, which never come with an artifact."""


async def place_artifacts(box: Sandbox, live: LiveNode, taken: Sequence[Collected]) -> None:
    """Put each artifact at the path at which it was.

    In our own protocol the box shows what the agent left, so what it deleted is gone here too.
    In Harbor's, a directory replaces the image's all but its start-up files, anybody may write
    to it, and what is missing stays as the image has it.
    """
    if live.task.config.verifier.protocol == "harbor":
        await _place_as_harbor(box, [item for item in taken if item.local is not None])
    elif taken:
        await _clear(box, _CLEAR, taken)
        for item in taken:
            if item.local is not None:
                await box.upload(item.local, item.path)


async def _place_as_harbor(box: Sandbox, taken: Sequence[Collected]) -> None:
    if not taken:
        return
    await _clear(box, _CLEAR_AROUND, taken)
    for item in taken:
        assert item.local is not None
        try:
            await box.upload(item.local, item.path)
        except TransferError as error:
            if error.retryable:
                raise
            # A file where the image keeps a directory of start-up files, or the reverse.
            await _clear(box, _CLEAR, [item])
            await box.upload(item.local, item.path)
    directories = [item.path for item in taken if item.local is not None and item.local.is_dir()]
    if directories:
        await run_checked(box, ["chmod", "777", *directories])


async def _clear(box: Sandbox, script: str, items: Sequence[Collected]) -> None:
    await run_checked(box, ["/bin/sh", "-c", script, "sh", *(item.path for item in items)])
