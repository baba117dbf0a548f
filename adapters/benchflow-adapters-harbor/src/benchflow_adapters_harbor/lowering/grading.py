"""How a step is graded, in our words."""

from benchflow_contracts import CollectCommand, ImageRecipe, TaskVerifier

from benchflow_adapters_harbor.config import CollectHook
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.task import HarborStep

from .box import NETWORKS, box, recipe, user_name
from .variables import variables


def verifier(step: HarborStep) -> TaskVerifier:
    """Return the `[verifier]` of one step: in a twin, or in a container of its own."""
    plan = step.verifier
    own = plan.environment
    network = NETWORKS[plan.network.network_mode]
    return TaskVerifier(
        protocol="harbor",
        isolation="twin" if own is None else "hermetic",
        may_grade_in_place=own is None,
        timeout_sec=plan.timeout_sec,
        **variables(plan.env),
        network=network,
        allowed_hosts=plan.network.allowed_hosts,
        user=user_name(plan.user),
        environment=None if own is None else box(own, plan.network),
        tests_in_image=plan.tests_in_image,
        collect=tuple(map(_collect, step.collect)),
    )


def grading_recipe(step: HarborStep) -> ImageRecipe | None:
    """Return what the image of a verifier's own container is made from, if anything."""
    plan = step.verifier
    if plan.environment is None or plan.directory is None:
        return None
    return recipe(plan.environment, plan.directory)


def _collect(hook: CollectHook) -> CollectCommand:
    return CollectCommand(
        command=hook.command,
        timeout_sec=hook.timeout_sec,
        user=user_name(hook.user),
        service="" if hook.service == MAIN else hook.service,
    )
