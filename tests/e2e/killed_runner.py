"""Run a rollout, and kill all of its processes at one event.

`python killed_runner.py TASK JOBS EVENT FLAGS`: EVENT is `KIND:PHASE`, and FLAGS are JSON.
The runner must lead a process group of its own.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from benchflow_engine.rollout import run

TASK, JOBS, EVENT, FLAGS = sys.argv[1:]


def kill_at(event: Any) -> None:
    if f"{event.kind}:{getattr(event, 'phase', '')}" == EVENT:
        os.killpg(0, signal.SIGKILL)


asyncio.run(run(TASK, jobs_dir=JOBS, subscribers=[kill_at], **json.loads(FLAGS)))
