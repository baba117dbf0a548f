"""The contracts' own checks of an Agent, on the agents that need no model."""

import asyncio
import shutil

from benchflow_agent_acp.builtin import nop, oracle, scripted
from benchflow_contracts import Role, SandboxCapabilities
from benchflow_testing import AgentSubject, check_agent

TALK = """
[[turn]]
[[turn.do]]
run = "echo one"
[[turn.do]]
say = "hello"
[[turn]]
[[turn.do]]
say = "again"
"""
ASK = """
[[turn]]
[[turn.do]]
ask = "Which?"
options = [{ id = "a" }, { id = "b" }]
[[turn.do]]
say = "thanks"
"""
BUSY = '[[turn]]\n[[turn.do]]\nsay = "busy"\n[[turn.do]]\nrun = "sleep 60"\n'


class FreshSandboxes:
    """A provider of test sandboxes, each below a directory of its own."""

    def __init__(self, factory, tmp_path):
        self.factory = factory
        self.tmp_path = tmp_path
        self.count = 0

    async def capabilities(self):
        return SandboxCapabilities(isolation="none")

    async def create(self, spec, *, image=None, identity=None):
        self.count += 1
        root = self.tmp_path / str(self.count)
        root.mkdir()
        sandbox = self.factory(root)
        sandbox.teardown = sandbox.aclose
        solution = self.tmp_path / "solution"
        if solution.exists():
            shutil.copytree(solution, root / "solution")
        return sandbox


def run_checks(agent, provider, script, tmp_path, only=None, **subject):
    path = tmp_path / "script.toml"
    path.write_text(script)
    role = Role(env={"BENCHFLOW_SCRIPT": str(path)}, timeout_sec=subject.pop("timeout_sec", 30))
    asked = AgentSubject(agent=agent, provider=provider, role=role, **subject)
    results = asyncio.run(check_agent(asked, only=only))
    for result in results:
        result.raise_if_failed()
    return {result.name for result in results if result.status == "passed"}


def test_the_scripted_agent_keeps_the_contract(host_sandbox, tmp_path):
    provider = FreshSandboxes(host_sandbox, tmp_path)
    assert "a_session_resumes_from_its_snapshot" in run_checks(scripted(), provider, TALK, tmp_path)


def test_the_scripted_agent_asks_according_to_the_contract(host_sandbox, tmp_path):
    provider = FreshSandboxes(host_sandbox, tmp_path)
    passed = run_checks(scripted(), provider, ASK, tmp_path, ask_prompt="Ask.")
    assert "an_ask_ends_a_step_and_its_answer_opens_the_next" in passed


def test_the_scripted_agent_can_be_stopped(host_sandbox, tmp_path):
    provider = FreshSandboxes(host_sandbox, tmp_path)
    only = ["cancel_ends_the_turn", "a_silent_agent_is_an_error"]
    passed = run_checks(
        scripted(), provider, BUSY, tmp_path, only, endless_prompt="Go.", timeout_sec=1
    )
    assert passed == set(only)


def test_the_oracle_keeps_the_contract(host_sandbox, tmp_path):
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution/solve.sh").write_text("echo solved > answer.txt")
    assert run_checks(oracle(), FreshSandboxes(host_sandbox, tmp_path), TALK, tmp_path)


def test_nop_keeps_the_contract(host_sandbox, tmp_path):
    assert run_checks(nop(), FreshSandboxes(host_sandbox, tmp_path), TALK, tmp_path)
