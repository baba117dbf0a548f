"""The probe finds of real agents what they are proven to do, beside a scripted model."""

import asyncio
from pathlib import Path

import pytest
from benchflow_agent_acp import AcpAgent, AgentDecl, ProbeReport, probe, shipped_declaration
from benchflow_contracts import Endpoint, Role
from benchflow_sandbox_local import LocalProvider
from scripted_llm import AnswersProbes, ScriptedLlm

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

AGENTS = (
    "mistral-vibe",
    "zed-codex-acp",
    "codex-acp",
    "claude-agent-acp",
    "opencode",
    "qwen",
)


def probed(decl: AgentDecl, llm: ScriptedLlm, log_dir: Path) -> ProbeReport:
    async def main() -> ProbeReport:
        # What the wire's vendor calls its base URL has a version in it, or has not.
        url = llm.url if decl.model.wire == "anthropic" else f"{llm.url}/v1"
        async with LocalProvider() as provider:
            return await probe(
                AcpAgent(decl),
                provider,
                endpoint=Endpoint(url=url),
                model="mock-model",
                role=Role(timeout_sec=300, idle_timeout_sec=200),
                log_dir=log_dir,
            )

    return asyncio.run(main())


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_still_does_what_its_declaration_proves(name: str, tmp_path: Path) -> None:
    decl = shipped_declaration(name)
    with ScriptedLlm(AnswersProbes("benchflow-probe.txt", "benchflow\n")) as llm:
        report = probed(decl, llm, tmp_path)
    proven = set(decl.capabilities().proven)
    # A machine without a live engine tries the others, and no probe replays a rollout.
    assert proven - {"live", "live-ask", "live-call", "replay", "replay-call"} <= set(
        report.results
    )
    assert {fact: report.results[fact] for fact in report.results} == dict.fromkeys(
        report.results, "ok"
    )
