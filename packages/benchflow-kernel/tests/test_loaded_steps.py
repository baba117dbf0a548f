"""`[[steps]]` and their folders, read."""

import pytest
from benchflow_contracts import TaskError
from benchflow_kernel import load_task
from hypothesis import given
from hypothesis import strategies as st

TWO = """
name = "demo"
artifacts = ["/workspace/all.txt"]
[agent]
timeout_sec = 60
[verifier]
isolation = "twin"
timeout_sec = 30
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "two"
artifacts = ["/workspace/two.txt"]
min_reward = {style = 0.25}
verifier = {timeout_sec = 5}
agent = {prompt_prefix = "Please. "}
setup_commands = [{command = "true", user = "agent"}]
healthcheck = {command = "true"}
"""


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "demo"
    for name in ("one", "two"):
        (root / "steps" / name).mkdir(parents=True)
        (root / "steps" / name / "instruction.md").write_text(f"do {name}")
    (root / "tests").mkdir()
    (root / "tests" / "test.sh").write_text("true")
    (root / "task.toml").write_text(TWO)
    return root


def refused(root) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(root)
    assert caught.value.hint
    return str(caught.value).replace(str(root), "")


def test_what_a_step_leaves_out_is_the_tasks(folder):
    task = load_task(folder)
    one, two = task.steps
    assert (task.instruction, one.instruction, two.instruction) == ("do one", "do one", "do two")
    assert (one.verifier.timeout_sec, two.verifier.timeout_sec) == (30, 5)
    assert (one.verifier.isolation, two.verifier.isolation) == ("twin", "twin")
    assert (two.agent.timeout_sec, two.agent.prompt_prefix) == (60, "Please. ")
    assert (one.min_reward, two.min_reward) == ({"reward": 0.5}, {"style": 0.25})
    sources = [each.source for each in task.step(1).config.artifacts]
    assert sources == ["/workspace/all.txt", "/workspace/two.txt"]


def test_a_steps_folder_has_its_tests_solution_and_files(folder):
    for name in ("tests", "solution", "workdir"):
        (folder / "steps" / "two" / name).mkdir()
    one, two = load_task(folder).steps
    home = folder.resolve()
    assert one.parts.tests == (home / "tests",)
    assert (one.parts.solution, one.parts.workdir_files) == (None, None)
    own = home / "steps" / "two"
    assert two.parts.tests == (home / "tests", own / "tests")
    assert (two.parts.solution, two.parts.workdir_files) == (own / "solution", own / "workdir")


def test_the_digest_follows_the_files_of_every_step(folder):
    before = load_task(folder).digest
    (folder / "steps" / "two" / "instruction.md").write_text("do three")
    assert load_task(folder).digest != before


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "two"', 'name = "one"', "two steps are named 'one'"),
        ('name = "two"', 'name = "../one"', "task.toml:steps.1.name"),
        ('name = "two"', 'name = "three"', "/steps/three/instruction.md"),
        ('name = "two"', 'name = "two"\ninstruction = "x"', "task.toml:steps.1.instruction"),
        ('name = "two"', 'name = "two"\nparts = {solution = "/etc"}', "steps.1.parts"),
        ('name = "two"', 'name = "two"\nsurprise = 1', "task.toml:steps.1.surprise"),
        ("timeout_sec = 5", "timeout_sec = -5", "task.toml:steps.1.verifier.timeout_sec"),
        ("timeout_sec = 5", 'timeout_sec = "5"', "task.toml:steps.1.verifier.timeout_sec"),
        ("{style = 0.25}", "inf", "must be a finite number"),
        ("{style = 0.25}", '"high"', "task.toml:steps.1.min_reward"),
        ('[verifier]\nisolation = "twin"\ntimeout_sec = 30', "verifier = 3", "verifier"),
    ],
)
def test_a_malformed_step_is_refused_by_its_key(folder, old, new, told):
    text = TWO.replace(old, new)
    if new == "verifier = 3":
        text = TWO.replace(old, "").replace('name = "demo"', 'name = "demo"\nverifier = 3')
    (folder / "task.toml").write_text(text)
    assert told in refused(folder)


def test_a_folder_that_no_step_names_is_refused(folder):
    (folder / "steps" / "three").mkdir()
    assert "folder 'three' does not belong to a step" in refused(folder)


def test_an_instruction_that_nobody_would_read_is_refused(folder):
    (folder / "instruction.md").write_text("do it all")
    assert "/instruction.md: the file is not used" in refused(folder)


def test_a_step_without_tests_is_refused(folder):
    (folder / "tests" / "test.sh").unlink()
    assert "step 'one' has no tests" in refused(folder)


def test_an_empty_instruction_is_refused(folder):
    (folder / "steps" / "one" / "instruction.md").write_text(" \n")
    assert "steps/one/instruction.md: the instruction is empty" in refused(folder)


@given(steps=st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab"), st.lists))
def test_steps_that_are_no_tables_are_refused_and_never_crash(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("task")
    text = repr(steps).replace("None", '""').replace("True", "true").replace("False", "false")
    (root / "task.toml").write_text(f'name = "demo"\nsteps = {text}\n')
    (root / "instruction.md").write_text("do it")
    if steps == []:
        assert load_task(root).steps == ()
    else:
        with pytest.raises(TaskError):
            load_task(root)
