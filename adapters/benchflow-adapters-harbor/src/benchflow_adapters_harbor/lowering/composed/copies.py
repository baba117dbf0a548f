"""Paths of the task that its main container may write: copies in its image.

Compose would mount them, so that an agent changes the task of all further rollouts. A copy is
each box's own: what is written there is graded with it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchflow_contracts import ImageRecipe, TaskError

from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.task import HarborTask

Copies = Sequence[tuple[Path, str]]
"""Each path on the host, and where it is inside."""

_MAX_BYTES: Final = 1024 * 1024


def with_copies(
    recipe: ImageRecipe | None, image: str | None, copies: Copies, task: HarborTask
) -> ImageRecipe | None:
    """Return the recipe of an image that also holds `copies`.

    Raises:
        TaskError: A path is not part of what the image is built from.
    """
    if not copies:
        return recipe
    where = f"{task.context / 'docker-compose.yaml'}:services.main.volumes"
    if recipe is None:
        timeout = task.config.environment.build_timeout_sec
        recipe = ImageRecipe(context=task.context.resolve(), timeout_sec=timeout)
        text = f"FROM {image}\n"
    else:
        text = recipe.inline or _dockerfile(recipe, task)
    context = recipe.context.resolve()
    # A further stage: what is built is not always the last one of the file.
    lines = [f"FROM {recipe.target}"] if recipe.target else []
    for source, target in copies:
        if not source.is_relative_to(context):
            raise TaskError(
                f"{source.name[:80]!r} is outside of the build's context",
                where=where,
                hint="mount it read-only (`:ro`), or build from environment/",
            )
        lines.append(f"COPY {json.dumps([str(source.relative_to(context)), target])}")
    inline = f"{text.rstrip()}\n\n" + "\n".join(lines) + "\n"
    update = {"dockerfile": "dockerfile_inline", "inline": inline, "target": ""}
    return recipe.model_copy(update=update)


def _dockerfile(recipe: ImageRecipe, task: HarborTask) -> str:
    root = task.context.resolve()
    return read_text(root, recipe.context.resolve() / recipe.dockerfile, cap=_MAX_BYTES)
