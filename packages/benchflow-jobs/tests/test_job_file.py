"""A wrong `job.toml`: every problem at once, each with its place, value, reason and hint."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.scaffold import write_task
from benchflow_jobs.planning import (
    Dataset,
    JobConfig,
    JobConfigError,
    JobSource,
    Problem,
    parse_job,
    parse_override,
    plan_job,
    read_job,
    resolve_job,
)
from benchflow_jobs.planning.problems import TomlLines
from hypothesis import given, settings
from hypothesis import strategies as st

WHOLE = """
[job]
name = "compare"
id = "models"
jobs_dir = "runs"

[dataset]
paths = ["tasks"]
limit = 5
include = ["t*"]
exclude = ["*-slow"]

[design]
kind = "paired"
replications = 3
seed = 7
schedule = "parallel-independent"
baseline = "small"

[run]
timeout_multiplier = 2
image = "debian:12"
bindings = { depth = 1 }

[run.agent]
name = "policy"

[run.model]
base_url = "http://127.0.0.1:8000/v1"

[[variants]]
id = "small"

[[variants]]
id = "big"
agent.model = "big"
image = "debian:13"

[tasks."t-1"]
agent_timeout_sec = 60

[concurrency]
slots = 8
builds = 2
memory_mb = 4096
endpoints = { "http://127.0.0.1:8000/v1" = 16 }

[budget]
cost_usd = 10
tokens = 1000000
wall_sec = 3600
rollout_sec = 600

[retry]
retries = 1
max_attempts = 4
pauses_sec = [1, 2.5]
boundaries = ["sandbox"]

[breaker]
variant_after = 3
job_after = 6

[pruning]
consecutive_failures = 4

[learner]
max_mb = 5

[evidence]
store = true

[backend]
name = "ray"
options.address = "HEAD:6379"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text))
    return path


def problems(path: Path, text: str) -> list[Problem]:
    with pytest.raises(JobConfigError) as caught:
        read_job(write(path, text))
    return list(caught.value.problems)


def test_every_table_is_read(tmp_path: Path) -> None:
    config = read_job(write(tmp_path / "job.toml", WHOLE))
    assert set(JobConfig.model_fields) - config.model_fields_set == {"sweep"}
    assert config.design.replications == 3
    assert config.run.tables["agent"] == {"name": "policy"}
    assert [each.id for each in config.variants] == ["small", "big"]
    assert config.variants[1].tables == {"agent": {"model": "big"}}


def test_yaml_means_the_same(tmp_path: Path) -> None:
    text = """
        dataset: {paths: [tasks]}
        run: {agent: {name: nop}}
        variants: [{id: a}, {id: b, agent: {model: m}}]
        """
    toml = """
        dataset.paths = ["tasks"]
        run.agent.name = "nop"
        variants = [{id = "a"}, {id = "b", agent.model = "m"}]
        """
    assert read_job(write(tmp_path / "a.yaml", text)) == read_job(write(tmp_path / "a.toml", toml))


DATASET = '[dataset]\npaths = ["tasks"]\n'


@pytest.mark.parametrize(
    ("text", "line", "key", "reason", "hint"),
    [
        ("[jbo]", 3, "jbo", "unknown key", "did you mean 'job'?"),
        ("[job]\nnme = 'x'", 4, "job.nme", "unknown key", "did you mean 'name'?"),
        ("[job]\nname = 'a/b'", 4, "job.name", "is not one name of letters", ""),
        (f"[job]\nname = '{'n' * 201}'", 4, "job.name", "longer than 200 bytes", ""),
        ("[job]\nid = ''", 4, "job.id", "is not one name of letters", ""),
        ("[job]\njobs_dir = 5", 4, "job.jobs_dir", "a valid string", ""),
        ("[design]\nkind = 'paird'", 4, "design.kind", "it is not 'paired'", "mean 'paired'?"),
        ("[design]\nreplications = 0", 4, "design.replications", "greater than or equal", ""),
        ("[design]\nreplications = '5'", 4, "design.replications", "a valid integer", ""),
        ("[design]\nreplications = true", 4, "design.replications", "a valid integer", ""),
        ("[design]\nseed = -1", 4, "design.seed", "greater than or equal to 0", ""),
        (
            "[design]\nschedule = 'sequential-shared'\n[run.branch]\nkind = 'group'",
            4,
            "design.schedule",
            "variant 'default' forks, and each branch would leave another learner store",
            "delete the table 'branch'",
        ),
        (
            "[design]\nschedule = 'sequential-shared'\n[backend]\nname = 'ray'",
            4,
            "design.schedule",
            "backend 'ray' has no learner store",
            "delete the table [backend]",
        ),
        ("[design]\nbaseline = 'defalt'", 4, "design.baseline", "no such variant", "'default'?"),
        ("[design]\nkind = 'sweep'", 4, "design.kind", "there is no [sweep]", "add [sweep]"),
        (
            "[design]\nkind = 'regression'\n[[variants]]\nid = 'a'\n[[variants]]\nid = 'b'",
            4,
            "design.kind",
            "a regression has one variant, and the job has 2",
            "'paired'",
        ),
        ("[run]\nagnt.name = 'x'", 4, "run.agnt", "unknown key", "did you mean 'agent'?"),
        ("[run.agent]\nnam = 'x'", 4, "run.agent.nam", "unknown key", "did you mean 'name'?"),
        ("[run]\nagent = 'x'", 4, "run.agent", "it is a table", "mean 'agent.name'?"),
        ("[run]\nimage = '/x'", 4, "run.image", "should match", ""),
        ("[run.bindings]\nA = 1", 4, "run.bindings.A", "should match", ""),
        ("[run.bindings]\na = [1]", 4, "run.bindings.a", "not a text, a finite number", ""),
        ("[run.bindings]\na = inf", 4, "run.bindings.a", "not a text, a finite number", ""),
        ("[run.branch]\nn = 3", 3, "run.branch", "it has no 'kind'", ""),
        ("[[variants]]\nimage = 'x'", 3, "variants[0].id", "it is missing", "add 'id'"),
        ("[[variants]]\nid = 'a#b'", 4, "variants[0].id", "should match", ""),
        (
            "[[variants]]\nid = 'a'\n[[variants]]\nid = 'a'",
            6,
            "variants[1].id",
            "it is used twice",
            "rename one",
        ),
        (
            "[[variants]]\nid = 'a'\n[[variants]]\nid = 'b'\n[variants.agent]\nmodl = 'x'",
            8,
            "variants[1].agent.modl",
            "unknown key",
            "did you mean 'model'?",
        ),
        (
            "[[variants]]\nid = 'a'\nforward_env = ['X']",
            5,
            "variants[0].forward_env",
            "tasks are read with it once for all variants",
            "set it in [run]",
        ),
        ("[sweep]\nimage = ['x']", 3, "sweep", "for design.kind = 'sweep'", "set design.kind"),
        ("[tasks.t]\nimge = 'x'", 4, "tasks.t.imge", "unknown key", "did you mean 'image'?"),
        ("[tasks.t]\nagent_timeout_sec = 0", 4, "tasks.t.agent_timeout_sec", "greater", ""),
        ("[tasks.t]\nenv = { A = 1 }", 4, "tasks.t.env.A", "a valid string", ""),
        ("[concurrency]\nslots = 0", 4, "concurrency.slots", "greater than or equal to 1", ""),
        ("[concurrency]\nbuilds = 0", 4, "concurrency.builds", "greater than or equal to 1", ""),
        (
            "[concurrency.endpoints]\n'http://x' = 3",
            4,
            "concurrency.endpoints.http://x",
            "no variant has this endpoint",
            "as model.base_url has it",
        ),
        (
            "[concurrency]\nmemory_mb = 100\n[run.limits]\nmemory_mb = 200",
            4,
            "concurrency.memory_mb",
            "variant 'default' needs 200 MB",
            "raise it",
        ),
        (
            "[run.branch]\nkind = 'group'\nn = 9",
            5,
            "run.branch.n",
            "it is more than branch.budget.max_children, 8",
            "",
        ),
        ("[budget]\ncost_usd = 0", 4, "budget.cost_usd", "greater than 0", ""),
        ("[budget]\ncost_usd = inf", 4, "budget.cost_usd", "a finite number", ""),
        ("[budget]\ntokens = 1.5", 4, "budget.tokens", "a valid integer", ""),
        ("[budget]\nwall_sec = -1", 4, "budget.wall_sec", "greater than 0", ""),
        ("[budget]\nrollout_sec = 0", 4, "budget.rollout_sec", "greater than 0", ""),
        ("[retry]\nretries = -1", 4, "retry.retries", "greater than or equal to 0", ""),
        ("[retry]\nmax_attempts = 0", 4, "retry.max_attempts", "greater than or equal to 1", ""),
        ("[retry]\npauses_sec = [-1]", 4, "retry.pauses_sec[0]", "greater than or equal", ""),
        ("[retry]\nboundaries = ['sandbx']", 4, "retry.boundaries[0]", "'sandbox'", "'sandbox'?"),
        ("[breaker]\nvariant_after = 0", 4, "breaker.variant_after", "greater", ""),
        ("[breaker]\njob_after = 0", 4, "breaker.job_after", "greater", ""),
        ("[pruning]\nconsecutive_failures = 0", 4, "pruning.consecutive_failures", "greater", ""),
    ],
)
def test_a_wrong_key_is_named(
    tmp_path: Path, text: str, line: int, key: str, reason: str, hint: str
) -> None:
    path = tmp_path / "job.toml"
    (problem,) = problems(path, DATASET + text)
    assert (problem.where, problem.dotted) == (f"{path}:{line}", key)
    assert reason in problem.reason
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("axis", "reason", "hint"),
    [
        ('"agnt.model" = ["x"]', "unknown key", "did you mean 'agent'?"),
        ('"agent.modl" = ["x"]', "unknown key", "did you mean 'model'?"),
        ('"agent.model" = ["x", "x"]', "it has a value twice", "leave one out"),
        ('"agent.model" = []', "at least 1 item", ""),
        ('"agent.model" = "x"', "a valid array", ""),
        ('"agent.env.TOKEN" = ["x"]', "the value may be a secret", "sweep over bindings.NAME"),
        ('"model.base_url" = ["ftp://x"]', "it is not an http(s) URL", ""),
        ('image = ["/x"]', "should match", ""),
        ('"bindings.A" = [1]', "should match", ""),
        ('"foreign_tasks.force_build" = [true]', "once for all variants", "set it in [run]"),
    ],
)
def test_a_wrong_axis_of_a_sweep_is_named(
    tmp_path: Path, axis: str, reason: str, hint: str
) -> None:
    text = f"{DATASET}[design]\nkind = 'sweep'\n[sweep]\n{axis}"
    (problem, *more) = problems(tmp_path / "job.toml", text)
    assert not more
    axis_key = axis.partition(" =")[0].strip('"')
    assert problem.dotted == f"sweep.{axis_key}"
    assert problem.where == f"{tmp_path / 'job.toml'}:6"
    assert reason in problem.reason
    assert hint in problem.hint


def test_values_of_a_sweep_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    text = (
        DATASET
        + """
[design]
kind = "sweep"
[run]
branch.kind = "group"
[sweep]
branch.kind = ["value", "group"]
branch.at = [0, 1]
"""
    )
    (problem,) = problems(tmp_path / "job.toml", text)
    assert problem.dotted == "variants.kind=value,at=0.branch.at"
    assert "unknown key" in problem.reason


def test_a_sweep_that_is_too_large_is_refused(tmp_path: Path) -> None:
    axes = "\n".join(f'"bindings.a{n}" = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]' for n in range(5))
    text = f"{DATASET}[design]\nkind = 'sweep'\n[sweep]\n{axes}"
    (problem,) = problems(tmp_path / "job.toml", text)
    assert problem.reason == "it has 100000 points, more than 65535"


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = """
        [job]
        nme = "x"

        [dataset]
        pathss = ["tasks"]

        [design]
        kind = "paird"

        [run]
        agent.nme = "nop"

        [[variants]]
        id = "a"
        agent.idle_timeout_sec = -1

        [[variants]]
        id = "a"

        [concurrency]
        slots = 0
        """
    path = tmp_path / "job.toml"
    with pytest.raises(JobConfigError) as caught:
        read_job(write(path, text))
    kinds = "it is not 'paired', 'unpaired', 'sweep' or 'regression'"
    assert str(caught.value).splitlines() == [
        "8 problems in the job",
        f"{path}:3: job.nme: unknown key (did you mean 'name'?)",
        f"{path}:5: dataset.paths: it is missing (name a directory of tasks)",
        f"{path}:6: dataset.pathss: unknown key (did you mean 'paths'?)",
        f"{path}:9: design.kind = 'paird': {kinds} (did you mean 'paired'?)",
        f"{path}:12: run.agent.nme: unknown key (did you mean 'name'?)",
        f"{path}:16: variants[0].agent.idle_timeout_sec = -1: it should be greater than 0",
        f"{path}:19: variants[1].id = 'a': it is used twice (rename one)",
        f"{path}:22: concurrency.slots = 0: it should be greater than or equal to 1",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places(table: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items: list[tuple[str | int, object]] = []
    if isinstance(table, dict):
        items = list(cast("dict[str | int, object]", table).items())
    elif isinstance(table, list):
        items = list(enumerate(cast("list[object]", table)))
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


@settings(max_examples=300)
@given(st.data())
def test_a_wrong_value_at_any_place_is_a_problem_and_nothing_else(data: st.DataObject) -> None:
    tables = tomllib.loads(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(list(places(tables))))
        table: Any = tables
        for key in above:
            table = table[key]
        name = data.draw(st.sampled_from([last, "new", "agent"]))
        table[last if isinstance(table, list) else name] = data.draw(JSON)
    with suppress(JobConfigError):
        config = parse_job(JobSource(tables, "job.toml", TomlLines(WHOLE)))
        resolve_job(config, Dataset((), left_out=frozenset({"t-1"})))


def test_one_problem_has_its_hint_and_place(tmp_path: Path) -> None:
    path = write(tmp_path / "job.toml", DATASET + "[design]\nkind = 'unpared'")
    with pytest.raises(JobConfigError) as caught:
        read_job(path)
    assert caught.value.where == f"{path}:4"
    assert caught.value.hint == "did you mean 'unpaired'?"
    assert str(caught.value).startswith(f"{path}:4: design.kind = 'unpared': it is not")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    text = DATASET + "[run.agent.env]\nTOKEN = ['s3cret']"
    (problem,) = problems(tmp_path / "job.toml", text)
    assert problem.dotted == "run.agent.env.TOKEN"
    assert "s3cret" not in str(problem)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("job.toml", "a = ", r"job\.toml:1: not TOML"),
        ("job.yaml", "a: [", r"job\.yaml: not YAML"),
        ("job.yaml", "- a", r"job\.yaml: not a table"),
        ("job.yaml", "2026-01-01: 5", r"job\.yaml: not YAML"),
        ("job.yaml", "a: &x {b: *x}", r"job\.yaml: not YAML"),
        ("job.txt", "", "not a TOML or YAML file"),
        ("absent.toml", None, "cannot read .*: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        read_job(tmp_path / name)


def test_overrides_replace_the_values_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "job.toml", WHOLE + '\n[[variants]]\nid = "gpt-4.1"\n')
    config = read_job(
        path,
        {
            "design.seed": 1,
            "run.agent.name": "nop",
            'variants."gpt-4.1".agent.model': "m",
            "budget": {"tokens": 5},
            'tasks."org/t.1".image': "x",
        },
    )
    assert config.design.seed == 1
    assert config.run.tables["agent"] == {"name": "nop"}
    assert config.variants[2].tables == {"agent": {"model": "m"}}
    assert config.budget.tokens == 5
    assert config.budget.cost_usd is None
    assert config.tasks["org/t.1"].image == "x"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "override : unknown key"),
        ("design.kidn", "override design.kidn: design.kidn: unknown key"),
        ("variants.bg.image", "override variants.bg.image: variants: there is no such table"),
        ("design.kind.x", r"override design.kind.x: design.kind: there is no such table"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, key: str, says: str) -> None:
    with pytest.raises(JobConfigError, match=says):
        read_job(write(tmp_path / "job.toml", WHOLE), {key: "x"})


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a.b=5", ("a.b", 5)),
        ("a.b=[1, 2]", ("a.b", [1, 2])),
        ("a.b = x y", ("a.b", "x y")),
        ('a="5"', ("a", "5")),
        ("a=b=c", ("a", "b=c")),
    ],
)
def test_an_override_is_toml_or_a_text(text: str, pair: tuple[str, object]) -> None:
    assert parse_override(text) == pair


@pytest.mark.parametrize("text", ["a", "=5", " =5"])
def test_an_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_override(text)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        write_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


def dataset(**tables: object) -> JobConfig:
    return JobConfig.model_validate(tables)


def test_a_list_of_tasks_has_values_for_each(tasks: Path, tmp_path: Path) -> None:
    rows = '{"path": "tasks/two", "image": "a", "env": {"A": "1"}}\n\n{"path": "tasks/one"}\n'
    (tmp_path / "list.jsonl").write_text(rows)
    plan = plan_job(
        dataset(
            dataset={"paths": (str(tmp_path / "list.jsonl"),)},
            tasks={"two": {"env": {"B": "2"}}},
        )
    )
    assert [task.id for task in plan.tasks] == ["two", "one"]
    assert plan.tasks[0].path == tasks / "two"
    assert plan.tasks[0].override.env == {"A": "1", "B": "2"}
    assert (plan.image(0).image, plan.image(0).origin) == ("a", "dataset row")


def test_every_wrong_line_of_a_list_is_named(tasks: Path, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(
        '{"path": "tasks/one", "imge": "x"}\n{"pth": 1}\n{\n5\n{"path": "absent"}\n'
        '{"path": "tasks/two", "id": "three"}\n{"path": "tasks/one"}\n{"path": "tasks/one"}\n'
    )
    with pytest.raises(JobConfigError) as caught:
        plan_job(dataset(dataset={"paths": (str(path),)}))
    found = [(p.where, p.dotted) for p in caught.value.problems]
    assert found == [
        (f"{path}:1", "imge"),
        (f"{path}:2", "path"),
        (f"{path}:2", "pth"),
        (f"{path}:3", ""),
        (f"{path}:4", ""),
        (f"{path}:5", "path"),
        (f"{path}:6", "id"),
        ("", "dataset.paths[0]"),
    ]
    assert caught.value.problems[0].hint == "did you mean 'image'?"


@pytest.mark.parametrize(
    ("table", "key", "says"),
    [
        ({"paths": ("absent",)}, "dataset.paths[0]", "'absent' is not a directory"),
        ({"paths": ("absent.jsonl",)}, "dataset.paths[0]", "cannot be read: No such file"),
        ({"paths": ("TASKS", "TASKS/one")}, "dataset.paths[1]", "task 'one' is there twice"),
        ({"paths": ("TASKS",), "include": ("x*",)}, "dataset", "there is no task to run"),
        ({"paths": ("TASKS",), "name": "d"}, "dataset.paths[0]", "registry.json"),
        ({"paths": ("TASKS", "x"), "name": "d"}, "dataset.name", "one registry.json"),
        ({}, "dataset.paths", "it is missing"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_named(
    tasks: Path, table: dict[str, object], key: str, says: str
) -> None:
    if "paths" in table:
        paths = table["paths"]
        assert isinstance(paths, tuple)
        table = {**table, "paths": tuple(str(p).replace("TASKS", str(tasks)) for p in paths)}
    with pytest.raises(JobConfigError, match=says) as caught:
        plan_job(dataset(dataset=table))
    assert key in [problem.dotted for problem in caught.value.problems]


def test_globs_and_the_limit_choose_tasks(tasks: Path) -> None:
    table = {"paths": (str(tasks),), "include": ("t*", "one"), "exclude": ("two",), "limit": 1}
    plan = plan_job(dataset(dataset=table, tasks={"two": {"image": "a"}}))
    assert [task.id for task in plan.tasks] == ["one"]


def test_an_override_of_an_unknown_task_is_refused(tasks: Path) -> None:
    config = dataset(dataset={"paths": (str(tasks),)}, tasks={"thre": {"image": "a"}})
    with pytest.raises(JobConfigError, match="the dataset has no such task") as caught:
        plan_job(config)
    assert caught.value.hint == "did you mean 'three'?"


def test_only_a_yaml_file_needs_the_yaml_parser() -> None:
    code = "import sys, benchflow_jobs.planning; print('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
