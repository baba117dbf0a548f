from benchflow_agent_acp import AcpAgent, probe
from benchflow_agent_acp.agent_probe import PROBE_FILE, PROBE_TEXT
from benchflow_agent_acp.builtin import scripted
from benchflow_contracts import Role, SandboxCapabilities

HONEST = f"""
[[turn]]
[[turn.do]]
when = {{ }}
write = "{PROBE_FILE}"
text = "{PROBE_TEXT}"
"""
ASKS_FIRST = """
[[turn]]
[[turn.do]]
ask = "Tea or coffee?"
options = [{ id = "tea" }, { id = "coffee" }]
"""


class OneSandbox:
    """A provider of the one sandbox that the test made."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.specs = []
        self.sandbox.teardown = self.teardown
        self.torn_down = False

    async def create(self, spec, *, image=None, identity=None):
        self.specs.append(spec)
        return self.sandbox

    async def capabilities(self):
        return SandboxCapabilities(isolation="none")

    async def teardown(self):
        self.torn_down = True


def run_probe(in_sandbox, tmp_path, script, decl=None):
    path = tmp_path / "script.toml"
    path.write_text(script)
    agent = AcpAgent(decl or scripted().decl)

    async def body(sandbox):
        provider = OneSandbox(sandbox)
        report = await probe(agent, provider, role=Role(env={"BENCHFLOW_SCRIPT": str(path)}))
        assert provider.torn_down
        assert all(process.group_is_dead for process in sandbox.processes)
        return report

    return in_sandbox(body)


def test_a_working_agent_passes_the_probe(in_sandbox, tmp_path):
    report = run_probe(in_sandbox, tmp_path, HONEST)
    assert report.ok
    assert report.results == {
        "start": "ok",
        "write": "ok",
        "load_after_kill": "ok",
        "ask": "the turn ended without a question",
    }
    assert report.version == "1.0.0"
    assert set(report.timings_sec) == set(report.results)


def test_a_turn_without_the_file_is_a_failure(in_sandbox, tmp_path):
    report = run_probe(in_sandbox, tmp_path, ASKS_FIRST)
    assert not report.ok
    assert "does not contain" in report.results["write"]
    assert report.results["ask"] == "ok"


def test_a_declared_session_that_does_not_load_is_reported(in_sandbox, tmp_path):
    decl = scripted().decl
    source = decl.distribution.builtin
    assert source is not None
    # The new process looks for its sessions elsewhere, so it cannot know them.
    launch = decl.launch.model_copy(
        update={"args": ("-c", FORGETFUL), "env": {"ROOT": "/opt/benchflow"}}
    )
    report = run_probe(in_sandbox, tmp_path, HONEST, decl.model_copy(update={"launch": launch}))
    assert report.results["write"] == "ok"
    assert "session/load" in report.results["load_after_kill"]


FORGETFUL = """
import os, runpy, sys, tempfile
os.environ["HOME"] = tempfile.mkdtemp(dir=os.environ["HOME"])
runpy.run_path(os.environ["ROOT"] + "/scripted_agent.py", run_name="__main__")
"""


def test_an_agent_that_does_not_start_is_reported(in_sandbox, tmp_path):
    decl = scripted().decl
    launch = decl.launch.model_copy(update={"args": ("-c", "raise SystemExit(5)")})
    report = run_probe(in_sandbox, tmp_path, HONEST, decl.model_copy(update={"launch": launch}))
    assert set(report.results) == {"start"}
    assert "exit code 5" in report.results["start"]
