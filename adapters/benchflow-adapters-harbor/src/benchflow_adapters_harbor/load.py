"""Read a directory as a HarborTask."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from benchflow_contracts import TaskError

from .canary import without_canary
from .compose import read_compose
from .config import Artifact, HarborConfig, StepConfig, unknown_keys
from .config.artifact import MAIN
from .digest import task_digest
from .files import check_inside, check_tree, read_text
from .task import HarborStep, HarborTask
from .toml_text import read_toml, validate
from .verifier_plan import plan_verifier

MAX_INSTRUCTION = 1024 * 1024
_KNOWN_MINOR = 4
_PUBLISH = {"linux": "/logs/artifacts", "windows": "C:/logs/artifacts"}


def load_harbor_task(path: Path) -> HarborTask:
    """Read and check a Harbor task (`task.toml`) or a Terminal-Bench one (`task.yaml`).

    Build, run and fetch nothing. The task's files are not trusted.

    Raises:
        TaskError: The task is malformed. The error has `file:key` or `file:line` and a remedy.
    """
    root = path.resolve()
    if not root.is_dir():
        raise TaskError(
            f"task {str(path)!r} is not a directory", hint="name a directory with a task"
        )
    if not (root / "task.toml").is_file() and (root / "task.yaml").is_file():
        from .terminal_bench import load_terminal_bench  # noqa: PLC0415

        return load_terminal_bench(root)
    file = root / "task.toml"
    raw = read_toml(root, file)
    config = validate(HarborConfig, raw, file)
    unknown = [f"unknown key {key[:80]!r}" for key in unknown_keys(config, raw)]
    notes = [*_schema_notes(config, file), *unknown]
    _check_trees(root, config)
    context = root / "environment"
    if not context.is_dir():
        raise TaskError("the directory is missing", where=str(context), hint="add environment/")
    compose = context / "docker-compose.yaml"
    return HarborTask(
        name=config.task.name if config.task else root.name,
        path=root,
        format="harbor",
        config=config,
        steps=tuple(_steps(root, config)),
        context=context,
        dockerfile=(context / "Dockerfile").is_file(),
        compose=read_compose(root, compose) if compose.is_file() else None,
        upload_context=_uploads(context, config),
        terminal_bench=None,
        digest=task_digest(root),
        notes=tuple(notes),
    )


def _schema_notes(config: HarborConfig, file: Path) -> Iterator[str]:
    version = config.schema_version
    found = re.fullmatch(r"(\d{1,6})(?:\.(\d{1,6}))?(?:\.\d{1,6})?", version)
    if found is None or int(found.group(1)) > 1:
        raise TaskError(
            f"schema {version[:40]!r} is not known",
            where=f"{file}:schema_version",
            hint="use a schema from 1.0 to 1.4",
        )
    if int(found.group(1)) == 0:
        yield f"schema {version!r} is older than 1.0, and is read as 1.0"
    elif int(found.group(2) or 0) > _KNOWN_MINOR:
        yield f"schema {version!r} is newer than 1.4: its additions are ignored"


def _check_trees(root: Path, config: HarborConfig) -> None:
    for step in config.steps or ():
        directory = root / "steps" / step.name
        if not directory.is_dir():
            raise TaskError(
                f"step {step.name!r} has no directory", where=str(directory), hint="add it"
            )
        check_tree(root, directory)
    for name in ("tests", "solution"):
        check_tree(root, root / name)
    check_inside(root, root / "environment")


def _uploads(context: Path, config: HarborConfig) -> bool:
    built = any((context / name).exists() for name in ("Dockerfile", "docker-compose.yaml"))
    return bool(config.environment.docker_image) and not built and any(context.iterdir())


def _steps(root: Path, config: HarborConfig) -> Iterator[HarborStep]:
    if not config.steps:
        yield _step(root, config, None, first=True)
    for index, step in enumerate(config.steps or ()):
        yield _step(root, config, step, first=index == 0)


def _step(root: Path, config: HarborConfig, step: StepConfig | None, *, first: bool) -> HarborStep:
    own = step.agent if step else config.agent
    base = root if step is None else root / "steps" / step.name
    text = read_text(root, base / "instruction.md", cap=MAX_INSTRUCTION)
    prior = base / "trajectory.json"
    workdir = base / "workdir"
    return HarborStep(
        name=step.name if step else None,
        instruction=without_canary(text),
        trajectory=check_prior_trajectory(root, prior) if first and prior.is_file() else None,
        timeout_sec=config.agent.timeout_sec if own.timeout_sec is None else own.timeout_sec,
        user=config.agent.user if own.user is None else own.user,
        network=own.policy() or config.agent.policy() or config.environment.policy(),
        verifier=plan_verifier(root, config, step),
        artifacts=_artifacts(config, step),
        collect=(*config.verifier.collect, *(step.verifier.collect if step else ())),
        healthcheck=step.healthcheck if step else None,
        min_reward=step.min_reward if step else None,
        solution=_solution(root, config, step),
        workdir=workdir if step is not None and workdir.is_dir() else None,
    )


def _artifacts(config: HarborConfig, step: StepConfig | None) -> tuple[Artifact, ...]:
    publish = _PUBLISH[config.environment.os]
    declared = (*config.artifacts, *(step.artifacts if step else ()))
    if any(_place(entry) == (publish, MAIN) for entry in declared):
        return declared
    return (Artifact(source=publish), *declared)


def _place(entry: Artifact) -> tuple[str, str]:
    return entry.source.rstrip("/"), entry.service or MAIN


def _solution(root: Path, config: HarborConfig, step: StepConfig | None) -> Path | None:
    name = "solve.bat" if config.environment.os == "windows" else "solve.sh"
    directory = root / "solution"
    # The step's own directory is used even if its script is missing.
    if step is not None and (own := root / "steps" / step.name / "solution").exists():
        directory = own
    script = directory / name
    return script if script.is_file() else None


MAX_PRIOR_BYTES = 32 * 1024 * 1024


def check_prior_trajectory(root: Path, file: Path) -> Path:
    """Return `file` if it looks like an ATIF document. Only its head is checked.

    Raises:
        TaskError: The file is not a JSON object, not ATIF version 1, or has no steps.
    """
    try:
        data: object = json.loads(read_text(root, file, cap=MAX_PRIOR_BYTES))
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"not JSON: {error}", where=str(file), hint="remove or repair it"
        ) from error
    document = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    version = document.get("schema_version", "")
    if not (isinstance(version, str) and version.startswith("ATIF-v1.")):
        raise TaskError(
            "not an ATIF document of version 1", where=f"{file}:schema_version", hint="see ATIF"
        )
    if not (isinstance(steps := document.get("steps"), list) and steps):
        raise TaskError("has no steps", where=f"{file}:steps", hint="remove the file")
    return file
