"""One sample of an Inspect task as a directory, which is read without Inspect's package."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from benchflow_contracts import (
    ContainerOptions,
    ImageRecipe,
    RareModel,
    ServiceSpec,
    Task,
    TaskConfig,
    TaskError,
    TaskParts,
)
from pydantic import ValidationError

SAMPLE_FILE: Final = "inspect-sample.json"
FORMAT: Final = "inspect"
SERVICES: Final = "services"
"""The directory of the files from which services are built."""
_LONGEST_NAME: Final = 60
_Options = TypeVar("_Options", bound=ContainerOptions)
_HINT: Final = "list the task again: inspect:FILE@TASK"


class TaskReference(RareModel):
    """How Inspect loads the task: a file or a registered name, and the arguments."""

    spec: str
    """`/path/file.py@task`, or `package/task`."""
    args: Mapping[str, Any] = {}
    code: str = ""
    """sha256 of the file, or `""` for a registered task."""

    def code_digest(self) -> str:
        """Return the digest of the file now."""
        path = Path(self.spec.rpartition("@")[0] or self.spec)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


class SampleFolder(RareModel):
    """The file `inspect-sample.json`.

    Beside it are `root/`, `workdir/`, `image/` and `services/`.
    """

    version: Literal[1] = 1
    task: TaskReference
    index: int
    """The place of the sample in the dataset, from 0."""
    config: TaskConfig
    instruction: str
    dockerfile: str = ""
    """Below `image/`; `""` if no image is built."""
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside the sandbox. The context of a recipe is relative to the directory."""
    main: ContainerOptions = ContainerOptions()
    """Options of the sandbox itself, if it has services."""
    inner_networks: tuple[str, ...] = ()


def slug(text: str) -> str:
    """Return a name for an id and a directory. Different texts have different names."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "x"
    if plain == text and len(text) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain[:_LONGEST_NAME].strip('-._')}-{digest}"


def write_sample(
    home: Path, sample: SampleFolder, files: Mapping[str, bytes], workdir: Mapping[str, bytes]
) -> None:
    """Write a sample into the directory `home`. `files` are relative to `/`.

    Raises:
        TaskError: The name of a file leads out of its directory, or cannot be a name.
    """
    home.mkdir(parents=True, exist_ok=True)
    for place, contents in (("root", files), ("workdir", workdir)):
        for name, data in contents.items():
            _write_file(home / place, name, data)
    document = sample.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
    (home / SAMPLE_FILE).write_text(text + "\n", encoding="utf-8")


def _write_file(root: Path, name: str, data: bytes) -> None:
    try:
        path = root / name
        inside = path.resolve() != root.resolve() and path.resolve().is_relative_to(root.resolve())
        if not inside:
            raise TaskError(f"files[{name!r:.200}] leads out of its directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except (OSError, ValueError) as error:
        raise TaskError(f"files[{name!r:.200}] cannot be written: {error!s:.200}") from error


def read_sample(path: Path) -> SampleFolder:
    """Read `inspect-sample.json`.

    Raises:
        TaskError: The file is missing or malformed.
    """
    file = path / SAMPLE_FILE
    try:
        return SampleFolder.model_validate_json(file.read_bytes())
    except OSError as error:
        raise TaskError(f"{file} cannot be read: {error.strerror}", hint=_HINT) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise TaskError(first["msg"], where=f"{file}:{place}", hint=_HINT) from error


def load_sample(path: Path) -> Task:
    """Return the sample in the directory `path` as a task. Run no code of the task.

    Raises:
        TaskError: The directory is malformed.
    """
    root = path.resolve()
    sample = read_sample(root)
    files, workdir = root / "root", root / "workdir"
    recipe = None
    if sample.dockerfile:
        recipe = ImageRecipe(context=root / "image", dockerfile=sample.dockerfile)
    return Task(
        id=sample.config.name,
        path=root,
        instruction=sample.instruction,
        config=sample.config,
        digest=_digest(root),
        format=FORMAT,
        own_parts=TaskParts(
            files=files if files.is_dir() else None,
            workdir_files=workdir if workdir.is_dir() else None,
            recipe=recipe,
            services=tuple(_service(each, root) for each in sample.services),
            container=_options(sample.main),
            inner_networks=frozenset(sample.inner_networks),
        ),
    )


def _service(service: ServiceSpec, root: Path) -> ServiceSpec:
    """Return a service whose image is built from files of the directory alone."""
    if service.recipe is None:
        return _options(service)
    context = (root / service.recipe.context).resolve()
    if not context.is_relative_to(root / SERVICES):
        raise TaskError(f"the service {service.name!r} leads out of its directory", hint=_HINT)
    recipe = service.recipe.model_copy(update={"context": context})
    return _options(service).model_copy(update={"recipe": recipe})


def _options(options: _Options) -> _Options:
    """Refuse the options that name paths of this machine, which Inspect's files cannot have."""
    if options.files or options.host_mounts:
        raise TaskError("a container of the sample names a path of this machine", hint=_HINT)
    return options


def _digest(root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            raise TaskError(f"{path} is a link", hint=_HINT)
        if path.is_file():
            name = path.relative_to(root).as_posix().encode()
            total.update(f"{len(name)}:".encode() + name)
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256:{total.hexdigest()}"
