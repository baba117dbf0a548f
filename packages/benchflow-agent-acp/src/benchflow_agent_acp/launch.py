"""Putting an agent's files into the sandbox and starting its process there."""

import shlex
import tempfile
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath

from benchflow_contracts import AgentError, Process, Role, Sandbox, SandboxError

from .declaration import AgentDecl, wants_asks
from .install import Installation
from .render import Values, render
from .shipped import shipped_file
from .tool_servers import servers_in_env

_SETUP_SEC = 60.0
API_KEY = "benchflow-placeholder-key"
"""What the agent sends as its key. The relay on the host puts the real one in its place."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Launcher:
    """Prepares the sandbox for one agent and spawns it as the sandbox's user."""

    def __init__(
        self, decl: AgentDecl, sandbox: Sandbox, role: Role, *, home: str | None = None
    ) -> None:
        """`home` is that of the sandbox's user, when it is known."""
        self.found_home = home
        self._decl = decl
        self._sandbox = sandbox
        self._role = role
        self.values: Values | None = None

    async def launch(self, installed: Installation) -> Process:
        """Write the config files and skills, then start the process.

        Raises:
            AgentError: A template needs a value that is missing, or it did not start.
        """
        values = self.values = await self._values()
        await self._put_files(values)
        await self._put_skills(values)
        command = [self._decl.launch.cmd, *self._decl.launch.args]
        if wants_asks(self._role):
            command += self._decl.ask.args
        try:
            return await self._sandbox.spawn(
                [render(part, values) for part in command], env=self._env(values, installed)
            )
        except SandboxError as error:
            raise AgentError(f"agent {self._decl.id!r} did not start: {error}") from error

    async def _values(self) -> Values:
        spec = self._sandbox.spec
        endpoint = spec.model
        if endpoint is None and self._decl.model.wire != "none":
            raise AgentError(
                f"agent {self._decl.id!r} acts through a model, but the sandbox has no endpoint",
                hint="give the rollout a model endpoint",
            )
        return Values(
            base_url=f"http://127.0.0.1:{endpoint.port}" if endpoint else None,
            api_key=API_KEY,
            model=self._role.model,
            home=self._role.env.get("HOME") or await self._find_home(),
            workdir=spec.workdir,
        )

    async def _find_home(self) -> str:
        if self.found_home is None:
            self.found_home = (await self._shell("cd && pwd")).strip()
        return self.found_home

    def _env(self, values: Values, installed: Installation) -> dict[str, str]:
        templates = {**self._decl.telemetry.env, **self._decl.launch.env}
        if wants_asks(self._role):
            templates |= self._decl.ask.env
        path = self._sandbox.spec.env.get("PATH", _SYSTEM_PATH)
        return {
            "HOME": values.home,
            **installed.env,
            "PATH": ":".join((*installed.path, path)),
            **{name: render(template, values) for name, template in templates.items()},
            **servers_in_env(self._decl.mcp, self._role.mcp_servers),
            **self._role.env,
        }

    async def _put_files(self, values: Values) -> None:
        user = self._sandbox.spec.user
        with tempfile.TemporaryDirectory() as scratch:
            local = Path(scratch) / "file"
            for target, template in self._decl.launch.files.items():
                remote = render(target, values)
                local.write_text(render(template, values))
                # Made by the agent's user first, since `upload` makes parents as root.
                await self._shell(f"mkdir -p -- {shlex.quote(str(Path(remote).parent))}")
                await self._sandbox.upload(local, remote, user=user)
        builtin = self._decl.distribution.builtin
        if builtin is None:
            return
        if builtin.file.endswith(".py"):
            folder = shipped_file(builtin.file, builtin.target)
            await self._sandbox.upload(folder, str(PurePosixPath(builtin.target).parent))
            return
        with as_file(files("benchflow_agent_acp").joinpath(builtin.file)) as program:
            await self._sandbox.upload(program, builtin.target)

    async def _put_skills(self, values: Values) -> None:
        source = self._role.skills_dir
        if source is None:
            return
        skills = self._decl.skills
        targets = [f"{values.home}/{path}" for path in skills.home]
        targets += [f"{values.workdir}/{path}" for path in skills.workspace]
        if not targets:
            raise AgentError(f"agent {self._decl.id!r} has no place for skills")
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
