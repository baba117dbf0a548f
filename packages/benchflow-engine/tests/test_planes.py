"""What an operator names is checked before anything is started."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.flags import run_config
from benchflow_engine.planes import load_agent, open_provider
from benchflow_engine.preflight import check_agent
from benchflow_engine.rollout import run


def test_an_agent_that_acts_through_a_model_needs_an_endpoint() -> None:
    with pytest.raises(UsageError, match="acts through a model") as caught:
        check_agent(run_config(agent="mistral-vibe"))
    assert "--base-url" in caught.value.hint
    check_agent(run_config(agent="mistral-vibe", base_url="http://127.0.0.1:1/v1", model="m"))
    check_agent(run_config(agent="oracle"))


MUTE = """
id = "mute"
name = "Mute"
version = "1"
description = "Asks nobody."
distribution = { binary = {} }
launch = { cmd = "mute" }
model = { wire = "none" }
"""


def test_an_agent_that_asks_no_questions_is_not_forked_at_them(tmp_path: Path) -> None:
    def check(agent: str, **env: str) -> None:
        options = run_config(agent=agent, base_url="http://127.0.0.1:1/v1", model="m")
        check_agent(run_config(options, branch="ask-user", agent_env=env))

    mute = tmp_path / "mute.toml"
    mute.write_text(MUTE)
    for agent, remedy in (("codex-acp", "BENCHFLOW_ASK_MCP"), (str(mute), "--branch group")):
        with pytest.raises(UsageError, match="asks no questions") as caught:
            check(agent)
        assert remedy in caught.value.hint
    check("codex-acp", BENCHFLOW_ASK_MCP="1")
    check("codex-acp", BENCHFLOW_ASK="1")
    check("claude-agent-acp")
    check("oracle")


def test_a_sandbox_that_fetches_no_images_refuses_to_be_told_when() -> None:
    async def opened() -> None:
        async with open_provider(run_config(sandbox="local", pull="never")):
            pass

    with pytest.raises(UsageError, match="'local' does not fetch images") as caught:
        asyncio.run(opened())
    assert "--sandbox docker" in caught.value.hint


@pytest.mark.parametrize("path", ["planted:NUMBER", "planted:Nothing"])
def test_an_import_path_that_is_no_agent_is_a_usage_error(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("NUMBER = 3\n\n\nclass Nothing:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="is not an Agent"):
        load_agent(run_config(agent_import_path=path))


@pytest.mark.parametrize("wrong", [{"agnt": "x"}, {"branch": "foo"}, {"agent_idle_timeout": -1}])
def test_a_wrong_option_of_the_python_interface_is_a_usage_error(wrong: dict[str, object]) -> None:
    [name] = wrong
    with pytest.raises(UsageError, match=name):
        asyncio.run(run("nowhere", **wrong))
