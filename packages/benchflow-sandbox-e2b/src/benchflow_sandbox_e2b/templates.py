"""Templates of an account, each built once from an image, with the link and the bundles."""

from collections.abc import Mapping
from typing import Any

import benchflow_sandbox_remote as remote
from benchflow_contracts.scratch import scratch_directory
from benchflow_sandbox_core.image_config import ImageConfig
from e2b import AsyncTemplate
from e2b.template.dockerfile_parser import parse_dockerfile  # pyright: ignore[reportMissingTypeStubs]

from .errors import typed_errors

SCHEME = "template://"
TAG = "v1"
"""Also the version of our steps. E2B knows a name with a tag once a build of the tag is ready."""
_PATHS = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""E2B's addition to the variable PATH of a build."""


class TemplateBuild:
    """The build of one template."""

    def __init__(self, connection: Mapping[str, Any], plan: remote.ImagePlan) -> None:
        """`connection` has the options of each call of the SDK."""
        self.name = f"benchflow-{plan.digest[:40]}:{TAG}"
        self._connection, self._steps = connection, remote.ImageSteps(plan, parse_dockerfile)

    def image(self, env: Mapping[str, str]) -> ImageConfig:
        """Return the configuration of the image, by the variables of its build."""
        env = {name: value for name, value in env.items() if not name.startswith("E2B_")}
        if "PATH" in env:
            env["PATH"] = env["PATH"].removesuffix(_PATHS)
        return self._steps.image(env)

    async def exists(self) -> bool:
        """Return whether the account has the template, ready for use."""
        with typed_errors(f"look for the template {self.name!r}"):
            return await AsyncTemplate.exists(self.name, **self._connection)

    async def run(self, log: remote.BuildLog) -> None:
        """Build the template. The SDK takes files of the host by their absolute paths."""
        with (
            scratch_directory("benchflow-e2b") as scratch,
            typed_errors(f"build the template {self.name!r}"),
        ):
            template, base = AsyncTemplate(file_context_path="/"), self._steps.base
            start = template.from_template if base.startswith(SCHEME) else template.from_image
            builder: Any = start(base.removeprefix(SCHEME))
            builder.set_user("root")
            for step in self._steps.stage(scratch):
                _add_step(builder, step)
            await AsyncTemplate.build(
                builder,
                self.name,
                on_build_logs=lambda entry: log.append(entry.message),
                **self._connection,
            )


def _add_step(builder: Any, step: remote.BuildStep) -> None:  # noqa: ANN401 - a `TemplateBuilder`
    match step:
        case remote.RunStep():  # by bash as a login shell
            builder.run_cmd(step.command, user=step.user)
        case remote.CopyStep():
            source = step.path_below_root("E2B")  # E2B puts it into a shell script
            builder.copy(source, step.target, user=step.owner, mode=step.mode)
        case remote.WorkdirStep():
            builder.set_workdir(step.path)
        case remote.EnvStep():
            builder.set_envs({step.name: step.value})
