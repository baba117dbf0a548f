import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborTask, load_harbor_task
from benchflow_contracts import TaskError
from harbor_corpus import ATIF, BAD, GOOD, TERMINAL_BENCH, task, without, write
from hypothesis import given, settings
from hypothesis import strategies as st


def load(tmp_path: Path, files: dict[str, str]) -> HarborTask:
    return load_harbor_task(write(tmp_path / "a-task", files))


@pytest.mark.parametrize("name", GOOD)
def test_every_kind_of_task_is_read(tmp_path: Path, name: str) -> None:
    found = load(tmp_path, GOOD[name])
    assert found.digest.startswith("sha256:")
    assert found.steps


@pytest.mark.parametrize("name", BAD)
def test_the_error_of_a_malformed_task_has_a_location_and_a_remedy(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(TaskError) as caught:
        load(tmp_path, BAD[name])
    assert str(tmp_path / "a-task") in str(caught.value)
    assert caught.value.hint


def test_a_task_without_a_package_is_named_by_its_directory(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD["minimal"]).name == "a-task"


def test_older_schemas_are_read_in_the_words_of_today(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD["legacy"]).config
    assert config.schema_version == "1.0"
    assert (config.environment.memory_mb, config.environment.storage_mb) == (2048, 512)
    assert config.environment.network_mode == "no-network"


def test_keys_that_nothing_reads_are_named_and_stop_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD["odd-keys"]).notes == (
        "unknown key 'future'",
        "unknown key 'environment.cpu'",
        "unknown key 'agent.timout_sec'",
    )


def test_unknown_keys_of_steps_are_named_by_their_number(tmp_path: Path) -> None:
    files = GOOD["steps"]
    found = load(tmp_path, files | {"task.toml": files["task.toml"] + "\n[steps.verifier.x]\n"})
    assert found.notes == ("unknown key 'steps.1.verifier.x'",)


def test_a_schema_before_the_first_is_read_as_the_first(tmp_path: Path) -> None:
    found = load(tmp_path, task('version = "0.0"\n'))
    assert found.notes == ("schema '0.0' is older than 1.0, and is read as 1.0",)


def test_a_newer_minor_schema_is_noted_and_another_major_refused(tmp_path: Path) -> None:
    found = load(tmp_path, task('schema_version = "1.5"\n'))
    assert "1.5" in found.notes[0]
    with pytest.raises(TaskError, match=r"schema '2\.0'"):
        load(tmp_path / "two", task('schema_version = "2.0"\n'))


def test_steps_inherit_missing_settings_from_the_task(tmp_path: Path) -> None:
    plan, build = load(tmp_path, GOOD["steps"]).steps
    assert (plan.timeout_sec, plan.user, plan.network.network_mode) == (30, 1001, "no-network")
    assert (build.timeout_sec, build.user, build.network.network_mode) == (90, "agent", "public")
    assert plan.verifier.env == {"A": "task", "B": "step"}
    assert plan.instruction == "Plan.\n"
    assert [step.verifier.mode for step in (plan, build)] == ["shared", "separate"]
    assert [hook.service for hook in build.collect] == ["db"]


def test_a_steps_verifier_timeout_is_never_the_tasks(tmp_path: Path) -> None:
    plan, build = load(tmp_path, GOOD["steps"]).steps
    assert (plan.verifier.timeout_sec, build.verifier.timeout_sec) == (600, 7.5)


def test_the_tests_of_a_step_are_merged_over_the_tasks(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD["steps"])
    build = found.steps[1].verifier
    own = found.path / "steps" / "build it" / "tests"
    assert build.tests == (found.path / "tests", own)
    assert build.script == own / "test.sh"


def test_solutions_and_prepared_files_belong_to_their_step(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD["steps"])
    plan, build = found.steps
    assert plan.solution == found.path / "steps/plan/solution/solve.sh"
    assert plan.workdir == found.path / "steps/plan/workdir"
    assert build.solution == found.path / "solution/solve.sh"
    assert build.workdir is None


def test_prior_context_is_the_first_steps(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD["steps"])
    assert [step.trajectory for step in found.steps] == [
        found.path / "steps/plan/trajectory.json",
        None,
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": "2"}', "[" * 100_000, ATIF.replace("1.6", "2.6")]
)
def test_prior_context_that_is_not_an_atif_document_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TaskError, match=r"trajectory\.json"):
        load(tmp_path, GOOD["agent-view"] | {"trajectory.json": text})


def test_loose_files_beside_a_prebuilt_image_are_uploaded(tmp_path: Path) -> None:
    assert load(tmp_path / "loose", GOOD["prebuilt"]).upload_context
    built = GOOD["prebuilt"] | {"environment/Dockerfile": "FROM scratch\n"}
    assert not load(tmp_path / "built", built).upload_context


def test_the_publishing_directory_is_always_collected(tmp_path: Path) -> None:
    assert [a.source for a in load(tmp_path / "1", GOOD["minimal"]).steps[0].artifacts] == [
        "/logs/artifacts"
    ]
    (declared, *_) = load(tmp_path / "2", GOOD["steps"]).steps[0].artifacts[1:]
    assert (declared.source, declared.exclude) == ("/logs/artifacts", ("*.tmp",))


def test_compose_services_have_the_values_of_the_file(tmp_path: Path) -> None:
    compose = load(tmp_path, GOOD["compose"]).compose
    assert compose is not None
    assert set(compose.services) == {"main", "db"}
    assert compose.services["db"].image == "postgres:16"
    assert compose.services["db"].document["healthcheck"]["interval"] == "5s"


def test_an_old_task_keeps_the_fields_that_only_old_tasks_have(tmp_path: Path) -> None:
    found = load(tmp_path, TERMINAL_BENCH)
    assert found.format == "terminal-bench"
    assert found.terminal_bench is not None
    assert found.terminal_bench.run_tests_in_same_shell
    assert found.steps[0].instruction == "Make it work.\nTwice.\n"
    assert (found.steps[0].timeout_sec, found.steps[0].verifier.timeout_sec) == (900, 180.5)
    assert found.steps[0].verifier.script == found.path / "run-tests.sh"
    assert found.steps[0].solution == found.path / "solution.sh"
    assert found.notes == ("unknown key 'unknown'",)


@pytest.mark.parametrize("name", ["task.yaml", "docker-compose.yaml", "run-tests.sh"])
def test_an_old_task_needs_its_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="is missing"):
        load(tmp_path, without(TERMINAL_BENCH | {"task.toml.off": ""}, name))


def test_the_digest_covers_only_the_published_files(tmp_path: Path) -> None:
    first = load(tmp_path, GOOD["minimal"])
    write(tmp_path / "a-task", {"notes.txt": "x", "tests/a.pyc": "x"})
    assert load_harbor_task(first.path).digest == first.digest
    write(tmp_path / "a-task", {"tests/data.txt": "x"})
    assert load_harbor_task(first.path).digest != first.digest


HARBOR_IGNORES = "__pycache__/\n*.pyc\n.DS_Store\n*.swp\n*.swo\n*~\n"
NAMES = st.lists(
    st.sampled_from(["a", ".", "\n", "~", ".pyc", ".swp", ".swo", "__pycache__", ".DS_Store"]),
    min_size=1,
    max_size=4,
).map("".join)


@given(st.lists(NAMES.filter(lambda name: name.strip(".")), min_size=1, max_size=4))
def test_without_a_gitignore_the_digest_ignores_files_of_the_patterns_of_harbor(
    parts: list[str],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        files = {**GOOD["minimal"], "/".join(["tests", *parts]): "x"}
        first = load(Path(name), files)
        write(first.path, {".gitignore": HARBOR_IGNORES})
        assert load_harbor_task(first.path).digest == first.digest


def test_the_digest_of_an_old_task_covers_all_of_it(tmp_path: Path) -> None:
    first = load(tmp_path, TERMINAL_BENCH)
    write(tmp_path / "a-task", {"data.txt": "x"})
    assert load_harbor_task(first.path).digest != first.digest


# --- hostile bytes


def refusal(tmp_path: Path, files: dict[str, str]) -> str:
    with pytest.raises(TaskError) as caught:
        load(tmp_path, files)
    return str(caught.value)


def test_a_key_of_thousands_of_names_is_refused(tmp_path: Path) -> None:
    assert "dotted key" in refusal(tmp_path, task(".".join(["a"] * 60_000) + " = 1\n"))


def test_deep_arrays_are_refused(tmp_path: Path) -> None:
    assert "nested" in refusal(tmp_path, task("a = " + "[" * 50_000))


def test_long_words_cost_nothing(tmp_path: Path) -> None:
    assert "not TOML" in refusal(tmp_path, task("a" * 250_000))


def test_files_larger_than_their_caps_are_refused(tmp_path: Path) -> None:
    assert "larger than" in refusal(tmp_path / "1", task("#" * 300_000))
    assert "larger than" in refusal(
        tmp_path / "2", task() | {"instruction.md": "x" * (1024 * 1024 + 1)}
    )


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "t", task())
    (root / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match="cannot be read"):
        load_harbor_task(root)


def test_many_wrong_values_give_a_short_error(tmp_path: Path) -> None:
    told = refusal(
        tmp_path, task("[environment.env]\n" + "".join(f"a{i} = 1\n" for i in range(500)))
    )
    assert told.count("\n") < 25


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: v}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [BOMB, MERGES], ids=["aliases", "merges"])
def test_a_few_aliases_cannot_grow_into_gigabytes(tmp_path: Path, text: str) -> None:
    files = task() | {"environment/docker-compose.yaml": text + "services: {main: {}}\n"}
    assert "values" in refusal(tmp_path, files)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "[" * 20_000,
        "services: !!python/object/apply:os.system [id]\n",
        "services: {a b: {}}\n",
        "services: {a: 1}\n",
        "services: []\n",
        "- x\n",
        "services: {? [x] : y}\n",
        "a: 2024-99-99\n",
        "\x00",
        "a: *b\n",
        "",
    ],
)
def test_compose_files_without_plain_services_are_refused(tmp_path: Path, text: str) -> None:
    assert "docker-compose.yaml" in refusal(
        tmp_path, task() | {"environment/docker-compose.yaml": text}
    )


@settings(max_examples=150)
@given(text=st.text(alphabet="ab:&*[]{}<-!|>'\"\n ,?#%@", max_size=60))
def test_no_yaml_brings_the_reader_down(text: str, tmp_path_factory: pytest.TempPathFactory):
    root = write(tmp_path_factory.mktemp("yaml"), task())
    (root / "environment" / "docker-compose.yaml").write_text(text)
    with suppress(TaskError):
        load_harbor_task(root)


@settings(max_examples=150)
@given(text=st.text(alphabet="ab.=[]{}'\"\n ,#1-_", max_size=60))
def test_no_toml_brings_the_reader_down(text: str, tmp_path_factory: pytest.TempPathFactory):
    root = write(tmp_path_factory.mktemp("toml"), task())
    (root / "task.toml").write_text(text)
    with suppress(TaskError):
        load_harbor_task(root)


def test_a_config_that_is_a_link_out_of_the_task_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"secret.toml": ""})
    files = without(task(), "task.toml") | {"task.toml": "-> ../secret.toml"}
    assert "leaves the task" in refusal(tmp_path, files)


def test_named_pipes_among_the_tests_are_refused_and_never_opened(tmp_path: Path) -> None:
    root = write(tmp_path / "t", task())
    os.mkfifo(root / "tests" / "pipe")
    with pytest.raises(TaskError, match="neither"):
        load_harbor_task(root)


def test_named_pipes_in_the_build_context_are_not_opened(tmp_path: Path) -> None:
    root = write(tmp_path / "t", task())
    os.mkfifo(root / "environment" / "pipe")
    assert load_harbor_task(root).dockerfile


def test_a_link_that_points_at_itself_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path, task() | {"tests/loop": "-> loop"})


def test_links_of_the_build_context_may_point_anywhere_and_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "host.txt").write_text("secret")
    files = task() | {"environment/etc/zone": f"-> {tmp_path / 'host.txt'}"}
    found = load(tmp_path, files)
    (tmp_path / "host.txt").write_text("changed")
    assert load_harbor_task(found.path).digest == found.digest


def test_ignore_patterns_that_take_forever_are_refused(tmp_path: Path) -> None:
    files = task() | {".gitignore": "*a" * 40 + "b\n", "tests/" + "a" * 200: ""}
    assert ".gitignore:1" in refusal(tmp_path, files)
