"""Templates of an account, each built once from an image, with the link and the bundles."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.scratch import scratch_directory
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_native import link_path
from benchflow_sandbox_remote import (
    PROGRAM,
    BuildLog,
    ImagePlan,
    PlainDockerfile,
    stage_context,
)
from e2b import AsyncTemplate
from e2b.exceptions import BuildException

from .dockerfile import DockerfileSteps
from .errors import build_error, typed_errors

SCHEME = "template://"
ENVIRONMENT = "/.benchflow/image-env"
"""The variables of the image, as E2B gives them to a command."""
MAX_BYTES = 1 << 17
"""Of the variables of an image."""
TAG = "v1"
"""Also the version of our steps. E2B knows a name with a tag once a build of the tag is ready."""
_DEFAULT = "base"
"""E2B's own template, which every account has."""
_PLAIN = re.compile(r"[\w./@+=:,~ -]+")
_OWN = {"HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "SHELL", "_", "TERM"}
_PATHS = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""E2B's addition to the variable PATH of a build."""


class Connection(TypedDict, total=False):
    """Options of each call of the SDK."""

    api_key: str
    api_url: str
    sandbox_url: str
    domain: str


def with_image(spec: SandboxSpec) -> SandboxSpec:
    """Return the spec with E2B's default template if it names no image."""
    if spec.recipe is not None or spec.image not in {None, "", "host"}:
        return spec
    return spec.model_copy(update={"image": f"{SCHEME}{_DEFAULT}"})


def own_template(spec: SandboxSpec) -> str | None:
    """Return the template that a spec names and that needs no build, or None."""
    image = spec.image or ""
    is_own = image.startswith(SCHEME) and not spec.bundles
    return image.removeprefix(SCHEME) if is_own else None


@dataclass(frozen=True)
class TemplateBuild:
    """The build of one template."""

    plan: ImagePlan
    connection: Connection

    @property
    def name(self) -> str:
        """The name and the tag of the template."""
        return f"benchflow-{self.plan.digest[:40]}:{TAG}"

    @cached_property
    def steps(self) -> DockerfileSteps | None:
        """The steps of the Dockerfile.

        Raises:
            SandboxUnsupportedError: E2B cannot build it.
        """
        recipe, context = self.plan.recipe, self.plan.context
        if recipe is None or context is None:
            return None
        return DockerfileSteps(PlainDockerfile.of(recipe, context), dict(recipe.args))

    def image(self, environment: bytes) -> ImageConfig:
        """Return the configuration of the image, with the variables of `ENVIRONMENT`."""
        steps = self.steps
        left_out = _OWN | (steps.arguments if steps else set[str]())
        pairs = (row.partition("=") for row in environment.decode("utf-8", "replace").split("\0"))
        env = {name: value for name, equals, value in pairs if equals and name not in left_out}
        env = {name: value for name, value in env.items() if not name.startswith("E2B_")}
        if "PATH" in env:
            env["PATH"] = env["PATH"].removesuffix(_PATHS)
        return ImageConfig(env, steps.user if steps else "", steps.workdir if steps else "")

    async def exists(self) -> bool:
        """Return whether the account has the template, ready for use."""
        with typed_errors(f"look for the template {self.name!r}"):
            return await AsyncTemplate.exists(self.name, **self.connection)

    async def run(self, log: BuildLog) -> None:
        """Build the template."""
        with (
            scratch_directory("benchflow-e2b") as scratch,
            typed_errors(f"build the template {self.name!r}"),
        ):
            try:
                await AsyncTemplate.build(
                    self._builder(scratch),
                    self.name,
                    on_build_logs=lambda entry: log.append(entry.message),
                    **self.connection,
                )
            except BuildException as error:
                raise build_error(f"E2B cannot build {self.name!r}: {error}", error) from error
            except ValueError as error:
                if not str(error).startswith("No files found"):
                    raise
                raise SandboxUnsupportedError(
                    f"COPY: {error}", hint="correct the Dockerfile, or .dockerignore"
                ) from error

    def _builder(self, scratch: Path) -> Any:  # noqa: ANN401 - a `TemplateBuilder`
        """Return the SDK's builder. It takes files of the host by their absolute paths."""
        template, plan = AsyncTemplate(file_context_path="/"), self.plan
        if self.steps is not None and plan.context is not None:
            stage_context(plan.context, scratch)
            builder: Any = template.from_image(self.steps.base)
            self.steps.replay(builder, _relative(scratch))
        elif plan.source.startswith(SCHEME):
            builder = template.from_template(plan.source.removeprefix(SCHEME))
        else:
            builder = template.from_image(plan.source)
        builder.set_user("root")
        for source, target in plan.bundles:
            builder.copy(_relative(Path(source)), target, user="root:root")
        save = f"rm -rf /.benchflow && mkdir /.benchflow && cat /proc/$$/environ > {ENVIRONMENT}"
        builder.run_cmd(save, user="root")
        return builder.copy(_relative(link_path()), PROGRAM, user="root:root", mode=0o755)


def _relative(path: Path) -> str:
    """Return a path below `/`. E2B treats it as a pattern, and puts it into a shell script."""
    text = str(path.resolve()).lstrip("/")
    if not _PLAIN.fullmatch(text):
        raise SandboxUnsupportedError(
            f"E2B cannot copy {str(path)!r}: its path has special characters",
            hint="move it to a path of letters, digits and ./@+=:,~ -",
        )
    return text
