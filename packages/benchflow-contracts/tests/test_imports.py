"""What importing the contracts costs."""

import json
import subprocess
import sys

_PROBE = """
import json, sys
before = set(sys.modules)
import benchflow_contracts
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
print(json.dumps(sorted(name for name in sys.modules if "benchflow_contracts." in name)))
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


def probed() -> tuple[set[str], list[str]]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROBE], capture_output=True, text=True, check=True
    )
    roots, own = done.stdout.splitlines()
    return set(json.loads(roots)), json.loads(own)


def test_the_contracts_import_pydantic_and_nothing_else():
    roots, _ = probed()
    foreign = {name for name in roots if name not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("_sysconfigdata")} == _ALLOWED


def test_the_contracts_do_not_import_the_kit():
    _, own = probed()
    assert own
    assert not [name for name in own if ".testing" in name]
