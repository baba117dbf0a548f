"""Run a task with the scripted agent as its solver: `scripted_eval.py LOGS`. Print the sample."""

import json
import sys

from benchflow_adapters_inspect.agent.solver import bf_agent, bf_sandbox
from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from word_task import file_is

SCRIPT = """
[[turn]]
[[turn.do]]
say = "I write the words."
[[turn.do]]
run = "printf bluegreen > answer.txt"
"""
sample = Sample(id="one", input="Write.", target="bluegreen", files={"script.toml": SCRIPT})
(log,) = run_eval(
    Task(dataset=[sample], scorer=file_is()),
    model="none/none",
    solver=bf_agent(),
    sandbox=bf_sandbox("scripted", env={"BENCHFLOW_SCRIPT": "/workspace/script.toml"}),
    log_dir=sys.argv[1],
    display="none",
)
(read,) = log.samples or []
print(
    json.dumps(
        {
            "status": log.status,
            "error": None if log.error is None else log.error.message,
            "scores": {name: score.value for name, score in (read.scores or {}).items()},
            "messages": [[message.role, message.text] for message in read.messages],
        }
    )
)
