"""The way an agent receives the tool servers of its role."""

import json

import pytest
from benchflow_agent_acp import AcpAgent, shipped_declaration
from benchflow_agent_acp.declaration_file import parse_declaration
from benchflow_agent_acp.logs import read_wire_log
from benchflow_contracts import AgentError, McpServer, Role, UsageError

# The scripted agent, which first writes down what its environment says of servers.
NOTES = """
import json, os, pathlib, runpy
pathlib.Path(os.environ["HOME"], "servers.json").write_text(os.environ.get("SERVERS", "null"))
runpy.run_path("/opt/benchflow/scripted_agent.py", run_name="__main__")
"""
LOCAL = McpServer(name="notes", command="notes-server", args=("--fast",), env={"A": "b"})
REMOTE = McpServer(name="far", transport="http", url="http://127.0.0.1:1/mcp")


def agent(**mcp):
    decl = shipped_declaration("scripted")
    launch = decl.launch.model_copy(update={"args": ("-I", "-c", NOTES)})
    section = type(decl.mcp)(**mcp)
    return AcpAgent(decl.model_copy(update={"launch": launch, "mcp": section}))


def told(in_sandbox, log_dir, servers, **mcp):
    async def body(sandbox):
        role = Role(mcp_servers=servers, timeout_sec=60)
        session = await agent(**mcp).connect(sandbox, role, log_dir=log_dir)
        await session.aclose()
        return json.loads((await sandbox.exec('cat "$HOME/servers.json"')).stdout)

    in_env = in_sandbox(body)
    sent = [record.msg for record in read_wire_log(log_dir / "acp_wire.jsonl")]
    (new,) = (message for message in sent if message.get("method") == "session/new")
    return new["params"]["mcpServers"], in_env


def test_servers_are_in_the_session_or_in_the_agents_variable(in_sandbox, tmp_path):
    wire, env = told(in_sandbox, tmp_path / "acp", (LOCAL,), transport="acp")
    assert ([server["name"] for server in wire], env) == (["notes"], None)
    given = {"transport": "env", "variable": "SERVERS", "fields": {"timeout": 7}}
    wire, env = told(in_sandbox, tmp_path / "env", (LOCAL,), **given)
    assert wire == []
    assert env == [
        {
            "timeout": 7,
            "name": "notes",
            "transport": "stdio",
            "command": "notes-server",
            "args": ["--fast"],
            "env": {"A": "b"},
        }
    ]
    assert told(in_sandbox, tmp_path / "none", (), **given) == ([], None)


@pytest.mark.parametrize(
    ("server", "mcp", "why"),
    [
        (LOCAL, {"transport": "none"}, "does not take tool servers"),
        (REMOTE, {"transport": "env", "variable": "SERVERS"}, "over 'stdio' only"),
    ],
)
def test_a_server_that_an_agent_cannot_use_is_an_error(in_sandbox, server, mcp, why):
    async def body(sandbox):
        await agent(**mcp).connect(sandbox, Role(mcp_servers=(server,)))

    with pytest.raises(AgentError, match=why):
        in_sandbox(body)


@pytest.mark.parametrize("table", ['transport = "env"', 'variable = "SERVERS"'])
def test_a_variable_and_its_transport_are_declared_together(table):
    decl = f"""
        id = "mine"
        name = "Mine"
        version = "1"
        description = "My own agent."
        distribution = {{ binary = {{}} }}
        launch = {{ cmd = "mine" }}
        model = {{ wire = "none" }}
        mcp = {{ {table} }}
    """
    with pytest.raises(UsageError, match="needs a variable"):
        parse_declaration(decl.encode(), where="mine.toml")
