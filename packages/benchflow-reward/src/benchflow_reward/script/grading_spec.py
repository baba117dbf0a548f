"""The specification of a grading sandbox."""

from benchflow_contracts import Grading, RewardError, SandboxSpec, Task, TaskEnvironment

from .grading_protocol import LiveNode
from .verifier_env import without_steering


def grading_environment(task: Task, grading: Grading) -> TaskEnvironment | None:
    """Return the `[verifier.environment]` that applies, or `None` for the agent's.

    Raises:
        RewardError: The tests are in that environment's image, and this is no hermetic grading.
    """
    verifier = task.config.verifier
    if grading == "hermetic":
        return verifier.environment
    if verifier.tests_in_image:
        raise RewardError(
            f"the tests of {task.id!r} are in the image of the grading sandbox, which {grading} "
            "grading does not use",
            hint="grade it with --isolation hermetic",
        )
    return None


def grading_spec(live: LiveNode, grading: Grading) -> SandboxSpec:
    """Return the spec of a fresh grading sandbox, without a model.

    If the protocol pins variables, nothing in `[environment] env` steers a shell or an
    interpreter. Otherwise variables are as the task says, and a fresh sandbox runs its image's
    entrypoint if the task keeps it; a twin has the user and the working directory of the agent's
    sandbox.
    """
    own = grading_environment(live.task, grading)
    spec = live.grading_spec if own is None else _of(own, live)
    environment = own or live.task.config.environment
    if live.protocol.rules.pins_variables:
        return without_steering(spec)
    if grading == "twin":
        update = {"user": live.sandbox.spec.user, "workdir": live.sandbox.spec.workdir}
        return spec.model_copy(update=update)
    entrypoint = "image" if environment.keep_entrypoint else None
    return spec.model_copy(update={"entrypoint": entrypoint})


def _of(own: TaskEnvironment, live: LiveNode) -> SandboxSpec:
    parts = live.task.parts
    # Without an image of its own it is the agent's image, in the grader's circumstances.
    recipe = parts.grading_recipe or (parts.recipe if own.image is None else None)
    return SandboxSpec(
        image=own.image if recipe is None else None,
        recipe=recipe,
        image_search=live.grading_spec.image_search,
        workdir=own.workdir,
        user=own.user,
        env=own.env,
        network=own.network,
        allowed_hosts=own.allowed_hosts,
        limits=own.limits(),
    )
