"""Add the services of a compose file to a task of one container."""

import json
import shlex
from typing import Final

from benchflow_contracts import ImageRecipe, SetupCommand, Task, TaskEnvironment, TaskError

from benchflow_adapters_harbor.files import read_text
from benchflow_adapters_harbor.task import HarborTask

from .options import Copies
from .stack import ComposedStack


def with_stack(single: Task, stack: ComposedStack, task: HarborTask) -> Task:
    """Return `single` with the additions of its compose file.

    Harbor 0.24 merges the task's file over its own. An image or a build in the task's file
    wins, and the variables of `[environment] env` win over those of the service.

    Raises:
        TaskError: The main container has no image and no build, or has two healthchecks.
    """
    environment = _environment(single.config.environment, stack, task)
    own_recipe = _recipe(single, stack, task)
    recipe = with_copies(own_recipe, environment.image, stack.copies, task)
    parts = single.parts.model_copy(
        update={
            "recipe": recipe,
            "services": stack.services,
            "inner_networks": stack.inner_networks,
            "container": stack.container,
        }
    )
    image = environment.image if recipe is None else None
    environment = environment.model_copy(update={"image": image})
    config = single.config.model_copy(update={"environment": environment})
    return single.model_copy(update={"config": config, "own_parts": parts})


def _recipe(single: Task, stack: ComposedStack, task: HarborTask) -> ImageRecipe | None:
    if stack.recipe is not None:
        return stack.recipe
    if stack.main.image and (task.config.environment.docker_image or not task.dockerfile):
        return None
    old = task.terminal_bench is not None
    if single.parts.recipe is not None and not (task.dockerfile or old):
        raise TaskError(
            "the main container has neither an image nor a build",
            where=f"{task.context / 'docker-compose.yaml'}:services.main",
            hint="add environment/Dockerfile, environment.docker_image or an image here",
        )
    return single.parts.recipe


def _environment(own: TaskEnvironment, stack: ComposedStack, task: HarborTask) -> TaskEnvironment:
    main = stack.main
    if own.healthcheck is not None and stack.healthcheck is not None:
        raise TaskError(
            "both [environment] and the main container have a healthcheck",
            where=f"{task.context / 'docker-compose.yaml'}:services.main.healthcheck",
            hint="remove one of them",
        )
    return own.model_copy(
        update={
            "image": main.image or own.image,
            "workdir": own.workdir or main.working_dir,
            "user": own.user or main.user,
            "env": {**{k: v for k, v in main.environment.items() if v is not None}, **own.env},
            "setup_commands": (*own.setup_commands, *_directories(stack)),
            "healthcheck": own.healthcheck or stack.healthcheck,
            "memory_mb": main.mem_limit or main.limits.memory or own.memory_mb,
            "cpus": main.cpus or main.limits.cpus or own.cpus,
            "pids": main.pids_limit or main.limits.pids or own.pids,
        }
    )


def _directories(stack: ComposedStack) -> tuple[SetupCommand, ...]:
    if not stack.directories:
        return ()
    paths = shlex.join(stack.directories)
    return (SetupCommand(command=f"mkdir -p {paths} && chmod 1777 {paths}", cwd="/"),)


_MAX_BYTES: Final = 1024 * 1024


def with_copies(
    recipe: ImageRecipe | None, image: str | None, copies: Copies, task: HarborTask
) -> ImageRecipe | None:
    """Return the recipe of an image that also contains `copies`.

    Compose would mount these paths, so that an agent would change the task for all later
    rollouts. A copy belongs to one sandbox; changes of a copy are graded with it.

    Raises:
        TaskError: A path is outside the build context of the image.
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
    # Add a stage, because the target is not always the last stage of the file.
    lines = [f"FROM {recipe.target}"] if recipe.target else []
    for source, target in copies:
        if not source.is_relative_to(context):
            raise TaskError(
                f"{source.name[:80]!r} is outside the build context",
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
