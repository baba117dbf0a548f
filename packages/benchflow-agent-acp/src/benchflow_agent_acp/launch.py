"""Put an agent's files into the sandbox and start its process there."""

import py_compile
import shlex
import shutil
import sys
import tempfile
from functools import cache
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from benchflow_contracts import MODEL_DOOR, AgentError, Process, Role, Sandbox, SandboxError
from benchflow_contracts.scratch import scratch_directory, scratch_root

from .declaration import AgentDecl, BuiltinSource, wants_asks
from .install import Installation
from .render import Values, render
from .tool_servers import servers_in_env

_SETUP_SEC = 60.0
API_KEY = "benchflow-placeholder-key"
"""The key that the agent sends. The relay on the host replaces it with the real key. A door with
the path `token` has a key of its own for the agent."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Launcher:
    """Prepares the sandbox for one agent and starts the agent as the sandbox's user."""

    def __init__(
        self, decl: AgentDecl, sandbox: Sandbox, role: Role, *, home: str | None = None
    ) -> None:
        """`home` is the home directory of the sandbox's user, if it is known."""
        self.home = home
        """The home directory of the sandbox's user, once it is known."""
        self._decl = decl
        self._sandbox = sandbox
        self._role = role
        self.values: Values | None = None

    async def prepare(self, installation: Installation) -> dict[str, str]:
        """Write the config files, skills and the program; return the process's variables.

        Raises:
            AgentError: A template needs a missing value, or a file cannot be written.
        """
        values = self.values = await self._values()
        await self._put_files(values)
        if self._decl.distribution.builtin is not None:
            await self._put_program(self._decl.distribution.builtin)
        await self._put_skills(values)
        return self._env(values, installation)

    async def launch(self, installation: Installation) -> Process:
        """Prepare the sandbox, then start the process.

        Raises:
            AgentError: As `prepare`, or the process did not start.
        """
        env = await self.prepare(installation)
        values = self.values
        assert values is not None
        command = [self._decl.launch.cmd, *self._decl.launch.args]
        if wants_asks(self._role):
            command += self._decl.ask.args
        try:
            return await self._sandbox.spawn([render(part, values) for part in command], env=env)
        except SandboxError as error:
            raise AgentError(f"agent {self._decl.id!r} did not start: {error}") from error

    async def _values(self) -> Values:
        spec = self._sandbox.spec
        door = spec.door(MODEL_DOOR)
        if door is None and self._decl.model.wire != "none":
            raise AgentError(
                f"agent {self._decl.id!r} acts through a model, but the sandbox has no door to it",
                hint="give the rollout a model endpoint",
            )
        inside = None if door is None else door.inside
        return Values(
            base_url=None if inside is None else inside.url,
            api_key=(None if inside is None else inside.bearer) or API_KEY,
            model=self._role.model,
            home=self._role.env.get("HOME") or await self._find_home(),
            workdir=spec.workdir,
        )

    async def _find_home(self) -> str:
        if self.home is None:
            self.home = (await self._shell("cd && pwd")).strip()
        return self.home

    def _env(self, values: Values, installation: Installation) -> dict[str, str]:
        templates = {**self._decl.telemetry.env, **self._decl.launch.env}
        if wants_asks(self._role):
            templates |= self._decl.ask.env
        path = self._sandbox.spec.env.get("PATH", _SYSTEM_PATH)
        return {
            "HOME": values.home,
            **installation.env,
            "PATH": ":".join((*installation.path, path)),
            **{name: render(template, values) for name, template in templates.items()},
            **servers_in_env(self._decl.mcp, self._role.mcp_servers),
            **self._role.env,
        }

    async def _put_files(self, values: Values) -> None:
        user = self._sandbox.spec.user
        with scratch_directory("agent") as scratch:
            local = scratch / "file"
            for target, template in self._decl.launch.files.items():
                remote = render(target, values)
                local.write_text(render(template, values))
                # The agent's user creates the directory, because `upload` creates it as root.
                await self._shell(f"mkdir -p -- {shlex.quote(str(Path(remote).parent))}")
                await self._sandbox.upload(local, remote, user=user)

    async def _put_program(self, source: BuiltinSource) -> None:
        program = _find_program(source)
        with as_file(program) as local:
            if local.suffix != ".py":
                await self._sandbox.upload(local, source.target)
                return
            folder = compiled_copy(local, source.target)
        await self._sandbox.upload(folder, str(PurePosixPath(source.target).parent))

    async def _put_skills(self, values: Values) -> None:
        source = self._role.skills_dir
        if source is None:
            return
        skills = self._decl.skills
        targets = [f"{values.home}/{path}" for path in skills.home]
        targets += [f"{values.workdir}/{path}" for path in skills.workspace]
        if not targets:
            raise AgentError(f"agent {self._decl.id!r} has no directory for skills")
        for target in targets:
            quoted = shlex.quote(target)
            await self._shell(f"mkdir -p -- {quoted} && cp -r -- {shlex.quote(source)}/. {quoted}/")

    async def _shell(self, script: str) -> str:
        result = await self._sandbox.exec(["sh", "-c", script], timeout=_SETUP_SEC)
        if not result.ok:
            raise AgentError(
                f"cannot prepare agent {self._decl.id!r}: {script!r:.200}: {result.stderr[:300]}"
            )
        return result.stdout


def _find_program(source: BuiltinSource) -> Traversable:
    try:
        program = files(source.package).joinpath(source.file)
    except (ImportError, TypeError) as error:
        raise AgentError(
            f"package {source.package!r} cannot be imported: {error}",
            hint="install the package that ships the agent's program",
        ) from error
    if not (program.is_file() or program.is_dir()):
        raise AgentError(f"package {source.package!r} has no file {source.file!r}")
    return program


@cache
def compiled_copy(program: Path, target: str) -> Path:
    """Return a directory with a Python file and its compiled form, for the parent of `target`.

    This process compiles a program once. Python names compiled files by its version, so another
    version of Python inside the sandbox compiles the source itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="program-", dir=scratch_root()))
    source = folder / PurePosixPath(target).name
    shutil.copyfile(program, source)
    compiled = folder / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(
        str(source),
        cfile=str(compiled),
        dfile=target,
        doraise=True,
        optimize=0,
        # The agent's user cannot write there, so the two files always match.
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return folder
