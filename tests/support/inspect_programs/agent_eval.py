"""Run a task with an agent of BenchFlow as its solver: `agent_eval.py LOGS AGENT [LIMIT]`.

Print the status, the scores and the events of the sample as JSON.
"""

import json
import sys

from benchflow_adapters_inspect.agent.solver import bf_agent, bf_sandbox
from inspect_ai import eval as run_eval
from word_task import words

logs, agent, *limit = sys.argv[1:]
(log,) = run_eval(
    words(),
    model="scripted/x",
    solver=bf_agent(),
    sandbox=bf_sandbox(agent),
    log_dir=logs,
    display="none",
    limit=1,
    token_limit=int(limit[0]) if limit else None,
)
samples = log.samples or []
print(
    json.dumps(
        {
            "status": log.status,
            "error": None if log.error is None else log.error.message,
            "samples": [
                {
                    "scores": {name: score.value for name, score in sample.scores.items()},
                    "events": [event.event for event in sample.events],
                    "roles": [message.role for message in sample.messages],
                    "limit": None if sample.limit is None else sample.limit.type,
                    "usage": {k: v.total_tokens for k, v in sample.model_usage.items()},
                    "output": sample.output.completion,
                }
                for sample in samples
            ],
        }
    )
)
