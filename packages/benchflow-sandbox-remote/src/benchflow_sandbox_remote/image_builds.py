"""Images that a cloud builds once: named by a digest, under a lock of this machine."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
)
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.build_lock import build_lock
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.recipe.context import BuildContext
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_native import link_path

from .cloud import CloudSandbox, HasImage
from .own_loop import in_own_loop

BuildLog = deque[str]
"""The last lines of a build's log."""
_LINES, _SHOWN = 30, 3000
_SECONDS = 3600.0
_ENVIRONMENT = "/.benchflow/image-env"
_MAX_ENVIRONMENT = 1 << 17
SAVE_ENVIRONMENT = (
    f"rm -rf /.benchflow && mkdir /.benchflow && cat /proc/$$/environ > {_ENVIRONMENT}"
)
"""The command of the last step of a build, as root: `BuiltImages` reads the image's variables."""
_SHELL = {"HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "SHELL", "_", "TERM"}
"""Variables of the shell of a build, which are not the image's."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """An image with the link and the bundles of a spec."""

    digest: str
    """Of everything that the build reads, except for the bytes of the image that it starts from."""
    source: str
    """The image of the spec; `""` with a Dockerfile, or without an image."""
    bundles: tuple[tuple[str, str], ...] = ()
    """Sources on this host, and targets."""
    recipe: ImageRecipe | None = None
    context: BuildContext | None = None

    @property
    def seconds(self) -> float:
        """The time limit of the build. That of a recipe does not include the agent's files."""
        own = _SECONDS if self.bundles or self.recipe is None else 0.0
        return own if self.recipe is None else own + self.recipe.timeout_sec


class ImagePlanner:
    """Reads what a spec needs. A file of a context is hashed again only if it was written."""

    def __init__(self, salt: str) -> None:
        """`salt` names the steps that the provider adds to a build."""
        self._salt = salt
        self._digests: dict[ImageRecipe, tuple[tuple[object, ...], str]] = {}

    async def plan(self, spec: SandboxSpec) -> ImagePlan:
        """Return the plan for a spec.

        Raises:
            SandboxError: The Dockerfile, its context or a bundle cannot be read.
        """
        bundles = tuple((bundle.source, bundle.target) for bundle in spec.bundles)
        parts = [self._salt, spec.image or "", await asyncio.to_thread(_read, bundles)]
        parts += [text for bundle in spec.bundles for text in (bundle.key, bundle.target)]
        context = None
        if spec.recipe is not None:
            context = await asyncio.to_thread(BuildContext.scan, spec.recipe)
            parts.append(await self._digest(spec.recipe, context))
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
        return ImagePlan(digest, spec.image or "", bundles, spec.recipe, context)

    async def _digest(self, recipe: ImageRecipe, context: BuildContext) -> str:
        known = self._digests.get(recipe)
        if known is None or known[0] != context.signature:
            digest = await asyncio.to_thread(context.digest_of, recipe)
            self._digests[recipe] = known = (context.signature, digest)
        return known[1]


class CloudBuild(Protocol):
    """One build by the SDK of a cloud."""

    async def exists(self) -> bool:
        """Return whether the cloud has the image, ready for use."""
        ...

    async def run(self, log: BuildLog) -> None:
        """Build the image in an event loop of its own, and append the lines of the log."""
        ...


class ImageBuilds:
    """Builds each image once for all processes of this user on this machine."""

    def __init__(self, locks: Path) -> None:
        self._locks = locks
        self._ready = set[str]()

    async def ensure(self, plan: ImagePlan, build: CloudBuild) -> None:
        """Run a build, unless the cloud has its image. Other processes here wait meanwhile.

        Raises:
            SandboxTimeoutError: The build took too long.
            SandboxError: The build failed. The message has the end of its log.
        """
        if plan.digest in self._ready:
            return
        if not await build.exists():
            async with build_lock(self._locks, plan.digest):
                if not await build.exists():
                    await _run(plan, build)
        self._ready.add(plan.digest)

    def forget(self, plan: ImagePlan) -> None:
        """Ask the cloud again: the image may have been deleted."""
        self._ready.discard(plan.digest)


class ImageBuild(CloudBuild, Protocol):
    """A build with the link, and with `SAVE_ENVIRONMENT`."""

    @property
    def name(self) -> str:
        """The cloud's name of the image."""
        ...

    def image(self, env: Mapping[str, str]) -> ImageConfig:
        """Return the configuration of the image, by the variables of its build."""
        ...


class BuiltSandbox(CloudSandbox, HasImage, Protocol):
    """A `CloudSandbox` of a built image."""

    def read(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the pieces of a file inside, which the image may have made endless.

        Raises:
            SandboxError: The file cannot be read.
        """
        ...


SandboxT = TypeVar("SandboxT", bound=BuiltSandbox)


class BuiltImages:
    """The images of an account: own ones, which specs name by a scheme, and built ones."""

    def __init__(
        self,
        scheme: str,
        default: str,
        *,
        salt: str,
        locks: Path,
        build_of: Callable[[ImagePlan], ImageBuild],
    ) -> None:
        """`default` is the account's own image for specs without one; see `ImagePlanner`."""
        self._scheme, self._default = scheme, default
        self._planner, self._builds = ImagePlanner(salt), ImageBuilds(locks)
        self._build_of = build_of
        self._configs: dict[str, ImageConfig] = {}
        """By the cloud's name. Nothing that ran in a sandbox can change them."""

    def _with_image(self, spec: SandboxSpec) -> SandboxSpec:
        if spec.recipe is not None or spec.image not in {None, "", "host"}:
            return spec
        return spec.model_copy(update={"image": f"{self._scheme}{self._default}"})

    def _is_own(self, spec: SandboxSpec) -> bool:
        return (spec.image or "").startswith(self._scheme) and not spec.bundles

    async def build(self, spec: SandboxSpec) -> None:
        """Build the image of a spec, unless the account has it; see `ImageBuilds.ensure`."""
        spec = self._with_image(spec)
        if not self._is_own(spec):
            plan = await self._planner.plan(spec)
            await self._builds.ensure(plan, self._build_of(plan))

    async def create(
        self, spec: SandboxSpec, create: Callable[[str], Awaitable[SandboxT]]
    ) -> SandboxT:
        """Return what `create` returns for the name of the image of a spec.

        Raises:
            SandboxUnsupportedError: The image does not exist any more. The next `build` builds it.
            SandboxError: The image has too many variables. The sandbox is deleted.
        """
        spec = self._with_image(spec)
        if self._is_own(spec):
            return await create((spec.image or "").removeprefix(self._scheme))
        plan = await self._planner.plan(spec)
        build = self._build_of(plan)
        try:
            sandbox = await create(build.name)
        except SandboxUnsupportedError:
            self._builds.forget(plan)
            raise
        try:
            if build.name not in self._configs:
                self._configs[build.name] = build.image(await _variables(sandbox))
        except BaseException:
            await finish(sandbox.delete())
            raise
        sandbox.image, sandbox.has_link = self._configs[build.name], True
        return sandbox


async def _variables(sandbox: BuiltSandbox) -> dict[str, str]:
    data = b""
    async with aclosing(sandbox.read(_ENVIRONMENT)) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > _MAX_ENVIRONMENT:
                raise SandboxError(
                    f"the variables of the image have more than {_MAX_ENVIRONMENT} bytes"
                )
    pairs = (row.partition("=") for row in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals and name not in _SHELL}


async def _run(plan: ImagePlan, build: CloudBuild) -> None:
    log = BuildLog(maxlen=_LINES)
    try:
        async with asyncio.timeout(plan.seconds):
            # SDKs pack and hash files without a pause for other tasks.
            await in_own_loop(lambda: build.run(log))
    except TimeoutError as error:
        raise SandboxTimeoutError(
            f"the image was not built in {plan.seconds:g} s{_end(log)}",
            hint="raise the time limit of the build, or make the image smaller",
        ) from error
    except SandboxError as error:
        error.args = (f"{error.args[0]}{_end(log)}", *error.args[1:])
        raise


def _read(bundles: tuple[tuple[str, str], ...]) -> str:
    """Return the digest of the link. Check that the bundles exist."""
    for source, _ in bundles:
        if not Path(source).exists():
            raise SandboxError(f"the bundle {source!r} does not exist", hint="install the agent")
    return hashlib.sha256(link_path().read_bytes()).hexdigest()


def _end(log: BuildLog) -> str:
    """Return the end of a build's log, on lines of its own."""
    text = "\n".join(log)[-_SHOWN:]
    return f"\n{text}" if text else ""
