"""Samples of an Inspect task, written as directories.

Private functions of inspect-ai 0.3.285: `read_sandboxenv_file` and `resolve_sample_files` of
`_eval.task.sandbox`, and `solver._task_state.Choices`.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    BenchFlowError,
    ListedTask,
    ServiceSpec,
    TaskConfig,
    TaskError,
    TaskRefusal,
)
from inspect_ai import Task
from inspect_ai._eval.task.sandbox import read_sandboxenv_file, resolve_sample_files
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Target
from inspect_ai.solver import MultipleChoiceTemplate
from inspect_ai.solver._task_state import Choices

from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig

from .loading import load_inspect_task
from .sample_folder import (
    FORMAT,
    SERVICES,
    SampleFolder,
    TaskReference,
    load_sample,
    slug,
    write_sample,
)
from .setup_solver import ENVIRONMENT

_PROVIDERS = {"benchflow", "docker", "local"}
_LONGEST_SETUP = 100_000
SOLVER = "inspect-solver"
"""The agent that runs the solver of a task, within the limits of Inspect."""
_ALL_TOKENS = (None, "all")


def write_samples(spec: str, args: Mapping[str, Any], cache: Path) -> list[Path | ListedTask]:
    """Write each sample below `cache`; return the directories, and the refused samples.

    Raises:
        TaskError: The task cannot be loaded.
    """
    path, at, name = spec.rpartition("@")
    file = Path(path if at else spec)
    if file.is_file():
        spec = f"{file.resolve()}{at}{name}"
    reference = TaskReference(spec=spec, args=args)
    reference = reference.model_copy(update={"code": reference.code_digest()})
    task = load_inspect_task(reference)
    home = file.resolve().parent if file.is_file() else Path.cwd()
    with _inside(home):
        return [
            _write(task, sample, index, reference, cache)
            for index, sample in enumerate(task.dataset)
        ]


def _write(
    task: Task, sample: Sample, index: int, reference: TaskReference, cache: Path
) -> Path | ListedTask:
    sample_id = str(index + 1 if sample.id is None else sample.id)
    name = f"{slug(task.name)}/{slug(sample_id)}"
    with tempfile.TemporaryDirectory(dir=_made(cache)) as stage:
        folder = Path(stage) / slug(sample_id)
        try:
            _write_folder(task, sample, index, reference, name, folder)
        except BenchFlowError as error:
            hint = error.hint or "run the task by `inspect eval --sandbox benchflow`"
            refusal = TaskRefusal(reason=str(error), hint=hint)
            return ListedTask(name=name, path=None, format=FORMAT, refusals=(refusal,))
        final = cache / load_sample(folder).digest.removeprefix("sha256:")[:32] / folder.name
        if not final.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(final)
    return final


def _write_folder(
    task: Task, sample: Sample, index: int, reference: TaskReference, name: str, folder: Path
) -> None:
    settings = _settings(task, sample)
    workdir, root = _files(sample)
    environment: dict[str, Any] = {"network": settings.network, "env": dict(settings.env)}
    spec = settings.spec(output_bytes=1)
    environment |= {"image": spec.image, "workdir": spec.workdir, "user": spec.user}
    environment |= {"memory_mb": settings.memory_mb, "cpus": settings.cpus}
    setup = _setup(sample)
    if setup is not None:
        environment["setup_commands"] = [{"command": setup, "user": ""}]
    if task.setup is not None:
        environment["provider"] = ENVIRONMENT
    given = {key: value for key, value in environment.items() if value is not None}
    config = TaskConfig.model_validate(
        {
            "name": name,
            "metadata": {"inspect_notes": list(_notes(task))},
            "agent": _agent_limits(task),
            "environment": given,
            "verifier": {"type": "inspect", "isolation": "shared"},
        }
    )
    dockerfile = ""
    if settings.dockerfile is not None:
        source = Path(settings.dockerfile)
        dockerfile = source.name
        _copy_context(source.parent, folder / "image")
    sample_folder = SampleFolder(
        task=reference,
        index=index,
        config=config,
        instruction=_instruction(sample),
        dockerfile=dockerfile,
    )
    if settings.services:
        beside = {
            "services": tuple(_copied(service, folder) for service in settings.services),
            "main": settings.main,
            "inner_networks": tuple(sorted(settings.inner_networks)),
        }
        sample_folder = sample_folder.model_copy(update=beside)
    write_sample(folder, sample_folder, root, workdir)


def _agent_limits(task: Task) -> dict[str, Any]:
    """Return the limits of the agent. They end its work, which is then scored.

    Inspect itself applies the limits on messages and cost to the solver, and others that no other
    agent can apply.
    """
    limits: dict[str, Any] = {"timeout_sec": task.time_limit, "max_calls": task.turn_limit}
    limits |= {"max_messages": task.message_limit, "max_cost_usd": task.cost_limit}
    others = [] if task.working_limit is None else [f"working_limit = {task.working_limit}"]
    if task.token_limit_type in _ALL_TOKENS:
        limits["max_tokens"] = task.token_limit
    elif task.token_limit is not None:
        others.append(f"token_limit = {task.token_limit} of the type {task.token_limit_type!r}")
    given = {name: value for name, value in limits.items() if value is not None}
    if others or given.keys() - {"timeout_sec"}:
        given |= {"other_limits": others, "self_limited": [SOLVER]}
    return given


def _copied(service: ServiceSpec, folder: Path) -> ServiceSpec:
    """Copy the files from which a service is built; return the service with the copy."""
    if service.recipe is None:
        return service
    place = Path(SERVICES) / service.name
    _copy_context(service.recipe.context, folder / place)
    recipe = service.recipe.model_copy(update={"context": place})
    return service.model_copy(update={"recipe": recipe})


def _copy_context(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target)
    except OSError as error:
        raise TaskError(f"the files of {source} cannot be copied: {error!s:.500}") from error


def _settings(task: Task, sample: Sample) -> BenchflowSandboxConfig:
    sandbox = sample.sandbox or task.sandbox
    if sandbox is None:
        return BenchflowSandboxConfig()
    if sandbox.type not in _PROVIDERS:
        raise TaskError(f"the sandbox {sandbox.type!r} of Inspect has no form here")
    return BenchflowSandboxConfig.of(sandbox.config)


def _files(sample: Sample) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files below the working directory, and those below `/`."""
    workdir: dict[str, bytes] = {}
    root: dict[str, bytes] = {}
    for name, source in resolve_sample_files(sample.files or {}).items():
        if ":" in name:
            raise TaskError(f"files[{name!r}] is for another container than the default one")
        data = _read(source)
        if name.startswith("/"):
            root[name.lstrip("/")] = data
        else:
            workdir[name] = data
    return workdir, root


def _setup(sample: Sample) -> str | None:
    if not sample.setup:
        return None
    try:
        script = _read(sample.setup).decode()
    except UnicodeDecodeError:
        raise TaskError("the setup script of the sample is not text") from None
    if not script.strip().startswith("#!"):
        script = f"#!/usr/bin/env bash\n\n{script}"
    if len(script) > _LONGEST_SETUP:
        raise TaskError(f"the setup script has more than {_LONGEST_SETUP} characters")
    path = "/tmp/inspect-setup"  # noqa: S108 - a path of the sandbox
    write = f"printf %s {shlex.quote(script)} > {path} && chmod +x {path}"
    return f"{write} && {path}; code=$?; rm -f {path}; exit $code"


def _read(source: str) -> bytes:
    # The reader is asynchronous, and listing may run inside an event loop.
    with ThreadPoolExecutor(1) as pool:
        data: bytes = pool.submit(asyncio.run, read_sandboxenv_file(source)).result()
    return data


def _instruction(sample: Sample) -> str:
    if isinstance(sample.input, str):
        text = sample.input
    else:
        text = "\n\n".join(message.text for message in sample.input)
    if not sample.choices:
        return text
    several = len(Target(sample.target)) > 1
    template = (
        MultipleChoiceTemplate.MULTIPLE_ANSWER if several else MultipleChoiceTemplate.SINGLE_ANSWER
    )
    return str(Choices(sample.choices).prompt(text, template.value))


def _notes(task: Task) -> Iterator[str]:
    for limit in _agent_limits(task).get("other_limits", ()):
        yield f"{limit}: only the agent {SOLVER} applies it, and another agent is refused"
    if task.cost_limit is not None:
        yield f"cost_limit = {task.cost_limit}: an agent other than {SOLVER} needs --usd-per-mtok"
    if (task.epochs or 1) > 1:
        yield f"epochs = {task.epochs}: run the task with -k {task.epochs}"
    for name in ("approval", "review", "early_stopping", "checkpoint"):
        if getattr(task, name, None):
            yield f"{name} of the task has no effect"
    if task.model_roles:
        roles = ", ".join(sorted(task.model_roles))
        yield f"the model roles {roles} are the model of the rollout"
    if not task.scorer:
        yield "the task has no scorer, so its rollouts have no reward"


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def _inside(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
