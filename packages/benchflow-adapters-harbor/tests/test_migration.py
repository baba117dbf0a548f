"""An old Terminal-Bench task is run as the Harbor task that it can be made into."""

from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import Task, TaskError
from harbor_corpus import TERMINAL_BENCH, write

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


def test_what_the_dockerfile_copies_is_there(tmp_path: Path) -> None:
    files = {**TERMINAL_BENCH, "Dockerfile": "FROM debian:12\nCOPY ./tests /t\n"}
    found = loaded(tmp_path, files)
    assert found.parts.recipe is not None
    assert (found.parts.recipe.context / "tests" / "test_outputs.py").is_file()
    assert not (found.parts.recipe.context / "solution.sh").exists()


def test_what_the_service_says_goes_into_its_dockerfile(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        (CLIENT + "  db:\n    image: postgres\n", "several containers"),
        (CLIENT + "    mem_limit: 1g\n", "services.client.mem_limit"),
        (CLIENT + '    volumes: ["./data:/data"]\n', "services.client.volumes"),
        (CLIENT + "    platform: linux/arm64\n", "services.client.platform"),
        (CLIENT + "volumes: {data: {}}\n", "docker-compose.yaml:volumes"),
    ],
)
def test_what_a_dockerfile_cannot_say_is_refused(tmp_path: Path, compose: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        loaded(tmp_path, with_compose(compose))


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


def test_a_layout_by_other_code_of_ours_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(tmp_path, TERMINAL_BENCH)
    monkeypatch.setattr("benchflow_adapters_harbor.layout_key._code", lambda: b"newer")
    assert loaded(tmp_path, TERMINAL_BENCH).parts.tests != first.parts.tests
