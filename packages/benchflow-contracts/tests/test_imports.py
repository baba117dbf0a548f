"""What importing the contracts costs."""

import json
import subprocess
import sys

_PROBE = """
import json, sys
before = set(sys.modules)
import benchflow_contracts
for name in benchflow_contracts._HOMES:
    getattr(benchflow_contracts, name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""

# What pydantic itself imports; a new name here is a new cost for every user.
_ALLOWED = {
    "benchflow_contracts",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
}


def imported() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROBE], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_the_contracts_import_pydantic_and_nothing_else():
    foreign = {name for name in imported() if name not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("_sysconfigdata")} == _ALLOWED
