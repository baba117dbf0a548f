"""Agents of the public ACP registry become declarations."""

import json

import pytest
from benchflow_agent_acp.acp_registry import declaration_of, read_entry
from benchflow_contracts import UsageError
from hypothesis import given
from hypothesis import strategies as st

GOOSE = {
    "id": "goose",
    "name": "goose",
    "version": "1.20.0",
    "description": 'Says "hello"\nin two lines',
    "authors": ["Block"],
    "license": "Apache-2.0",
    "distribution": {
        "binary": {
            "darwin-aarch64": {"archive": "https://example.com/a", "cmd": "./goose"},
            "linux-x86_64": {"archive": "https://example.com/b", "cmd": "./goose", "args": ["acp"]},
        }
    },
}
AUGGIE = {
    "id": "auggie",
    "name": "Auggie",
    "version": "0.36.0",
    "distribution": {
        "npx": {"package": "@augmentcode/auggie", "args": ["--acp"], "env": {"NO_UPDATE": "1"}}
    },
}


def entry(value, agent=None):
    return read_entry(json.dumps(value).encode(), agent, where="registry.json")


def test_a_program_of_the_registry_becomes_a_declaration():
    declaration, text = declaration_of(
        entry(GOOSE), wire="openai-chat", env={"OPENAI_HOST": "{base_url}"}
    )
    assert (declaration.launch.cmd, declaration.launch.args) == ("goose", ("acp",))
    assert declaration.launch.env == {"OPENAI_HOST": "{base_url}"}
    assert declaration.description == GOOSE["description"]
    assert declaration.distribution.binary is not None
    assert not declaration.proven
    assert "example.com" not in text


def test_an_npm_package_is_pinned_to_the_version_of_its_entry():
    [declaration, _] = declaration_of(
        entry({"agents": [GOOSE, AUGGIE]}, "auggie"), wire="anthropic"
    )
    assert declaration.distribution.npx.package == "@augmentcode/auggie@0.36.0"
    assert (declaration.launch.cmd, declaration.launch.env["NO_UPDATE"]) == ("auggie", "1")


@pytest.mark.parametrize(
    ("kind", "package", "pinned", "program"),
    [
        ("npx", "@google/gemini-cli@0.27.3", "@google/gemini-cli@0.27.3", "gemini-cli"),
        ("npx", "some-agent@latest", "some-agent@9.9.9", "some-agent"),
        ("uvx", "fast-agent-mcp", "fast-agent-mcp==9.9.9", "fast-agent-mcp"),
        ("uvx", "fast-agent-mcp@0.4.1", "fast-agent-mcp==0.4.1", "fast-agent-mcp"),
        ("uvx", "some-agent[acp]==1.2", "some-agent[acp]==1.2", "some-agent"),
    ],
)
def test_a_package_is_pinned_and_names_its_program(kind, package, pinned, program):
    value = {**AUGGIE, "version": "9.9.9", "distribution": {kind: {"package": package}}}
    [declaration, _] = declaration_of(entry(value), wire="openai-chat")
    source = declaration.distribution.npx or declaration.distribution.uvx
    assert source is not None
    assert (source.package, declaration.launch.cmd) == (pinned, program)


@pytest.mark.parametrize(
    ("value", "agent", "says"),
    [
        ({"agents": [GOOSE, AUGGIE]}, "codex", "no agent 'codex' in the registry; known: goose,"),
        ({"agents": [GOOSE, AUGGIE]}, None, "no agent None in the registry"),
        ({**GOOSE, "id": "../../etc"}, None, "not an entry of the ACP registry"),
        ([1], None, "not an entry of the ACP registry"),
    ],
)
def test_a_bad_registry_is_a_usage_error(value, agent, says):
    with pytest.raises(UsageError, match=says):
        entry(value, agent)


def test_a_platform_without_a_program_is_named():
    with pytest.raises(UsageError, match=r"no program for plan9; it has: darwin-aarch64, linux-"):
        declaration_of(entry(GOOSE), wire="openai-chat", platform="plan9")


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_of_an_entry_writes_another_key(description, argument):
    changed = {
        **AUGGIE,
        "description": description,
        "distribution": {"npx": {"package": "a@1", "args": [argument]}},
    }
    try:
        declaration, _ = declaration_of(entry(changed), wire="openai-chat")
    except UsageError:
        return
    assert (declaration.description, declaration.launch.args) == (description, (argument,))
    assert declaration.command is None
