"""The modules of the contracts import each other in one direction."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACTS = ROOT / "packages/benchflow-contracts/src/benchflow_contracts"


def imports_of(path: Path) -> set[str]:
    """Return the sibling modules that a module imports, also those for type checkers alone."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        node.module.split(".")[0]
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
    }


def test_no_circle_of_imports_is_in_the_contracts() -> None:
    modules = {path.stem: imports_of(path) for path in CONTRACTS.glob("*.py")}
    del modules["__init__"]
    assert modules["tree"] >= {"verdict"}
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error
