import tomllib
from importlib.metadata import entry_points

import pytest
from benchflow_agent_acp.builtin import agent_from_file, shipped_declaration
from benchflow_agent_acp.declaration_file import parse_declaration
from benchflow_agent_acp.render import Values, render
from benchflow_contracts import AgentError, UsageError

SHIPPED = [
    "auggie",
    "claude-agent-acp",
    "codex-acp",
    "gemini",
    "goose",
    "kimi",
    "mistral-vibe",
    "opencode",
    "qwen",
    "scripted",
    "zed-codex-acp",
]
COMMANDS = ["aider", "cline", "mini-swe-agent", "openhands", "terminus-2"]
VALUES = Values(
    base_url="http://127.0.0.1:8721",
    api_key="key",
    model="org/model-1.5",
    home="/home/agent",
    workdir="/workspace",
)
MINIMAL = """
id = "mine"
name = "Mine"
version = "1"
description = "My own agent."
[distribution.binary]
[launch]
cmd = "my-agent"
args = ["--acp"]
[model]
wire = "none"
"""


def test_every_entry_point_makes_the_agent_of_its_name():
    points = entry_points(group="benchflow.agents")
    ours = {point.name: point for point in points if point.value.startswith("benchflow_agent_acp")}
    assert set(ours) == {*SHIPPED, *COMMANDS, "oracle", "nop"}
    for name, point in ours.items():
        agent = point.load()()
        assert agent.name == name
        assert agent.capabilities().version or name == "nop"


@pytest.mark.parametrize("name", [*SHIPPED, *COMMANDS])
def test_a_shipped_declaration_is_pinned_and_renders(name):
    decl = shipped_declaration(name)
    assert decl.id == name
    source = decl.distribution.npx or decl.distribution.uvx
    if source:
        assert source.package.endswith(decl.version)
    for template in (
        *decl.launch.files,
        *decl.launch.files.values(),
        *decl.launch.env.values(),
        *decl.session.paths,
    ):
        done = render(template, VALUES)
        for value in ("base_url", "api_key", "model", "home", "workdir"):
            assert "{" + value + "}" not in done


@pytest.mark.parametrize("name", [*SHIPPED, *COMMANDS])
def test_a_shipped_declaration_says_how_it_was_run_or_why_not(name):
    decl = shipped_declaration(name)
    ran = decl.probe.verified_version == decl.version
    assert ran == bool(decl.probe.date and decl.probe.command)
    assert ran != bool(decl.probe.untested)


def test_config_files_are_still_valid_after_rendering():
    vibe = shipped_declaration("mistral-vibe").launch.files["{home}/.vibe/config.toml"]
    assert tomllib.loads(render(vibe, VALUES))["models"][0]["name"] == "org/model-1.5"
    codex = shipped_declaration("codex-acp").launch.files["{home}/.codex/config.toml"]
    provider = tomllib.loads(render(codex, VALUES))["model_providers"]["benchflow"]
    assert provider["base_url"] == "http://127.0.0.1:8721"


def test_only_a_probed_snapshot_is_promised():
    assert shipped_declaration("gemini").capabilities().session_snapshot == "none"
    assert shipped_declaration("codex-acp").capabilities().session_snapshot == "same_path_files"
    assert shipped_declaration("mistral-vibe").capabilities().session_snapshot == "files"


def test_a_users_own_file_is_an_agent(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    agent = agent_from_file(path)
    assert agent.name == "mine"
    assert agent.decl.launch.args == ("--acp",)
    assert agent.capabilities().ask_user is False


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (MINIMAL + "surprise = 1", "mine.toml:model.surprise"),
        (MINIMAL.replace('version = "1"', "version = 1"), "mine.toml:version"),
        (MINIMAL.replace('id = "mine"', 'id = "My Agent"'), "mine.toml:id"),
        (MINIMAL.replace('cmd = "my-agent"', ""), "mine.toml:launch.cmd"),
        (MINIMAL.replace('"none"', '"telnet"'), "mine.toml:model.wire"),
        (MINIMAL.replace("[distribution.binary]", "[distribution]"), "mine.toml:distribution"),
        (MINIMAL + "[model]", "mine.toml: not valid TOML"),
        (MINIMAL + "x = " + "[" * 5000, "mine.toml: nested"),
        ("a." * 20_000 + "b = 1", "mine.toml: a line with more"),
        ("x = 1\n" * 20_000, "mine.toml: larger than"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_file_and_key(text, where):
    with pytest.raises(UsageError) as caught:
        parse_declaration(text.encode(), where="mine.toml")
    assert str(caught.value).startswith(where)


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        agent_from_file(tmp_path / "nowhere.toml")


def test_templates_are_filled_once_and_other_braces_stay():
    assert render('{"a":{home},"b":{other}}', VALUES) == '{"a":/home/agent,"b":{other}}'


@pytest.mark.parametrize("model", ['x"\ny = 1', "a b", "$(id)", "{home}", "-rf", "'"])
def test_a_value_with_quotes_spaces_or_braces_is_refused(model):
    with pytest.raises(AgentError, match="cannot be used as the agent's model"):
        Values(base_url=None, api_key="k", model=model, home="/h", workdir="/w")


def test_a_template_that_needs_a_missing_model_is_an_error():
    values = Values(base_url=None, api_key="k", model=None, home="/h", workdir="/w")
    with pytest.raises(AgentError, match="needs a model"):
        render("{model}", values)
