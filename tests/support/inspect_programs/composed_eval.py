"""Evaluate `composed_task.py`: `composed_eval.py COMPOSE LOGS`. Print the sample.

Also print the services of the configuration that the log contains.
"""

import json
import sys

from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from composed_task import composed
from inspect_ai import eval as run_eval

(log,) = run_eval(composed(sys.argv[1]), model="none/none", log_dir=sys.argv[2], display="none")
(read,) = log.samples or []
assert log.eval.sandbox is not None
print(
    json.dumps(
        {
            "status": log.status,
            "error": None if read.error is None else read.error.message,
            "output": read.output.completion,
            "other": read.metadata.get("other"),
            "scores": {name: score.value for name, score in (read.scores or {}).items()},
            "services": [
                each.name for each in BenchflowSandboxConfig.of(log.eval.sandbox.config).services
            ],
        }
    )
)
