"""The entry point `manifest` of the group `benchflow.environments`."""

from pathlib import Path

from benchflow_contracts import EnvironmentFactory, Task, TaskError

from .environment import ManifestEnvironment
from .reader import load_manifest


def manifest_environment(manifest: Path) -> EnvironmentFactory:
    """Read a manifest; return what makes its environments.

    Raises:
        ManifestError: As `load_manifest` does.
    """
    read = load_manifest(manifest)
    directory = manifest.absolute().parent

    def make() -> ManifestEnvironment:
        return ManifestEnvironment(read, directory)

    return make


def environment_of_task(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return what makes the environment of `task`, from its manifest.

    Raises:
        TaskError: The task has no manifest, or has options, which a manifest does not take.
        ManifestError: As `load_manifest` does.
    """
    if manifest is None:
        raise TaskError(
            f"task {task.id!r} names the environment 'manifest' and has no environment.toml",
            where="task.toml:environment.provider",
            hint="put environment.toml into the task's folder `environment`",
        )
    if task.config.environment.options:
        raise TaskError(
            "the environment 'manifest' takes no options",
            where="task.toml:environment.options",
            hint="write them into environment.toml",
        )
    return manifest_environment(manifest)
