import contextlib
import os

import pytest
from benchflow_contracts import TaskError
from benchflow_kernel import find_tasks, load_task
from hypothesis import given, settings
from hypothesis import strategies as st


def make_task(folder, toml='name = "demo"', instruction="do it"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(toml)
    if instruction is not None:
        (folder / "instruction.md").write_text(instruction)
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_task(tmp_path / "demo")


def refused(folder) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(folder)
    return str(caught.value)


def test_a_whole_task_is_read(folder):
    (folder / "task.toml").write_text(
        """
        name = "clawsbench/reply"
        artifacts = ["/workspace/out.txt"]
        [agent]
        timeout_sec = 60
        [environment]
        memory_mb = 512
        [[environment.setup_commands]]
        command = "true"
        [user]
        mode = "scripted"
        answers = [{match = "day", option = "Monday"}]
        """
    )
    task = load_task(folder)
    assert task.id == "clawsbench/reply"
    assert task.instruction == "do it"
    assert task.path == folder.resolve()
    assert task.config.agent.timeout_sec == 60.0
    assert task.config.user.answers[0].option == "Monday"
    assert task.digest.startswith("sha256:")


def test_the_digest_follows_names_and_contents_and_nothing_else(folder, tmp_path):
    (folder / "tests").mkdir()
    (folder / "tests/test.sh").write_text("true")
    first = load_task(folder).digest
    os.utime(folder / "tests/test.sh", (1, 1))
    assert load_task(folder).digest == first
    (folder / "tests/test.sh").rename(folder / "tests/test2.sh")
    renamed = load_task(folder).digest
    (folder / "tests/test2.sh").write_text("false")
    changed = load_task(folder).digest
    assert len({first, renamed, changed}) == 3


def test_moving_bytes_between_a_name_and_a_content_changes_the_digest(tmp_path):
    one, two = make_task(tmp_path / "a/demo"), make_task(tmp_path / "b/demo")
    (one / "xy").write_text("z")
    (two / "x").write_text("yz")
    assert load_task(one).digest != load_task(two).digest


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("", "task.toml:name"),
        ('name = "demo"\nnoun = 1', "task.toml:noun"),
        ('name = "demo"\n[environment]\nimage = "/root"', "task.toml:environment.image"),
        ('name = "demo"\n[agent]\ntimeout = 1', "task.toml:agent.timeout"),
        ('name = "demo"\n[agent]\ntimeout_sec = "5"', "task.toml:agent.timeout_sec"),
        ('name = "demo"\n[agent]\ntimeout_sec = inf', "task.toml:agent.timeout_sec"),
        ('name = "demo"\n[verifier]\nreward_range = [nan, 1]', "task.toml:verifier.reward_range.0"),
        ('name = "Demo Task"', "task.toml:name"),
        ('name = "demo"\n[environment]\nmemory_mb = 0', "task.toml:environment.memory_mb"),
        ('name = "demo"\n[environment]\nsetup_commands = [{}]', "setup_commands.0.command"),
        ('name = "demo"\nname = "demo"', "task.toml:2"),
        ("name = ", "task.toml:1"),
        (f"x = {'9' * 5000}", "task.toml"),
    ],
)
def test_a_bad_key_is_named_with_its_file(folder, toml, says):
    (folder / "task.toml").write_text(toml)
    assert says in refused(folder)


def test_every_problem_is_listed(folder):
    (folder / "task.toml").write_text("one = 1\n[agent]\ntwo = 2")
    message = refused(folder)
    assert all(key in message for key in ("task.toml:name", "task.toml:one", "task.toml:agent.two"))


@pytest.mark.parametrize(
    "toml",
    [
        ".".join("a" for _ in range(20_000)) + " = 1",
        " . ".join("a" for _ in range(10_000)) + " = 1",
        ".".join('"a"' for _ in range(10_000)) + " = 1",
        "x = {" + ".".join("a" for _ in range(20_000)) + " = 1}",
        "[" + ".".join("a" for _ in range(20_000)) + "]",
        "x = " + "[" * 30_000,
        "x = " + "[" * 30_000 + "]" * 30_000,
        "x = " + "{a=" * 15_000,
        "x = '''\n'''''\ny = " + "[" * 30_000,
        'x = ["""a"""", ' + "[" * 30_000 + ', "]',
        "x = '" + "a" * 70_000 + "'",
    ],
)
def test_an_attack_on_the_parser_is_refused_at_once(folder, toml):
    (folder / "task.toml").write_text(toml)
    assert "task.toml" in refused(folder)  # or the test's own time limit ends it


def test_dots_and_brackets_in_strings_and_comments_do_not_count(folder):
    (folder / "task.toml").write_text(
        f'# {"a." * 100} {"[" * 100}\nname = "demo"\ndescription = "{"a." * 100}{"[" * 50}"\n'
        f"[metadata]\ntext = '''{'[' * 50}'''''\nother = \"\"\"\\\" {'{' * 50}\"\"\"\"\n"
        f"v = 1.5\n"
    )
    assert load_task(folder).config.metadata["v"] == 1.5


@settings(max_examples=200)
@given(text=st.text(alphabet="ab.=[]{}\"'\\#\n 1,", max_size=60))
def test_any_text_is_a_task_or_a_task_error(tmp_path_factory, text):
    folder = make_task(tmp_path_factory.mktemp("any") / "demo", toml=text)
    with contextlib.suppress(TaskError):
        load_task(folder)


@pytest.mark.parametrize("instruction", [None, "", "  \n"])
def test_a_task_needs_an_instruction(tmp_path, instruction):
    assert "instruction.md" in refused(make_task(tmp_path / "t", instruction=instruction))


def test_an_instruction_has_a_size_limit(tmp_path):
    assert "instruction.md" in refused(make_task(tmp_path / "t", instruction="a" * 1_100_000))


def test_text_that_is_not_utf8_is_refused(folder):
    (folder / "instruction.md").write_bytes(b"\xff\xfe")
    assert "instruction.md" in refused(folder)


def test_a_link_out_of_the_directory_is_refused(folder, tmp_path):
    (tmp_path / "secret").write_text("s")
    (folder / "environment").mkdir()
    (folder / "environment/files").symlink_to(tmp_path)
    assert "leaves the task directory" in refused(folder)


@pytest.mark.parametrize("name", ["instruction.md", "task.toml"])
def test_the_tasks_own_files_may_not_be_links_out(folder, tmp_path, name):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert "leaves the task directory" in refused(folder)


def test_a_link_that_leads_nowhere_or_round_in_circles_is_refused(folder):
    (folder / "loop").symlink_to("loop")
    assert "nowhere" in refused(folder)


def test_a_link_within_the_directory_is_fine(folder):
    (folder / "copy.md").symlink_to("instruction.md")
    assert load_task(folder).id == "demo"


def test_a_pipe_is_refused_and_not_read(folder):
    os.mkfifo(folder / "pipe")
    assert "regular file" in refused(folder)


def test_what_is_no_directory_is_refused(tmp_path):
    assert "not a directory" in refused(tmp_path / "no")


def test_tasks_are_found_by_folder_name_or_as_the_folder_itself(tmp_path):
    for name in ("b", "a"):
        make_task(tmp_path / "set" / name, toml=f'name = "{name}"')
    (tmp_path / "set" / "notes").mkdir()
    (tmp_path / "set" / "README.md").write_text("x")
    assert [task.id for task in find_tasks(tmp_path / "set")] == ["a", "b"]
    assert [task.id for task in find_tasks(tmp_path / "set" / "a")] == ["a"]


def test_two_tasks_of_one_name_are_refused(tmp_path):
    make_task(tmp_path / "set/a")
    make_task(tmp_path / "set/b")
    with pytest.raises(TaskError, match="'a' and 'b' are both named 'demo'"):
        find_tasks(tmp_path / "set")


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_no_task_at_all_is_an_error(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError):
        find_tasks(tmp_path / name)


def test_a_directory_that_is_missing_is_refused_with_what_to_name(tmp_path):
    for load in (find_tasks, load_task):
        with pytest.raises(TaskError, match="is not a directory") as caught:
            load(tmp_path / "none")
        assert "name a directory" in str(caught.value.hint)
