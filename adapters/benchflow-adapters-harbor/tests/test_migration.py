"""An old Terminal-Bench task is run as the Harbor task that it can be made into."""

from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import ContainerOptions, Task, TaskError
from harbor_corpus import TERMINAL_BENCH, write

LOGS = "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"
CLIENT = "services:\n  client:\n    build: .\n"


def loaded(root: Path, files: dict[str, str]) -> Task:
    return HarborAdapter(cache=root / "cache").load_task(write(root / "old", files))


def with_compose(text: str) -> dict[str, str]:
    return {**TERMINAL_BENCH, "docker-compose.yaml": text}


def test_the_exit_code_of_the_tests_becomes_the_reward(tmp_path: Path) -> None:
    found = loaded(tmp_path, TERMINAL_BENCH)
    (tests,) = found.parts.tests
    script = (tests / "test.sh").read_text()
    assert script.startswith("pytest /tests/test_outputs.py\n")
    assert script.endswith("exit $_EXIT_CODE\n")
    assert (tests / "test.sh").stat().st_mode & 0o111
    assert (tests / "test_outputs.py").is_file()
    assert (found.format, found.config.verifier.timeout_sec) == ("terminal-bench", 180.5)
    assert found.config.agent.timeout_sec == 900


def test_the_agents_image_holds_neither_tests_nor_solution(tmp_path: Path) -> None:
    found = loaded(tmp_path, {**TERMINAL_BENCH, "data/input.txt": "1\n"})
    assert found.parts.recipe is not None
    context = found.parts.recipe.context
    names = sorted(str(path.relative_to(context)) for path in context.rglob("*") if path.is_file())
    assert names == ["Dockerfile", "data/input.txt"]
    assert "ENV TEST_DIR=/tests\n" in (context / "Dockerfile").read_text()
    assert found.parts.solution is not None
    assert (found.parts.solution / "solve.sh").read_text() == "true\n"


def test_the_files_that_the_dockerfile_copies_exist(tmp_path: Path) -> None:
    files = {**TERMINAL_BENCH, "Dockerfile": "FROM debian:12\nCOPY ./tests /t\n"}
    found = loaded(tmp_path, files)
    assert found.parts.recipe is not None
    assert (found.parts.recipe.context / "tests" / "test_outputs.py").is_file()
    assert not (found.parts.recipe.context / "solution.sh").exists()


def test_the_keys_of_the_service_are_in_its_dockerfile(tmp_path: Path) -> None:
    files = with_compose("""
services:
  client:
    build: {context: ./docker}
    environment: {A: 1, TEST_DIR: "${T_BENCH_TEST_DIR}"}
    working_dir: /app
    entrypoint: [/bin/start, now]
    platform: linux/amd64
""")
    found = loaded(tmp_path, {**files, "docker/Dockerfile": "FROM scratch\n", "docker/x": "y"})
    assert found.parts.recipe is not None
    context = found.parts.recipe.context
    added = (context / "Dockerfile").read_text().splitlines()[-4:]
    assert added == [
        "ENV TEST_DIR=/tests",
        "ENV A=1",
        "WORKDIR /app",
        'ENTRYPOINT ["/bin/start", "now"]',
    ]
    assert (context / "x").is_file()


def test_keys_without_host_access_are_accepted_and_limits_apply(tmp_path: Path) -> None:
    compose = (
        CLIENT
        + """    deploy: {resources: {limits: {cpus: '0.5', memory: 512M, pids: 99}}}
    tty: true
    stdin_open: true
    container_name: ${COMPOSE_PROJECT_NAME}
    labels: [a=b]
    logging: {driver: json-file}
    init: true
    stop_grace_period: 1s
    platform: linux/amd64
version: '3'
name: anything
"""
    )
    found = loaded(tmp_path, with_compose(compose))
    limits = found.config.environment
    assert (limits.cpus, limits.memory_mb, limits.pids) == (0.5, 512, 99)
    assert found.parts.container == ContainerOptions()
    assert found.parts.recipe is not None
    assert "ENV TEST_DIR=/tests\n" in (found.parts.recipe.context / "Dockerfile").read_text()


@pytest.mark.parametrize(
    "volumes",
    [
        f'["./:/app", "./data/:/data:ro", "{LOGS}"]',
        "[{type: bind, source: ./, target: /app}, {type: bind, source: ./data, target: /data}]",
    ],
)
def test_mounted_paths_of_an_old_task_are_copied_into_its_image(
    tmp_path: Path, volumes: str
) -> None:
    files = {**with_compose(CLIENT + f"    volumes: {volumes}\n"), "data/input.txt": "1\n"}
    found = loaded(tmp_path, {**files, "run-tests.sh": "true\n"})
    assert found.parts.recipe is not None
    context = found.parts.recipe.context
    added = (context / "Dockerfile").read_text().splitlines()[-3:]
    assert added == ['COPY [".", "/app"]', 'COPY ["data", "/data"]', "ENV TEST_DIR=/tests"]
    assert sorted(path.name for path in context.iterdir()) == ["Dockerfile", "data"]
    assert found.parts.container == ContainerOptions()


def test_a_mount_below_the_build_directory_has_its_path_in_the_layout(
    tmp_path: Path,
) -> None:
    text = 'services: {client: {build: docker, volumes: ["./docker/x:/x", "./y:/y"]}}'
    files = {"docker/Dockerfile": "FROM scratch\n", "docker/x": "1", "y": "2"}
    found = loaded(tmp_path, {**with_compose(text), **files})
    assert found.parts.recipe is not None
    context = found.parts.recipe.context
    copies = [a for a in (context / "Dockerfile").read_text().splitlines() if a[:4] == "COPY"]
    assert copies == ['COPY ["x", "/x"]', 'COPY ["y", "/y"]']
    assert ((context / "x").read_text(), (context / "y").read_text()) == ("1", "2")


def test_the_services_of_an_old_task_are_those_of_the_harbor_task_that_it_becomes(
    tmp_path: Path,
) -> None:
    found = loaded(
        tmp_path,
        {
            **with_compose("""
services:
  client:
    build: .
    depends_on: {db: {condition: service_healthy}}
    environment: [PLAIN=1, "WORDS=two words", "TEST_DIR=${T_BENCH_TEST_DIR}"]
    extra_hosts: ["one:192.0.2.1"]
  db:
    image: postgres:16
    healthcheck: {test: "true", interval: 1s}
    volumes: ["data:/data", "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"]
  late: {build: {context: ./late}, depends_on: [client]}
volumes: {data: {}}
"""),
            "late/Dockerfile": "FROM scratch\n",
        },
    )
    services = {each.name: each for each in found.parts.services}
    assert services.keys() == {"db", "late"}
    assert services["db"].volumes == {"/data": "data"}
    assert services["late"].needs == {"main": "started"}
    assert services["late"].recipe is not None
    assert services["late"].recipe.context.name == "late"
    assert found.parts.container.needs == {"db": "healthy"}
    assert found.parts.container.hosts == {"one": "192.0.2.1"}
    assert found.config.environment.env == {"WORDS": "two words"}
    assert found.parts.recipe is not None
    assert "ENV PLAIN=1\n" in (found.parts.recipe.context / "Dockerfile").read_text()


def test_a_service_with_an_image_and_no_build_uses_the_image(tmp_path: Path) -> None:
    files = {k: v for k, v in TERMINAL_BENCH.items() if k != "Dockerfile"}
    compose = "services: {client: {image: 'debian:12'}}"
    found = loaded(tmp_path, {**files, "docker-compose.yaml": compose})
    assert found.parts.recipe is not None
    text = (found.parts.recipe.context / "Dockerfile").read_text()
    assert text.startswith("FROM debian:12\n")


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        (CLIENT + "    privileged: true\n", "privileged"),
        (CLIENT + "    cap_add: [SYS_ADMIN]\n", "SYS_ADMIN"),
        (CLIENT + "    devices: [/dev/kvm]\n", "devices"),
        (CLIENT + "    network_mode: host\n", "network_mode"),
        (CLIENT + "    pid: host\n", "services.client.pid"),
        (CLIENT + '    volumes: ["/var/run/docker.sock:/s"]\n', "docker.sock"),
        (CLIENT + '    volumes: ["../other:/data"]\n', "services.client.volumes"),
        (CLIENT + '    volumes: ["./absent:/data"]\n', "'absent' is not a path of the task"),
        (CLIENT + "    platform: linux/arm64\n", "services.client.platform"),
        (CLIENT + "    read_only: true\n", "services.client.read_only"),
        (CLIENT + "    invented: true\n", "services.client.invented"),
        ("services: {client: {build: nowhere}}", "there is neither a Dockerfile"),
    ],
)
def test_host_access_and_unsupported_keys_are_refused_by_their_own_key(
    tmp_path: Path, compose: str, says: str
) -> None:
    files = with_compose(compose)
    with pytest.raises(TaskError, match=says):
        loaded(tmp_path, files)
    (listed,) = HarborAdapter().list_tasks(str(tmp_path / "old"))
    assert not listed.ok


def test_a_link_out_of_the_task_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="leaves the task"):
        loaded(tmp_path, {**TERMINAL_BENCH, "data": "-> /etc"})
    assert not (tmp_path / "cache").exists()


def test_a_task_is_laid_out_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    first = loaded(tmp_path, TERMINAL_BENCH)
    assert loaded(tmp_path, TERMINAL_BENCH).parts == first.parts
    changed = loaded(tmp_path, {**TERMINAL_BENCH, "run-tests.sh": "true\n"})
    assert changed.parts.tests != first.parts.tests


def test_a_mode_that_changed_and_a_file_that_git_ignores_are_laid_out_anew(tmp_path: Path) -> None:
    files = {**TERMINAL_BENCH, "data/go": "true\n", ".gitignore": "secret\n", "secret": "1\n"}

    def context(**changed: str) -> Path:
        recipe = loaded(tmp_path, {**files, **changed}).parts.recipe
        assert recipe is not None
        return recipe.context

    first = context()
    (tmp_path / "old" / "data" / "go").chmod(0o755)
    runnable = context()
    assert [(each / "data/go").stat().st_mode & 0o111 for each in (first, runnable)] == [0, 0o111]
    assert (context(secret="2\n") / "secret").read_text() == "2\n"
    assert (first / "secret").read_text() == "1\n"


def test_a_layout_of_another_version_of_the_code_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(tmp_path, TERMINAL_BENCH)
    monkeypatch.setattr("benchflow_adapters_harbor.migrate._code", lambda: b"newer")
    assert loaded(tmp_path, TERMINAL_BENCH).parts.tests != first.parts.tests
