"""The contracts' own checks of a Session in a live fork, on real processes."""

import asyncio
from pathlib import Path

import pytest
from benchflow_agent_acp.builtin import scripted
from benchflow_contracts import Bundle, Role, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_testing import AgentSubject, check_agent
from benchflow_testing.checks.session_state_checks import CAPTURE_CHECKS

SCRIPT = """
[[turn]]
on = "Say hello"
[[turn.do]]
run = "echo one"
[[turn.do]]
recall = true

[[turn]]
on = "Ask me"
[[turn.do]]
ask = "Which?"
id = "which"
options = [{ id = "a" }, { id = "b" }, { id = "c" }]
[[turn.do]]
recall = true

[[turn]]
on = "Be busy"
[[turn.do]]
run = "sleep 600"
"""


@pytest.mark.slow
def test_the_scripted_agent_is_carried_as_the_contract_says(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    # The agent is another user than the one who runs this.
    tmp_path.chmod(0o755)
    (tmp_path / "script.toml").chmod(0o644)

    async def main() -> None:
        async with LocalProvider() as provider:
            subject = AgentSubject(
                agent=scripted(),
                provider=provider,
                role=Role(env={"BENCHFLOW_SCRIPT": "/script/script.toml"}, timeout_sec=120),
                spec=SandboxSpec(bundles=(Bundle.of(tmp_path, Path("/script")),)),
                ask_prompt="Ask me.",
                endless_prompt="Be busy.",
            )
            results = await check_agent(subject, only=[str(check) for check in CAPTURE_CHECKS])
            for result in results:
                result.raise_if_failed()
            live = "live" in (await provider.capabilities()).snapshot_levels
            assert {result.status for result in results} == {"passed" if live else "skipped"}

    asyncio.run(main())
