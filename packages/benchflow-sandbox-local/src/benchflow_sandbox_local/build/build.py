"""One build of a Dockerfile. Each RUN, COPY, ADD and WORKDIR gets a sandbox of its own."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.bundle import Bundle
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, TaskError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import ExecResult, SandboxSpec
from benchflow_contracts.scratch import scratch_directory
from benchflow_contracts.task import IMAGE_NAME
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile, Instruction
from benchflow_sandbox_core.recipe.heredoc import command
from benchflow_sandbox_core.recipe.scope import ARCHITECTURE, Scope
from benchflow_sandbox_core.recipe.words import Words
from benchflow_sandbox_core.thread import StopFlag, run

from benchflow_sandbox_local.box import Box
from benchflow_sandbox_local.rootfs.source import RootSource
from benchflow_sandbox_local.rootfs.store import ImageStore, digest_of
from benchflow_sandbox_local.sandbox import LocalSandbox

from .copier import Copier
from .copy_instruction import CopyInstruction
from .run_mount import RunMount, strip
from .source_files import Tree
from .stage import Stage

_TAIL = 2000
_KNOWN = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
    *("MAINTAINER", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
_SPEC = SandboxSpec(
    user="root", workdir="/", limits=ResourceLimits(pids=16384, disk_mb=16384, output_bytes=1 << 20)
)

Find = Callable[[str], Awaitable[RootSource]]
"""Finds an image by its name."""


Create = Callable[[SandboxSpec, RootSource, dict[str, str]], Awaitable[LocalSandbox]]
"""Starts a sandbox with labels from an image."""


@dataclass(frozen=True, slots=True)
class _StageText:
    """The instructions of one stage."""

    begin: Instruction
    base: str
    names: tuple[str, ...]
    """The number of the stage, and its name in lower case if it has one."""
    body: tuple[Instruction, ...]


class Build:
    """Builds the target stage of a Dockerfile, or the last stage, and the stages that it needs."""

    def __init__(
        self,
        create: Create,
        store: ImageStore,
        find: Find,
        recipe: ImageRecipe,
        file: Dockerfile,
    ) -> None:
        root, name = recipe.context, recipe.dockerfile
        self._create = create
        self._store = store
        self._find = find
        self._root = root
        self._name = name
        self._file = file
        self._tree = Tree.context(root, name, name)
        self._before = Scope.before(file.escape, dict(recipe.args))
        self._parts = self._divide()
        self._target = recipe.target
        self._in_progress = set[int]()
        self._stages: dict[int, Stage] = {}

    async def run(self) -> Stage:
        """Build and return the target stage.

        Raises:
            TaskError: An instruction is malformed, or the target stage does not exist.
            SandboxError: An instruction failed.
        """
        if not self._target:
            return await self._stage(len(self._parts) - 1)
        for number in reversed(range(len(self._parts))):
            if self._target.lower() in self._parts[number].names:
                return await self._stage(number)
        raise TaskError(
            f"the Dockerfile does not have a stage {self._target[:80]!r}",
            where=self._name,
            hint="`target` names a stage: FROM IMAGE AS NAME",
        )

    def _where(self, instruction: Instruction) -> str:
        return f"{self._name}:{instruction.line}"

    def _divide(self) -> list[_StageText]:
        before, parts = self._before, list[_StageText]()
        for instruction in self._file.instructions:
            where = self._where(instruction)
            if instruction.name not in _KNOWN:
                raise TaskError(
                    f"the local sandbox does not support the instruction {instruction.name[:40]!r}",
                    where=where,
                    hint="use the docker sandbox for this task",
                )
            if instruction.name == "FROM":
                parts.append(self._begin(instruction, before.words(where), len(parts)))
            elif parts:
                last = parts[-1]
                parts[-1] = _StageText(last.begin, last.base, last.names, (*last.body, instruction))
            elif instruction.name == "ARG":
                before.apply(instruction, where)
            else:
                raise TaskError(f"{instruction.name} before the first FROM", where=where)
        if not parts:
            raise TaskError("the Dockerfile does not have a FROM", where=self._name)
        return parts

    def _begin(self, instruction: Instruction, words: Words, number: int) -> _StageText:
        named = words.split(instruction.text)
        where = self._where(instruction)
        if len(named) not in {1, 3} or (len(named) == 3 and named[1].lower() != "as"):
            raise TaskError("FROM is `FROM IMAGE [AS NAME]`", where=where)
        platform = words.resolve(dict(instruction.flags).get("platform", ""))
        if platform not in {"", f"linux/{ARCHITECTURE}"}:
            raise SandboxUnsupportedError(
                f"FROM --platform={platform[:80]}: this machine is linux/{ARCHITECTURE}",
                where=where,
                hint="leave --platform out",
            )
        names = (str(number), *(name.lower() for name in named[2:]))
        return _StageText(instruction, named[0], names, ())

    async def _stage(self, number: int) -> Stage:
        if number not in self._stages:
            part = self._parts[number]
            if number in self._in_progress:
                raise TaskError(
                    "the stage depends on itself",
                    where=self._where(part.begin),
                    hint="copy only from earlier stages",
                )
            self._in_progress.add(number)
            stage = await self._base(part.base, self._where(part.begin), number)
            for instruction in part.body:
                await self._step(stage, instruction)
            self._stages[number] = stage
        return self._stages[number]

    async def _base(self, name: str, where: str, before: int) -> Stage:
        """Begin a stage on an earlier stage, on an image, or on `scratch`."""
        number = self._earlier(name, before)
        if number is not None:
            return (await self._stage(number)).child()
        if name == "scratch":
            return Stage.scratch(self._before)
        if not re.match(IMAGE_NAME, name):
            raise TaskError(f"{name[:200]!r} is not the name of an image", where=where)
        try:
            source = await self._find(name)
        except SandboxError as error:
            raise type(error)(f"FROM: {error}", where=where, hint=error.hint) from error
        if source.path is None:
            raise TaskError("FROM cannot use the host's root as an image", where=where)
        return Stage.on(source, self._before)

    def _earlier(self, name: str, before: int) -> int | None:
        for number in reversed(range(before)):
            # Only names: `FROM 0` does not mean the first stage.
            if name.lower() in self._parts[number].names[1:]:
                return number
        return None

    async def _step(self, stage: Stage, instruction: Instruction) -> None:
        where = self._where(instruction)
        try:
            if instruction.name == "RUN":
                await self._run(stage, instruction, where)
            elif instruction.name in {"COPY", "ADD"}:
                await self._copy(stage, CopyInstruction.of(instruction, stage, where))
            elif instruction.name == "WORKDIR":
                await self._workdir(stage, instruction, where)
            else:
                stage.apply(instruction, where)
        except SandboxError as error:
            if error.where is not None:
                raise
            raise type(error)(
                f"{instruction.name}: {error}", where=where, hint=error.hint
            ) from error
        except OSError as error:
            raise SandboxError(f"{instruction.name}: {error}", where=where) from error

    async def _run(self, stage: Stage, instruction: Instruction, where: str) -> None:
        known = {("network", "none"), ("network", "default")}
        flags = {flag for flag in instruction.flags if flag[0] != "mount"} - known
        if flags:
            name, value = min(flags)
            raise SandboxUnsupportedError(
                f"RUN --{name}={value[:80]} is not supported by the local sandbox",
                where=where,
                hint="remove the flag, or use the docker sandbox for this task",
            )
        mounts = [
            RunMount.of(value, stage, where) for key, value in instruction.flags if key == "mount"
        ]
        scope = stage.scope
        argv = (*scope.shell, instruction.text) if instruction.array is None else instruction.array
        if instruction.documents:
            argv = command(instruction.text, instruction.documents, scope.shell, where)
        env, user, cwd = scope.variables, stage.user or "root", stage.workdir or "/"
        key_parts = ["run", *argv, "", user, cwd, *(f"{k}={v}" for k, v in sorted(env.items()))]
        for mount in mounts:
            key_parts += ["mount", *await self._mount_key(mount)]

        async def act(sandbox: LocalSandbox) -> None:
            def empty(stop: StopFlag) -> None:
                for mount in mounts:
                    mount.empty(Copier(sandbox.running.root, None, None, stop))

            if mounts:
                await run(empty)
            result = await sandbox.exec(argv, user=user, cwd=cwd, env=env)
            if not result.ok:
                raise _failed(result, where)

        await self._add_layer(stage, key_parts, act, mounts)

    async def _mount_key(self, mount: RunMount) -> tuple[str, ...]:
        """Return the parts of a key for the content of a mount."""
        options = (mount.target, str(mount.owner), str(mount.mode))
        if mount.copying is None:
            return options
        if mount.copying.from_stage:
            other = await self._other(mount.copying)
            return (*options, *mount.copying.key_parts(("from", other.key)))
        tree = self._tree.at(mount.where)
        digests = await asyncio.to_thread(mount.copying.digests, tree)
        return (*options, *mount.copying.key_parts(digests))

    @asynccontextmanager
    async def _bound(self, mounts: Sequence[RunMount]) -> AsyncGenerator[SandboxSpec]:
        """Copy the files of bind mounts; yield the spec of a sandbox that mounts the copies."""
        with scratch_directory("bind") as directory:
            bundles = list[Bundle]()
            for number, mount in enumerate(mounts):
                if mount.copying is not None:
                    place = directory / str(number)
                    place.mkdir()
                    await self._bind(mount.copying, place)
                    target = Path(mount.target)
                    bundles.append(await asyncio.to_thread(Bundle.of, place / "bind", target))
            yield _SPEC.model_copy(update={"bundles": tuple(bundles)})

    async def _bind(self, copying: CopyInstruction, place: Path) -> None:
        root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not copying.from_stage:
                tree = self._tree.at(copying.where)
                await run(
                    lambda stop: copying.copy(tree, self._root, Copier(root, None, None, stop))
                )
                return
            async with self._box(await self._other(copying)) as box:
                inside = box.running.root
                await run(lambda stop: copying.copy_inside(inside, Copier(root, None, None, stop)))
        finally:
            os.close(root)

    async def _copy(self, stage: Stage, copying: CopyInstruction) -> None:
        if copying.from_stage:
            await self._copy_from(stage, copying)
            return
        tree = self._tree.at(copying.where)
        digests = await asyncio.to_thread(copying.digests, tree)

        async def act(sandbox: LocalSandbox) -> None:
            owner = _owner(sandbox, copying.chown) or (0, 0)

            def work(stop: StopFlag) -> None:
                copier = Copier(sandbox.running.root, owner, copying.mode, stop)
                copying.copy(tree, self._root, copier)

            await run(work)

        await self._add_layer(stage, copying.key_parts(digests), act)

    async def _copy_from(self, stage: Stage, copying: CopyInstruction) -> None:
        other = await self._other(copying)

        async def act(sandbox: LocalSandbox) -> None:
            owner = _owner(sandbox, copying.chown)
            async with self._box(other) as from_box:

                def work(stop: StopFlag) -> None:
                    copier = Copier(sandbox.running.root, owner, copying.mode, stop)
                    copying.copy_inside(from_box.running.root, copier)

                await run(work)

        await self._add_layer(stage, copying.key_parts(("from", other.key)), act)

    async def _other(self, copying: CopyInstruction) -> Stage:
        """Return the stage or image from which the files are copied."""
        name = copying.from_stage
        number = int(name) if name.isdecimal() and int(name) < len(self._parts) else None
        if number is None:
            number = self._earlier(name, len(self._parts) - 1)
        if number is None:
            return await self._base(name, copying.where, 0)
        return await self._stage(number)

    async def _workdir(self, stage: Stage, instruction: Instruction, where: str) -> None:
        stage.workdir = path = stage.path(stage.scope.words(where).resolve(instruction.text))
        user = stage.user or "root"

        async def act(sandbox: LocalSandbox) -> None:
            owner = _owner(sandbox, user)
            await run(lambda stop: Copier(sandbox.running.root, owner, None, stop).ensure(path))

        await self._add_layer(stage, ("workdir", path, user), act)

    async def _add_layer(
        self,
        stage: Stage,
        key_parts: Sequence[str],
        act: Callable[[LocalSandbox], Awaitable[None]],
        mounts: Sequence[RunMount] = (),
    ) -> None:
        """Add a layer to a stage. If the store does not have the layer, `act` creates it."""
        key = digest_of(stage.key, *key_parts)
        async with self._store.new_layer(key) as staging:
            if staging is not None:
                async with self._bound(mounts) as spec, self._box(stage, spec) as sandbox:
                    await act(sandbox)
                    await _box_of(sandbox).copy_changes(staging)
                await asyncio.to_thread(strip, staging, mounts)
        stage.key, stage.lowers = key, (self._store.layer(key), *stage.lowers)

    @asynccontextmanager
    async def _box(self, stage: Stage, spec: SandboxSpec = _SPEC) -> AsyncGenerator[LocalSandbox]:
        source = stage.source(self._store.record(stage.key))
        sandbox = await self._create(spec, source, {})
        try:
            yield sandbox
        finally:
            await sandbox.teardown()


def _box_of(sandbox: LocalSandbox) -> Box:
    box = sandbox.box
    assert isinstance(box, Box)
    return box


def _owner(sandbox: LocalSandbox, name: str) -> tuple[int, int] | None:
    if not name:
        return None
    account = sandbox.running.accounts.look_up(name)
    # As in BuildKit, a number without a group is also the number of the group.
    return account.uid, account.uid if name.isdecimal() else account.gid


def _failed(result: ExecResult, where: str) -> SandboxError:
    output = f"{result.stdout}\n{result.stderr}".strip()[-_TAIL:]
    shown = "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}"
        for char in output
    )
    return SandboxError(
        f"RUN ended with exit code {result.exit_code}:\n{shown}",
        where=where,
        hint="the local sandbox builds without a network; to download files, use the docker"
        " sandbox, or `docker build` the image and name it in the task",
    )
