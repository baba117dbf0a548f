"""Run the conformance kit over the world of a Gymnasium environment; print the broken promises."""

# pyright: basic, reportMissingImports=false

import json
import sys
from pathlib import Path

from benchflow_adapters_gymnasium.tasks import episode_task
from benchflow_engine.data_tasks import write_data_task
from benchflow_kernel import load_task
from world_kit import broken_promises

task = load_task(write_data_task(episode_task(sys.argv[1], 7), Path.cwd() / "kit"))
sys.stdout.write(json.dumps(broken_promises(task, "step", action=0)) + "\n")
