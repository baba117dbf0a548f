"""List a task of Inspect and run its first sample, in one process: `run_sample.py SOURCE ARGS...`.

The samples are below `cache/` of the working directory. `ARGS` are those of `bench run`.
"""

import sys
from pathlib import Path

from benchflow.cli.entry import run
from benchflow_adapters_inspect.tasks import InspectAdapter

source, *args = sys.argv[1:]
first = InspectAdapter(Path("cache")).list_tasks(source)[0]
sys.exit(run(["run", str(first.path), *args]))
