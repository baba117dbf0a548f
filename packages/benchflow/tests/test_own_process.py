import pytest
from benchflow.own_process import own_process_tests
from benchflow_contracts import (
    ImageRecipe,
    Task,
    TaskConfig,
    TaskEnvironment,
    TaskParts,
    TaskStep,
    TaskVerifier,
)


def task_of(tmp_path, files, **verifier):
    for name, text in files.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config = TaskConfig.model_validate(
        {"name": "t", "artifacts": ["/workspace/solution.py"], "verifier": verifier}
    )
    return Task(id="t", path=tmp_path, instruction="", config=config, digest="0")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("check.py", 'sys.path.insert(0, "/workspace")'),
        (
            "check.py",
            'spec = importlib.util.spec_from_file_location("s", "/workspace/solution.py")',
        ),
        ("check.py", 'exec(open("/workspace/solution.py").read())'),
        ("test.sh", "python3 /workspace/main.py > out"),
        ("test.sh", "  bash /workspace/run.sh"),
        ("test.sh", "/workspace/bin/serve &"),
        ("test.sh", "PYTHONPATH=/workspace pytest /tests"),
        ("test.sh", "pip install -e ."),
        ("test.sh", "cd /workspace && pip install ."),
        ("test.sh", "npm test"),
        ("test.sh", "cd /workspace && make -s check > log"),
        ("test.sh", "yarn run test --ci"),
        ("test.sh", "cargo test --release"),
        ("check.py", 'subprocess.run(["npm", "run", "test"])'),
    ],
)
def test_a_line_that_runs_the_agents_code_is_named_with_its_place(tmp_path, name, line):
    (found,) = own_process_tests(task_of(tmp_path, {name: f"# first\n{line}\n"}))
    assert (found.file, found.line, found.text) == (name, 2, line.strip())
    assert "run_untrusted" in found.remedy


@pytest.mark.parametrize(
    "line",
    [
        '[ "$(cat /workspace/greeting.txt)" = "hello" ]',
        "cp /tests/check.py /workspace/check.py",
        "# python3 /workspace/main.py",
        "pip install pytest==8.0",
        "python3 /tests/check.py /workspace/answer.json",
        "cd /workspace",
        "npm install mocha",
        "make install",
        "go tests",
    ],
)
def test_a_line_that_only_reads_is_not(tmp_path, line):
    assert own_process_tests(task_of(tmp_path, {"test.sh": f"{line}\n"})) == []


def test_a_task_with_executes_artifacts_has_no_warning(tmp_path):
    files = {"test.sh": "python3 /workspace/main.py\n"}
    assert own_process_tests(task_of(tmp_path, files, executes_artifacts=True)) == []


def test_the_agents_directory_is_the_images_where_the_task_names_none(tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text("FROM x\nWORKDIR /first\nworkdir /srv/app\n")
    task = task_of(tmp_path, {"test.sh": "python3 /srv/app/main.py\npython3 /app/main.py\n"})
    config = task.config.model_copy(
        update={
            "environment": TaskEnvironment(workdir=""),
            "verifier": TaskVerifier(protocol="harbor"),
        }
    )
    parts = TaskParts(
        tests=task.parts.tests, recipe=ImageRecipe(context=(tmp_path / "image").resolve())
    )
    found = own_process_tests(task.model_copy(update={"config": config, "own_parts": parts}))
    assert [line.line for line in found] == [1]
    assert "run_untrusted" not in found[0].remedy


def test_the_root_as_the_agents_directory_makes_no_program_suspicious(tmp_path):
    task = task_of(tmp_path, {"test.sh": "python3 /tests/check.py\n"})
    config = task.config.model_copy(update={"environment": TaskEnvironment(workdir="/")})
    assert own_process_tests(task.model_copy(update={"config": config})) == []


def test_the_tests_of_every_step_are_read_and_a_shared_line_is_reported_once(tmp_path):
    task = task_of(tmp_path, {"test.sh": "true\n"})
    (tmp_path / "b").mkdir()
    for place in (tmp_path / "tests", tmp_path / "b"):
        (place / "check.sh").write_text("bash /workspace/run.sh\n")
    steps = tuple(
        TaskStep(name=name, instruction="", parts=TaskParts(tests=tests))
        for name, tests in {
            "a": (tmp_path / "tests",),
            "b": (tmp_path / "tests", tmp_path / "b"),
        }.items()
    )
    assert len(own_process_tests(task.model_copy(update={"steps": steps}))) == 2


def test_vendored_files_are_not_read(tmp_path):
    files = {"vendor/x.py": 'sys.path.insert(0, "/workspace")\n'}
    assert own_process_tests(task_of(tmp_path, files)) == []
