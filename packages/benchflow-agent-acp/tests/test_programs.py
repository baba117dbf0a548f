"""Programs of packages, as they are copied into sandboxes."""

import importlib.util
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from benchflow_agent_acp import AcpAgent, agent_from_package, parse_declaration
from benchflow_agent_acp.launch import compiled_copy
from benchflow_contracts import AgentError, Role, UsageError

DECLARATION = """
id = "echo"
name = "Echo"
version = "1.0.0"
description = "An agent of a package that is not part of BenchFlow."
[distribution.builtin]
package = "stranger"
file = "in_sandbox"
target = "/opt/benchflow/stranger"
[launch]
cmd = "python3"
args = ["-I", "/opt/benchflow/stranger/main.py"]
[model]
wire = "none"
"""
MAIN = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    result = {"protocolVersion": 1, "sessionId": "s", "stopReason": "end_turn"}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A package of someone else that ships an agent."""
    package = tmp_path / "site" / "stranger"
    (package / "in_sandbox").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "agent.toml").write_text(DECLARATION)
    (package / "in_sandbox" / "main.py").write_text(MAIN)
    monkeypatch.syspath_prepend(package.parent)
    yield package
    sys.modules.pop("stranger", None)


def test_a_package_ships_an_agent_with_its_program(stranger, in_sandbox):
    agent = agent_from_package("stranger", "agent.toml")
    assert agent.declaration_path == stranger / "agent.toml"

    async def body(sandbox):
        session = await agent.connect(sandbox, Role())
        assert await session.prompt("Go.") == "end_turn"
        await session.aclose()
        return sandbox.place("/opt/benchflow/stranger/main.py")

    assert Path(in_sandbox(body)).read_text() == MAIN


def test_a_package_without_the_declaration_is_a_usage_error(stranger):
    with pytest.raises(UsageError, match=r"'stranger' has no declaration 'other\.toml'"):
        agent_from_package("stranger", "other.toml")


@pytest.mark.parametrize(
    ("package", "file", "says"),
    [
        ("not_installed_here", "in_sandbox", "'not_installed_here' cannot be imported"),
        ("benchflow_agent_acp", "in_sandbox/missing", "has no file 'in_sandbox/missing'"),
    ],
)
def test_a_program_that_is_missing_is_an_agent_error(in_sandbox, package, file, says):
    text = DECLARATION.replace("stranger", package, 1).replace('"in_sandbox"', f'"{file}"')
    agent = AcpAgent(parse_declaration(text.encode(), where="agent.toml"))

    async def body(sandbox):
        with pytest.raises(AgentError, match=says):
            await agent.connect(sandbox, Role())

    in_sandbox(body)


@pytest.mark.parametrize("file", ["/etc/passwd", "../secret", "a/../../b", ""])
def test_a_program_outside_of_its_package_is_refused(file):
    text = DECLARATION.replace('"in_sandbox"', f'"{file}"')
    with pytest.raises(UsageError, match=r"agent\.toml:distribution\.builtin\.file"):
        parse_declaration(text.encode(), where="agent.toml")


def test_a_python_file_is_copied_with_its_compiled_form():
    source = Path(str(files("benchflow_agent_acp").joinpath("in_sandbox/scripted_agent.py")))
    target = "/opt/benchflow/scripted_agent.py"
    folder = compiled_copy(source, target)
    assert folder == compiled_copy(source, target)
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    name = f"__pycache__/scripted_agent.{sys.implementation.cache_tag}.pyc"
    assert paths == [name, "scripted_agent.py"]
    compiled = (folder / name).read_bytes()
    # Flags 1: Python finds the file by its name alone, whatever the times of the two files.
    assert compiled[:8] == importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
