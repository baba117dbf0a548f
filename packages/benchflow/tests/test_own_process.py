import pytest
from benchflow.own_process import own_process_tests
from benchflow_contracts import Task, TaskConfig


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
    ],
)
def test_a_line_that_only_reads_is_not(tmp_path, line):
    assert own_process_tests(task_of(tmp_path, {"test.sh": f"{line}\n"})) == []


def test_a_task_that_says_so_is_not_warned_of(tmp_path):
    files = {"test.sh": "python3 /workspace/main.py\n"}
    assert own_process_tests(task_of(tmp_path, files, executes_artifacts=True)) == []


def test_vendored_files_are_not_read(tmp_path):
    files = {"vendor/x.py": 'sys.path.insert(0, "/workspace")\n'}
    assert own_process_tests(task_of(tmp_path, files)) == []
