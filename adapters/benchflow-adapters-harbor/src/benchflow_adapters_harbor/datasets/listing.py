"""List one task, even if it cannot be read."""

from pathlib import Path

from benchflow_contracts import ListedTask, TaskError, TaskRefusal

from benchflow_adapters_harbor.blockers import blockers
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.host_access import host_access_requests
from benchflow_adapters_harbor.host_policy import HostPolicy
from benchflow_adapters_harbor.load import load_harbor_task
from benchflow_adapters_harbor.task import HarborTask


def list_task(name: str, path: Path, policy: HostPolicy) -> ListedTask:
    """Return the task in the directory `path`. `name` is for a task that cannot be read."""
    try:
        task = load_harbor_task(path)
    except TaskError as error:
        return refused_task(name, error, path)
    except (OSError, ValueError, RecursionError) as error:
        hint = "repair or remove the task"
        return refused_task(name, TaskError(f"cannot be read: {error}", hint=hint), path)
    return ListedTask(
        name=task.name,
        path=task.path,
        format=task.format,
        digest=task.digest,
        facts=_facts(task),
        notes=(*task.notes, *_unset(task, policy), *_host_access_notes(task, policy)),
        refusals=tuple(blockers(task, policy)),
    )


def refused_task(name: str, error: TaskError, path: Path | None = None) -> ListedTask:
    """Return the entry of a task that could not be found or read."""
    wrong = TaskRefusal.from_error(error)
    return ListedTask(name=name, path=path, format="harbor", refusals=(wrong,))


def check_digest(task: ListedTask, digest: str | None) -> ListedTask:
    """Return `task`, refused if its content does not have the digest `digest`.

    A refused task does not have a digest, so that it cannot pass for the intended task.
    """
    if digest is None or task.digest in {None, digest}:
        return task
    reason = f"its content has the digest {task.digest}, and {digest} was expected"
    hint = "fetch the task again, or correct the digest"
    wrong = TaskRefusal(reason=reason, where=str(task.path), hint=hint)
    return task.refused(wrong).model_copy(update={"digest": None})


def _unset(task: HarborTask, policy: HostPolicy) -> list[str]:
    if task.compose is None:
        return []
    # Import the reader only for a task that has a compose file.
    from benchflow_adapters_harbor.lowering.composed.variables import (  # noqa: PLC0415
        unset_variables,
    )

    return [
        f"docker-compose.yaml: variable {name[:80]!r} is not set, so it is empty:"
        f" --forward-env {name[:80]} passes yours"
        for name in unset_variables(task, policy.forwarded)
    ]


def _host_access_notes(task: HarborTask, policy: HostPolicy) -> list[str]:
    if task.compose is None or not policy.host_access:
        return []
    return [
        f"docker-compose.yaml:{key}: {reason}, as --trust-host-access allows"
        for key, reason in host_access_requests(task.compose)
    ]


def _facts(task: HarborTask) -> dict[str, str]:
    image = task.config.environment.docker_image
    return {
        "steps": str(len(task.steps)),
        "verifier": "+".join(sorted({step.verifier.mode for step in task.steps})),
        "network": task.config.environment.network_mode,
        "image": image or ("Dockerfile" if task.dockerfile else "compose"),
        "services": str(len(_services(task))),
    }


def _services(task: HarborTask) -> set[str]:
    written = set(task.compose.services) if task.compose else set[str]()
    # Harbor adds `main` itself; an old task lists all of its services.
    return written if task.format == "terminal-bench" else {MAIN, *written}
