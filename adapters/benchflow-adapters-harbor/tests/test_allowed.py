"""What an operator allows a task: variables, paths of the machine, a build instead of an image."""

from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import AdapterOptions, HostMount, Task, TaskError
from harbor_corpus import TERMINAL_BENCH, task, write


def loaded(root: Path, files: dict[str, str], **allowed: object) -> Task:
    options = AdapterOptions.model_validate(allowed)
    adapter = HarborAdapter(cache=root / "cache", options=options)
    return adapter.load_task(write(root / "a-task", files))


def with_compose(text: str, toml: str = "") -> dict[str, str]:
    return {**task(toml), "environment/docker-compose.yaml": text}


NAMED = """
services:
  main: {environment: ["TOKEN=${TOKEN}", "URL=http://${HOST_NAME:-none}", PASSED]}
  db: {image: "db:${TAG}", command: "serve ${TOKEN:-nothing}"}
"""


def test_variables_that_are_forwarded_reach_compose_files_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TOKEN": "secret", "TAG": "3", "PASSED": "on", "HOST_NAME": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ABSENT", raising=False)
    files = with_compose(NAMED)
    found = loaded(tmp_path, files, forward_env=["TOKEN", "TAG", "PASSED", "ABSENT"])
    assert found.config.environment.env == {"TOKEN": "secret", "URL": "http://none", "PASSED": "on"}
    assert found.parts.services[0].image == "db:3"
    assert found.parts.services[0].command == ("serve", "secret")
    unset = loaded(tmp_path / "2", files)
    assert unset.config.environment.env == {"TOKEN": "", "URL": "http://none"}
    assert unset.parts.services[0].command == ("serve", "nothing")


def test_a_variable_of_the_task_that_is_the_operators_is_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "yours")
    toml = '[environment.env]\nA = "${MINE}"\nB = "${OTHER:-default}"\n'
    files = with_compose('services: {db: {image: "x:$A-$B"}}', toml)
    assert loaded(tmp_path, files, forward_env=["MINE"]).parts.services[0].image == (
        "x:yours-default"
    )


def test_an_unset_variable_is_empty_and_named(tmp_path: Path) -> None:
    write(tmp_path, with_compose(NAMED))
    (listed,) = HarborAdapter().list_tasks(str(tmp_path))
    names = [note.split("'")[1] for note in listed.notes]
    assert (listed.ok, names) == (True, ["TAG", "TOKEN"])


def test_a_required_variable_that_is_unset_is_refused_with_the_message_of_the_file(
    tmp_path: Path,
) -> None:
    files = with_compose("services: {db: {image: 'x:${TAG:?say which}'}}")
    with pytest.raises(TaskError, match="'TAG' is required and not set: say which") as caught:
        loaded(tmp_path, files)
    assert "--forward-env" in (caught.value.hint or "")


def test_paths_of_this_machine_are_mounted_for_trusted_tasks_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "build").mkdir(parents=True)
    (outside / "some.env").write_text("A=1\n")
    files = with_compose(f"""
services:
  main: {{volumes: ["{outside}:/shared", "./inside:/inside"]}}
  db:
    build: {outside}/build
    env_file: {outside}/some.env
    volumes: ["{outside}:/shown:ro", "../../outside:/up"]
""")
    files["environment/inside/file"] = ""
    with pytest.raises(TaskError, match="of the host") as caught:
        loaded(tmp_path, files)
    assert "--trust-host-access" in (caught.value.hint or "")
    found = loaded(tmp_path, files, trust_host_access=True)
    (db,) = found.parts.services
    assert found.parts.container.host_mounts == {"/shared": HostMount(path=outside)}
    assert db.host_mounts == {
        "/shown": HostMount(path=outside, read_only=True),
        "/up": HostMount(path=outside),
    }
    assert db.recipe is not None
    assert (db.recipe.context, db.env) == (outside / "build", {"A": "1"})
    # Its own path is a copy as ever.
    assert found.parts.recipe is not None
    assert 'COPY ["inside", "/inside"]' in found.parts.recipe.inline


@pytest.mark.parametrize("key", ["privileged: true", "devices: [/dev/kvm]", "cap_add: [SYS_ADMIN]"])
def test_more_than_paths_is_refused_of_a_trusted_task_too(tmp_path: Path, key: str) -> None:
    with pytest.raises(TaskError):
        loaded(tmp_path, with_compose(f"services: {{main: {{{key}}}}}"), trust_host_access=True)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    files = with_compose("services: {main: {volumes: ['/no/such/path:/x']}}")
    with pytest.raises(TaskError, match="'/no/such/path' does not exist"):
        loaded(tmp_path, files, trust_host_access=True)


IMAGE = '[environment]\ndocker_image = "nobody/has:this"\n'
GRADED = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\n'


def test_a_dockerfile_is_built_if_the_operator_asks_for_it(tmp_path: Path) -> None:
    files = {**task(IMAGE + GRADED + 'docker_image = "x:1"\n'), "tests/Dockerfile": "FROM y\n"}
    named = loaded(tmp_path, files)
    assert named.config.environment.image == "nobody/has:this"
    built = loaded(tmp_path / "2", files, force_build=True)
    assert (built.config.environment.image, built.parts.recipe is None) == (None, False)
    verifier = built.config.verifier.environment
    assert verifier is not None
    assert (verifier.image, built.parts.grading_recipe is None) == (None, False)
    assert built.digest == named.digest


def test_an_image_without_a_dockerfile_stays(tmp_path: Path) -> None:
    files = {k: v for k, v in task(IMAGE).items() if k != "environment/Dockerfile"}
    files["environment/file"] = ""
    found = loaded(tmp_path, files, force_build=True)
    assert found.config.environment.image == "nobody/has:this"


def test_an_old_task_gets_forwarded_variables_at_run_time_and_not_in_its_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    compose = 'services: {client: {build: ., environment: ["TOKEN=${TOKEN}", PASSED]}}'
    files = {**TERMINAL_BENCH, "docker-compose.yaml": compose}
    found = loaded(tmp_path, files, forward_env=["TOKEN"])
    assert found.config.environment.env == {"TOKEN": "secret"}
    assert found.parts.recipe is not None
    assert "secret" not in (found.parts.recipe.context / "Dockerfile").read_text()
