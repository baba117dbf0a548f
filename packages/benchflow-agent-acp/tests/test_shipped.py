"""Programs of this package as they go into sandboxes."""

import importlib.util
import sys

from benchflow_agent_acp.shipped import shipped_file


def test_a_program_goes_with_what_this_python_compiled_of_it():
    folder = shipped_file("scripted/agent.py", "/opt/benchflow/scripted_agent.py")
    assert folder == shipped_file("scripted/agent.py", "/opt/benchflow/scripted_agent.py")
    found = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    name = f"__pycache__/scripted_agent.{sys.implementation.cache_tag}.pyc"
    assert found == [name, "scripted_agent.py"]
    compiled = (folder / name).read_bytes()
    # Flags 1: found by its name alone, whatever the times of the two files.
    assert compiled[:8] == importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
