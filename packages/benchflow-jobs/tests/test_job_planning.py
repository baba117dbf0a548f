"""A plan: the same input gives the same slots, and `extend` keeps their places."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import ImageRecipe, StoreError, Task, TaskConfig, TaskParts
from benchflow_engine.flags import run_config
from benchflow_engine.secrets import with_secrets
from benchflow_jobs import JobOptions
from benchflow_jobs.planning import (
    Dataset,
    JobConfig,
    JobConfigError,
    ResolvedJob,
    TaskOverride,
    VariantConfig,
    config_of,
    difference,
    extend,
    is_own_plan,
    load_plan,
    plan_revision,
    resolve_job,
    write_plan,
)
from benchflow_jobs.planning.variants import laid_over
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ("paired", "unpaired")


def tasks(count: int, first: int = 0) -> list[Task]:
    return [
        Task(
            id=f"t{number}",
            path=Path("/tasks") / f"t{number}",
            instruction="Do it.",
            config=TaskConfig(name=f"t{number}"),
            digest=f"sha256:{number}",
        )
        for number in range(first, first + count)
    ]


def job(
    variants: int | Sequence[Mapping[str, Any]] = 1,
    *,
    kind: str = "paired",
    replications: int = 1,
    seed: int | None = None,
    **tables: Any,
) -> JobConfig:
    if isinstance(variants, int):
        variants = [{"id": f"v{number}"} for number in range(variants)]
    return JobConfig.model_validate(
        {
            "design": {"kind": kind, "replications": replications, "seed": seed},
            "variants": tuple(variants),
            **tables,
        }
    )


def plan(config: JobConfig, found: Sequence[Task]) -> ResolvedJob:
    return resolve_job(config, Dataset(tuple(found)))


@st.composite
def plans(draw: st.DrawFn) -> ResolvedJob:
    config = job(
        draw(st.integers(1, 4)),
        kind=draw(st.sampled_from(KINDS)),
        replications=draw(st.integers(1, 3)),
        seed=draw(st.none() | st.integers(0, 9)),
    )
    return plan(config, tasks(draw(st.integers(1, 5))))


@given(plans())
def test_the_same_input_gives_the_same_plan(made: ResolvedJob) -> None:
    found = [t for t in tasks(5) if t.id in {task.id for task in made.tasks}]
    again = plan(made.config, found)
    assert list(again.slots) == list(made.slots)
    assert again.digest == made.digest
    slots = range(len(made.slots))
    assert [again.seed(i) for i in slots] == [made.seed(i) for i in slots]
    # The order of the dataset does not count if there is a seed.
    if made.config.design.seed is not None:
        assert plan(made.config, found[::-1]).digest == made.digest


@given(plans())
def test_every_slot_is_there_once(made: ResolvedJob) -> None:
    design = made.config.design
    expected = {
        (v.id, t.id, r)
        for v in made.variants
        for t in made.tasks
        for r in range(design.replications)
    }
    slots = list(made.slots)
    assert {(s.variant, s.task, s.repeat) for s in slots} == expected
    assert len(slots) == len(expected) == len({slot.name for slot in slots})


@given(plans())
def test_a_paired_job_that_stops_has_complete_pairs(made: ResolvedJob) -> None:
    if made.config.design.kind != "paired":
        return
    width = len(made.variants)
    for start in range(0, len(made.slots), width):
        pair = list(made.slots[start : start + width])
        assert {(slot.task, slot.repeat) for slot in pair} == {(pair[0].task, pair[0].repeat)}
        assert len({made.seed(start + place) for place in range(width)}) == 1


def test_a_rollout_has_the_seed_of_its_slot_if_the_runs_have_one() -> None:
    made = plan(job(1, replications=3), tasks(2))
    assert {made.run_config(i).seed for i in range(6)} == {None}
    seeded = plan(job(1, replications=3, run={"seed": 4}), tasks(2))
    seeds = [seeded.run_config(i).seed for i in range(6)]
    assert seeds == [seeded.seed(i) for i in range(6)]
    assert len(set(seeds)) == 6
    assert seeded.run_config(0).agent.env["BENCHFLOW_SEED"] == str(seeds[0])


def test_seeds_differ_by_task_replication_and_job_and_in_unpaired_jobs_by_variant() -> None:
    made = plan(job(2, replications=3), tasks(3))
    seeds = {made.seed(i) for i in range(len(made.slots))}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**31 for seed in seeds)
    other = plan(job(2, replications=3, seed=1), tasks(3))
    assert not seeds & {other.seed(i) for i in range(len(other.slots))}
    unpaired = plan(job(2, kind="unpaired", replications=3), tasks(3))
    assert len({unpaired.seed(i) for i in range(len(unpaired.slots))}) == 18


def test_a_seed_shuffles_the_tasks() -> None:
    orders = {tuple(task.id for task in plan(job(seed=seed), tasks(5)).tasks) for seed in range(20)}
    assert len(orders) > 10
    assert [task.id for task in plan(job(), tasks(5)).tasks] == ["t0", "t1", "t2", "t3", "t4"]


@given(
    plans(),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_extend_keeps_every_slot_and_adds_the_missing_ones(
    made: ResolvedJob, repeats: int, more_tasks: int, more_variants: int
) -> None:
    replications = made.config.design.replications + repeats
    new_tasks = tasks(more_tasks, first=50)
    new_variants = [VariantConfig(id=f"new{number}") for number in range(more_variants)]
    longer = extend(made, replications=replications, tasks=new_tasks, variants=new_variants)
    assert list(longer.slots)[: len(made.slots)] == list(made.slots)
    assert len({slot.name for slot in longer.slots}) == len(longer.slots)
    count = (len(made.variants) + more_variants) * (len(made.tasks) + more_tasks) * replications
    assert len(longer.slots) == count
    assert [longer.seed(i) for i in range(len(made.slots))] == [
        made.seed(i) for i in range(len(made.slots))
    ]
    grew = count > len(made.slots)
    assert longer.revision == made.revision + grew
    assert (longer.digest != made.digest) == grew
    assert longer.revisions[: made.revision] == made.revisions
    # A repeated call adds nothing.
    again = extend(longer, replications=replications, tasks=new_tasks, variants=new_variants)
    assert again is longer


@settings(max_examples=20)
@given(plans(), st.integers(0, 2), st.integers(0, 1))
def test_a_written_plan_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, made: ResolvedJob, repeats: int, variants: int
) -> None:
    directory = tmp_path_factory.mktemp("job")
    longer = extend(
        made,
        replications=made.config.design.replications + repeats,
        variants=[VariantConfig(id=f"n{number}") for number in range(variants)],
    )
    for each in (made, longer):
        write_plan(directory, each)
        read = load_plan(directory)
        assert read == each
        assert is_own_plan(directory)
        assert (directory / "job.digest").read_text() == each.digest + "\n"


def test_a_crash_between_the_files_leaves_the_plan_of_before(tmp_path: Path) -> None:
    made = plan(job(2), tasks(2))
    write_plan(tmp_path, made)
    before = (tmp_path / "job.json").read_bytes()
    write_plan(tmp_path, extend(made, replications=3, tasks=tasks(1, 9)))
    (tmp_path / "job.json").write_bytes(before)
    assert load_plan(tmp_path) == made


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("job.json", "{"),
        ("job.json", "[]"),
        ("job.json", '{"schema_version": "2.0"}'),
        ("plan.json", "{"),
        ("plan.json", "{}"),
        ("plan.json", None),
    ],
)
def test_a_damaged_plan_is_an_error_of_the_store(
    tmp_path: Path, file: str, text: str | None
) -> None:
    write_plan(tmp_path, plan(job(2), tasks(2)))
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    with pytest.raises(StoreError, match=r"\.json: "):
        load_plan(tmp_path)


def test_a_changed_plan_is_found_and_is_not_trusted(tmp_path: Path) -> None:
    write_plan(tmp_path, plan(job(2), tasks(2)))
    path = tmp_path / "plan.json"
    schedule = json.loads(path.read_text())
    schedule["slots"]["task"].reverse()
    path.write_text(json.dumps(schedule))
    with pytest.raises(StoreError, match="the digest does not fit"):
        load_plan(tmp_path)
    content = json.loads((tmp_path / "job.json").read_text())
    content["config"]["run"] = {"tables": {"agent": {"import_path": "evil:agent"}}}
    (tmp_path / "job.json").write_text(json.dumps(content))
    assert not is_own_plan(tmp_path)
    with pytest.raises(StoreError, match=r"with other settings: v0\.run\.agent\.import_path"):
        load_plan(tmp_path)


def test_no_plan_is_not_an_error(tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    assert not is_own_plan(tmp_path)


def test_secrets_are_not_written_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"agent": {"name": "nop", "env": {"TOKEN": "s3cret-of-all"}}}
    variant = {"id": "b", "agent": {"env": {"OTHER": "s3cret-of-b"}}}
    made = plan(job(run=run, variants=({"id": "a"}, variant)), tasks(1))
    write_plan(tmp_path, made)
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "s3cret" not in written
    read = load_plan(tmp_path)
    assert read is not None
    assert read.digest == made.digest
    monkeypatch.setenv("TOKEN", "s3cret-of-all")
    monkeypatch.setenv("OTHER", "s3cret-of-b")
    assert with_secrets(read.run_config(1)) == made.run_config(1)


def test_the_digest_covers_what_results_depend_on() -> None:
    base = plan(job(2), tasks(2))
    same = job(2, job={"name": "n"}, concurrency={"slots": 9}, budget={"tokens": 1})
    assert plan(same, tasks(2)).digest == base.digest
    others = [
        plan(job(2, seed=1), tasks(2)),
        plan(job(2, kind="unpaired"), tasks(2)),
        plan(job(3), tasks(2)),
        plan(job(2), tasks(3)),
        plan(job(2, replications=2), tasks(2)),
        plan(job(2, run={"agent": {"name": "nop"}}), tasks(2)),
        plan(job(2, run={"image": "a"}), tasks(2)),
        plan(job(2, run={"bindings": {"a": 1}}), tasks(2)),
        plan(job(2, tasks={"t1": {"image": "a"}}), tasks(2)),
    ]
    digests = {each.digest for each in others}
    assert len(digests) == len(others)
    assert base.digest not in digests


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_the_image_of_the_narrowest_place_counts(
    in_run: bool, in_variant: bool, in_row: bool, in_task: bool
) -> None:
    config = job(
        run={"image": "of-job"} if in_run else {},
        variants=({"id": "v", **({"image": "of-variant"} if in_variant else {})},),
        tasks={"t0": {"image": "of-task"}} if in_task else {},
    )
    rows = {"t0": TaskOverride(image="of-row")} if in_row else {}
    made = resolve_job(config, Dataset(tuple(tasks(2)), rows=rows))
    of_variant = ("of-variant", "variants.v.image")
    of_job = ("of-job", "run.image") if in_run else (None, "task")
    below = of_variant if in_variant else of_job
    above = ("of-task", "tasks.t0.image") if in_task else ("of-row", "dataset row")
    chosen = [(choice.image, choice.origin) for choice in (made.image(0), made.image(1))]
    assert chosen == [above if in_task or in_row else below, below]


def test_the_effective_task_has_the_values_of_the_job() -> None:
    recipe = ImageRecipe(context=Path("/x"))
    (task,) = tasks(1)
    task = task.model_copy(update={"own_parts": TaskParts(recipe=recipe)})
    override = {
        "env": {"A": "1"},
        "agent_timeout_sec": 5,
        "verifier_timeout_sec": 6,
        "image": "other:1",
    }
    made = plan(job(tasks={"t0": override}), [task])
    changed = made.effective_task(0, task)
    assert changed.config.environment.image == "other:1"
    assert changed.config.environment.env == {"A": "1"}
    assert changed.parts.recipe is None
    assert changed.config.agent.timeout_sec == 5
    assert changed.config.verifier.timeout_sec == 6
    assert changed.digest == task.digest
    plain = plan(job(), [task])
    assert plain.effective_task(0, task) == task


def test_variants_lie_over_the_run() -> None:
    made = plan(
        job(
            run={"agent": {"import_path": "m:a", "model": "x"}, "bindings": {"depth": 1}},
            variants=(
                {"id": "a"},
                {"id": "b", "agent": {"name": "codex"}, "bindings": {"depth": 2, "fast": True}},
                {"id": "c", "branch": {"kind": "group", "n": 3}},
            ),
        ),
        tasks(1),
    )
    a, b, c = (made.run_config(index) for index in range(3))
    assert (a.agent.label, b.agent.label) == ("m:a", "codex-acp")
    assert a.agent.model == b.agent.model == "x"
    assert a.agent.env["BENCHFLOW_BINDING_DEPTH"] == "1"
    assert b.agent.env["BENCHFLOW_BINDING_DEPTH"] == "2"
    assert b.agent.env["BENCHFLOW_BINDING_FAST"] == "true"
    assert a.agent.env["BENCHFLOW_SEED"] == b.agent.env["BENCHFLOW_SEED"] == str(made.seed(0))
    assert c.branch is not None
    assert a.branch is None
    # Only what is given is set: the deadlines of the kernel depend on it.
    assert "deadlines" not in a.model_fields_set


def test_only_the_tables_of_parts_and_policies_are_replaced() -> None:
    base = {
        "agent": {"env": {"kind": "a", "import_path": "x"}, "import_path": "m:a"},
        "sandbox": {"import_path": "m:s", "pull": "never"},
        "branch": {"kind": "group", "n": 3},
    }
    over = {
        "agent": {"env": {"kind": "b", "name": "y"}},
        "sandbox": {"provider": "docker"},
        "branch": {"kind": "value"},
    }
    assert laid_over(base, over) == {
        "agent": {
            "env": {"kind": "b", "import_path": "x", "name": "y"},
            "import_path": "m:a",
        },
        "sandbox": {"provider": "docker", "pull": "never"},
        "branch": {"kind": "value"},
    }
    assert laid_over(base, {"branch": {"n": 4}})["branch"] == {"kind": "group", "n": 4}


def test_a_sweep_makes_a_variant_of_each_combination() -> None:
    made = plan(
        JobConfig.model_validate(
            {
                "design": {"kind": "sweep"},
                "sweep": {"agent.model": ("x/1", "y"), "bindings": {"t": [0.1, 0.5]}},
                "variants": ({"id": "extra", "image": "b"},),
            }
        ),
        tasks(1),
    )
    assert [each.id for each in made.variants] == [
        "model=x-1,t=0.1",
        "model=x-1,t=0.5",
        "model=y,t=0.1",
        "model=y,t=0.5",
        "extra",
    ]
    assert made.variants[4].image_origin == "variants.extra.image"
    assert made.variants[1].run.agent.model == "x/1"
    assert made.variants[1].bindings == {"t": 0.5}


def test_the_image_of_a_sweep_comes_from_the_sweep() -> None:
    config = JobConfig.model_validate(
        {"design": {"kind": "sweep"}, "run": {"image": "c"}, "sweep": {"image": ("a", "b")}}
    )
    made = plan(config, tasks(1))
    assert [(made.image(i).image, made.image(i).origin) for i in range(2)] == [
        ("a", "sweep.image"),
        ("b", "sweep.image"),
    ]
    assert [each.id for each in made.variants] == ["image=a", "image=b"]


def test_extend_names_the_default_variant_beside_others() -> None:
    made = plan(JobConfig(), tasks(2))
    assert [slot.name for slot in made.slots] == ["t0#0", "t1#0"]
    longer = extend(made, variants=[VariantConfig(id="b")])
    assert [slot.name for slot in longer.slots] == ["t0#0", "t1#0", "t0#0@b", "t1#0@b"]


def test_extend_adds_a_variant_with_a_secret_only_once(tmp_path: Path) -> None:
    variant = VariantConfig.model_validate({"id": "b", "agent": {"env": {"TOKEN": "s3cret-1"}}})
    made = plan(job(), tasks(1))
    write_plan(tmp_path, extend(made, variants=[variant]))
    read = load_plan(tmp_path)
    assert read is not None
    assert extend(read, variants=[variant]) is read


def test_extend_gives_values_to_new_tasks_only() -> None:
    made = plan(job(), tasks(1))
    values = {"t5": TaskOverride(image="x")}
    longer = extend(made, tasks=tasks(1, first=5), overrides=values)
    assert longer.image(1).image == "x"
    assert extend(longer, tasks=tasks(1, first=5), overrides=values) is longer
    with pytest.raises(JobConfigError) as caught:
        extend(made, overrides={"t0": TaskOverride(image="x"), "t9": TaskOverride()})
    found = [(problem.dotted, problem.reason) for problem in caught.value.problems]
    assert ("tasks.t0", "the job has another task of this name, or with other values") in found
    assert ("tasks.t9", "it is not one of the new tasks") in found


def test_a_plan_in_another_order_is_named_as_that() -> None:
    longer = extend(plan(job(), tasks(2)), variants=[VariantConfig(id="v1")])
    says = "the same rollouts were in another order, because it was extended"
    assert difference(longer, plan(job(2), tasks(2))) == says
    # More replications come last in a new plan, too.
    more = extend(plan(job(2), tasks(2)), replications=3)
    assert difference(more, plan(job(2, replications=3), tasks(2))) is None


def test_extend_refuses_what_it_cannot_add() -> None:
    made = plan(job(2, replications=2), tasks(2))
    changed = tasks(1)[0].model_copy(update={"digest": "sha256:other"})
    with pytest.raises(JobConfigError) as caught:
        extend(
            made,
            replications=1,
            tasks=[changed],
            variants=[VariantConfig(id="v0", image="x")],
        )
    assert [problem.dotted for problem in caught.value.problems] == [
        "design.replications",
        "tasks.t0",
        "variants.v0",
    ]


def test_ten_thousand_slots_take_a_few_bytes_each() -> None:
    made = plan(job(2, replications=500), tasks(10))
    assert len(made.slots) == 10_000
    assert sum(c.itemsize * len(c) for c in made.slots.columns) <= 100_000
    assert [made.slots[index].variant for index in range(4)] == ["v0", "v1", "v0", "v1"]


def test_the_record_gets_the_variants_and_the_design() -> None:
    made = plan(job(2, kind="unpaired", tasks={"t0": {"env": {"A": "1"}}}), tasks(1))
    revision = plan_revision(made)
    assert revision.config_digest == made.digest
    assert (revision.design, revision.baseline) == ("unpaired", "v0")
    assert list(revision.variants) == ["v0", "v1"]
    assert revision.config["overrides"] == {"t0": {"env": {"A": "1"}}}
    json.dumps(revision.model_dump(mode="json"))


def test_a_job_of_version_0_8_is_the_same_plan(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("job_of_0_8.json"), tmp_path / "job.json")
    read = load_plan(tmp_path)
    assert read is not None
    assert [slot.name for slot in read.slots] == ["one#0", "two#0", "one#1", "two#1"]
    run = run_config(
        agent="nop",
        agent_env={"TOKEN": "s3cret-of-all"},
        isolation="shared",
        branch="group",
        branch_n=3,
        branch_then="value",
        skills_dir=Path("skills"),
    )
    config = config_of(JobOptions(tasks_dir=tmp_path, run=run, repeats=2))
    found = [
        task.model_copy(update={"id": name, "digest": f"sha256:{name}"})
        for task, name in zip(tasks(2), ("one", "two"), strict=True)
    ]
    made = plan(config, found)
    assert made.digest == read.digest
    assert difference(read, made) is None
    assert made.variants[0].run == run
    assert len(extend(read, replications=3).slots) == 6


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (job(run={"agent": {"name": "nop"}}), "agent.name was 'oracle' and is 'nop'"),
        (job(2), "its variants were v0 and are v0, v1"),
        (job(seed=1), "design.seed was None and is 1"),
        (job(replications=2), "it had 2 rollouts, and these are 4 others"),
        (job(tasks={"t0": {"image": "x"}}), "the task 't0' changed since"),
    ],
)
def test_another_plan_is_named_by_its_difference(other: JobConfig, says: str) -> None:
    assert difference(plan(job(), tasks(2)), plan(other, tasks(2))) == says
