"""Run a rollout, and kill all of its processes at one event.

`python killed_runner.py TASK JOBS EVENT FLAGS`: EVENT is `KIND:PHASE`, and FLAGS are JSON.
With the flag `resume`, TASK is the directory of a rollout, which is resumed in that directory.
The runner must lead a process group of its own.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchflow_engine.resume import resume_rollout
from benchflow_engine.rollout import run

TASK, JOBS, EVENT, FLAGS = sys.argv[1:]


def kill_at(event: Any) -> None:
    if f"{event.kind}:{getattr(event, 'phase', '')}" == EVENT:
        os.killpg(0, signal.SIGKILL)


async def main() -> None:
    flags = json.loads(FLAGS)
    if out := flags.get("resume"):
        await resume_rollout(Path(TASK), out=Path(out), subscribers=[kill_at])
    else:
        await run(TASK, jobs_dir=JOBS, subscribers=[kill_at], **flags)


asyncio.run(main())
