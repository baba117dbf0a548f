"""The agent probe in real boxes: it forks the agent, and finds a liar out."""

import asyncio

from benchflow_agent_acp import AcpAgent, AgentDecl, ProbeReport, probe, shipped_declaration
from benchflow_contracts import Role
from benchflow_sandbox_local import LocalProvider

# Keeps its sessions where its first home was, as Codex does by an absolute path in its
# database: what one copy of the home hears, the others read.
LIAR = """
import os, pathlib, runpy
store = pathlib.Path.home() / ".benchflow-scripted"
store.mkdir(exist_ok=True)
where = store / "where"
if not where.exists():
    where.write_text(os.environ["HOME"])
os.environ["HOME"] = where.read_text()
runpy.run_path("/opt/benchflow/scripted_agent.py", run_name="__main__")
"""


def probed(decl: AgentDecl) -> ProbeReport:
    async def main() -> ProbeReport:
        async with LocalProvider() as provider:
            return await probe(AcpAgent(decl), provider, role=Role(timeout_sec=60))

    return asyncio.run(main())


def liar(**session: str) -> AgentDecl:
    decl = shipped_declaration("scripted")
    return decl.model_copy(
        update={
            "launch": decl.launch.model_copy(update={"args": ("-I", "-c", LIAR)}),
            "session": decl.session.model_copy(update=session),
        }
    )


def test_a_copied_home_that_leaks_between_branches_is_found_out() -> None:
    report = probed(liar())
    assert report.ok
    assert report.results["load_after_kill"] == "ok"
    assert report.results["state"].startswith("a leak: the first copied home knows")
    assert "state" not in report.proven()


def test_the_same_files_at_the_same_path_of_a_box_do_not_leak() -> None:
    report = probed(liar(snapshot="same_path_files"))
    assert report.results["state"] == "ok"
    assert report.proven()["state"].version == "1.0.0"


def test_a_session_that_is_forked_by_the_agent_itself_is_as_good_as_a_loaded_one() -> None:
    decl = shipped_declaration("scripted")
    for fork in ("live", "live_after_load"):
        session = decl.session.model_copy(update={"resume": "fork", "fork": fork})
        assert probed(decl.model_copy(update={"session": session})).results["state"] == "ok"
