"""What a world asks of its sandbox."""

from pathlib import Path

import pytest
from benchflow_contracts import ManifestError, SandboxSpec, needs_spawn
from benchflow_env_manifest import manifest_environment

OWNED = """
[environment]
name = "world"
image = "registry.example:5000/team/world:1.2"
ports = [7000]
[environment.forward_env]
keys = ["WORLD_TOKEN", "WORLD_ABSENT"]
"""
STARTED = """
[environment]
name = "office"
base_image = "office-base"
owns_lifecycle = false
[environment.forward_env]
keys = ["WORLD_TOKEN"]
[[environment.services]]
name = "mail"
command = "mail-service"
port = 9001
"""


def prepare(folder: Path, text: str, spec: SandboxSpec | None = None) -> SandboxSpec:
    path = folder / "environment.toml"
    path.write_text(text)
    environment = manifest_environment(path)()
    return environment.prepare(spec or SandboxSpec(), task_id="archive-alice")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (OWNED, False),
        (STARTED, True),
        (f'{OWNED}[[environment.state]]\nkind = "files"\npaths = ["/srv/mail"]\n', False),
        (f'{OWNED}[[environment.state]]\nkind = "postgres"\nname = "crm"\n', True),
    ],
)
def test_services_and_databases_of_a_server_need_processes(tmp_path: Path, text: str, needed: bool):
    (tmp_path / "environment.toml").write_text(text)
    environment = manifest_environment(tmp_path / "environment.toml")()
    assert needs_spawn(environment) is needed


def write_entrypoint(folder: Path, text: str) -> None:
    image = folder / "images" / "world"
    image.mkdir(parents=True)
    (image / "entrypoint").write_text(text)


def test_the_image_is_looked_up_beside_the_manifest_and_ports_are_joined(tmp_path: Path):
    given = SandboxSpec(ports=(9001, 80), image_search=("/elsewhere",), env={"A": "1"})
    spec = prepare(tmp_path, STARTED, given)
    assert spec.image == "office-base"
    assert spec.image_search == ("/elsewhere", str(tmp_path / "images"))
    assert spec.ports == (9001, 80)
    assert spec.env == {"A": "1", "BENCHFLOW_TASK_ID": "archive-alice"}
    assert prepare(tmp_path, OWNED).ports == (7000,)


def test_a_per_task_image_wins_only_when_tasks_are_selected_by_image(tmp_path: Path):
    task = SandboxSpec(image="office-task-3")
    assert prepare(tmp_path, STARTED, task).image == "office-base"
    by_image = STARTED + '[environment.task_selection]\nmechanism = "image"\n'
    spec = prepare(tmp_path, by_image, task)
    assert spec.image == "office-task-3"
    assert "BENCHFLOW_TASK_ID" not in spec.env
    assert prepare(tmp_path, by_image).image == "office-base"


def test_exec_selection_does_not_reach_the_entrypoint(tmp_path: Path):
    table = '[environment.task_selection]\nkey = "TASK"\ninject_into = "{}"\n'
    assert prepare(tmp_path, OWNED + table.format("entrypoint")).env == {"TASK": "archive-alice"}
    assert prepare(tmp_path, OWNED + table.format("exec")).env == {}


def test_declared_host_variables_reach_an_image_that_starts_itself(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WORLD_TOKEN", "t0ken")
    monkeypatch.setenv("WORLD_OTHER", "secret")
    monkeypatch.delenv("WORLD_ABSENT", raising=False)
    env = prepare(tmp_path, OWNED).env
    assert env == {"BENCHFLOW_TASK_ID": "archive-alice", "WORLD_TOKEN": "t0ken"}


def test_for_framework_started_services_they_stay_out_of_the_agent_s_sight(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("WORLD_TOKEN", "t0ken")
    assert "WORLD_TOKEN" not in prepare(tmp_path, STARTED).env


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/opt/start\n", ("/opt/start",)),
        ('["/bin/sh", "-c", "exec serve --all"]', ("/bin/sh", "-c", "exec serve --all")),
    ],
)
def test_the_image_s_start_command_is_read_from_beside_its_rootfs(
    tmp_path: Path, text: str, command: tuple[str, ...]
):
    write_entrypoint(tmp_path, text)
    assert prepare(tmp_path, OWNED).entrypoint == command
    assert prepare(tmp_path, STARTED).entrypoint is None
    given = SandboxSpec(entrypoint=("/mine",))
    assert prepare(tmp_path, OWNED, given).entrypoint == ("/mine",)


def test_without_an_entrypoint_file_the_provider_decides(tmp_path: Path):
    assert prepare(tmp_path, OWNED).entrypoint is None
    assert prepare(tmp_path, OWNED.replace("team/world:1.2", "team/..")).entrypoint is None


@pytest.mark.parametrize(
    "text", ["", "start", "/a\n/b", "[]", '["start"]', '["/a", 1]', "[1", "[" * 5000, "/" * 5000]
)
def test_a_malformed_entrypoint_names_its_file(tmp_path: Path, text: str):
    write_entrypoint(tmp_path, text)
    with pytest.raises(ManifestError, match="images/world/entrypoint: not an entrypoint"):
        prepare(tmp_path, OWNED)
