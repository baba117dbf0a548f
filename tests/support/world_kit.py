"""The conformance kit over the world of a task of a foreign package."""

import asyncio
from typing import Any

from benchflow_contracts import Task
from benchflow_engine.config import RunConfig
from benchflow_engine.data_tasks import data_source, load_data_tasks
from benchflow_engine.planes import load_environment
from benchflow_testing import call_tool, check_outside_world


def broken_promises(task: Task, tool: str, **arguments: Any) -> list[tuple[str, str]]:
    """Return the checks of the kit that the world of a task fails, with the reasons.

    A call of the tool changes what the world says, and an episode may have three of them.
    """
    make = load_environment(RunConfig(), task)
    assert make is not None
    results = asyncio.run(check_outside_world(make, call_tool(tool, arguments)))
    assert {each.status for each in results} >= {"passed"}
    return [(each.name, each.reason) for each in results if each.status != "passed"]


def broken_promises_of(source: str, tool: str, **arguments: Any) -> list[tuple[str, str]]:
    """Return the same of the only task of a source."""
    found = data_source(source)
    assert found is not None
    [task] = load_data_tasks(found)
    return broken_promises(task, tool, **arguments)
