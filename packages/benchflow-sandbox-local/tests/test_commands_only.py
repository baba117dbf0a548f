"""The base classes of the contracts make a provider of little more than `exec`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from benchflow_contracts import (
    BaseProvider,
    BaseSandbox,
    ExecResult,
    Sandbox,
    SandboxCapabilities,
    SandboxSpec,
    SandboxUnsupportedError,
    TransferError,
    UsageError,
)
from benchflow_sandbox_local import LocalProvider
from benchflow_testing import check_sandbox, sandbox_checks

pytestmark = pytest.mark.usefixtures("root")


class CommandsOnly(BaseSandbox):
    """A sandbox that can run commands, and nothing else."""

    has_users = True

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox.id, sandbox.spec)
        self.sandbox = sandbox

    async def exec(self, cmd: str | Sequence[str], **rest: object) -> ExecResult:
        return await self.sandbox.exec(cmd, **rest)  # type: ignore[arg-type]

    async def kill_all(self) -> None:
        await self.sandbox.kill_all()  # type: ignore[attr-defined]

    async def teardown(self) -> None:
        self.is_closed = True
        await self.sandbox.teardown()


class CommandsOnlyProvider(BaseProvider):
    name = "commands-only"

    def __init__(self) -> None:
        super().__init__()
        self._local = LocalProvider()

    async def capabilities(self) -> SandboxCapabilities:
        return SandboxCapabilities(
            isolation="namespaces",
            network_modes=frozenset({"none"}),
            users=True,
            spawn=False,
            kill_all=True,
        )

    async def start(self, spec: SandboxSpec) -> BaseSandbox:
        return CommandsOnly(await self._local.create(spec))

    async def aclose(self) -> None:
        await super().aclose()
        await self._local.aclose()


def test_it_passes_the_kit_and_can_grade() -> None:
    report = asyncio.run(check_sandbox(CommandsOnlyProvider()))
    assert [(result.name, result.reason) for result in report.failed] == []
    assert report.can("grade")
    assert not report.can("run ACP agents")
    assert len(report) == len(sandbox_checks())


def in_sandbox(work: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec | None = None) -> None:
    async def main() -> None:
        provider = CommandsOnlyProvider()
        try:
            await work(await provider.create(spec or SandboxSpec()))
        finally:
            await provider.aclose()

    asyncio.run(main())


def is_empty(directory: Path) -> bool:
    return not list(directory.iterdir())


def test_hard_links_come_out_as_files(tmp_path: Path) -> None:
    async def work(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir out; echo 1 > out/a; ln out/a out/b")
        await sandbox.download("/workspace/out", tmp_path / "out")
        assert [p.read_text() for p in sorted((tmp_path / "out").iterdir())] == ["1\n", "1\n"]

    in_sandbox(work)


def test_sockets_and_files_below_links_do_not_come_out(tmp_path: Path) -> None:
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('out/socket')"

    async def work(sandbox: Sandbox) -> None:
        await sandbox.exec(f'mkdir out; python3 -c "{bind}"; ln -s /etc etc')
        for path in ("/workspace/out", "/workspace/etc/passwd", "/workspace/../etc/passwd"):
            with pytest.raises(TransferError):
                await sandbox.download(path, tmp_path / "out")
            assert is_empty(tmp_path)

    in_sandbox(work)


def test_a_tree_larger_than_the_output_cap_comes_out_whole(tmp_path: Path) -> None:
    async def work(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir out; head -c 100000 /dev/urandom > out/a; sha256sum out/a > sum")
        await sandbox.download("/workspace/out", tmp_path / "out")
        await sandbox.upload(tmp_path / "out", "/workspace/again")
        sums = await sandbox.exec("cut -c1-64 sum; sha256sum again/a | cut -c1-64")
        first, second = sums.stdout.split()
        assert first == second

    in_sandbox(work, SandboxSpec(limits={"output_bytes": 1000}))  # type: ignore[arg-type]


def test_an_upload_keeps_links_to_directories_and_modes_of_directories(tmp_path: Path) -> None:
    for name in ("bin", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "new").write_text("new")

    async def work(sandbox: Sandbox) -> None:
        listed = "stat -c '%F %a' /bin /tmp"
        before = (await sandbox.exec(listed)).stdout
        await sandbox.upload(tmp_path, "/")
        assert (await sandbox.exec(listed)).stdout == before
        assert (await sandbox.exec("cat /bin/new /tmp/new")).stdout == "newnew"

    in_sandbox(work)


def test_an_archive_that_a_program_of_the_agent_made_is_checked(tmp_path: Path) -> None:
    evil = (
        "import io, sys, tarfile\n"
        "a = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n"
        "i = tarfile.TarInfo(sys.argv[1]); i.type = tarfile.REGTYPE\n"
        "if sys.argv[1] == 'link': i.type = tarfile.SYMTYPE; i.linkname = '/etc'\n"
        "a.addfile(i); a.close()"
    )

    async def work(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir out")
        for name in ("../out-of-it", "/etc/out-of-it", "link"):
            fake = f'#!/bin/sh\nexec python3 -c "{evil}" {name}\n'
            await sandbox.exec(
                ["sh", "-c", "cat > /usr/local/bin/tar; chmod 755 /usr/local/bin/tar"],
                user="root",
                stdin=fake.encode(),
            )
            with pytest.raises(TransferError, match=name.strip("./")):
                await sandbox.download("/workspace/out", tmp_path / "out")
            assert is_empty(tmp_path)

    in_sandbox(work)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"network": "public"}, SandboxUnsupportedError),
        ({"allowed_hosts": ("example.org",)}, UsageError),
        ({"entrypoint": ("true",)}, SandboxUnsupportedError),
        ({"image": "debian"}, SandboxUnsupportedError),
    ],
)
def test_what_it_does_not_support_is_refused(
    changes: Mapping[str, object], error: type[Exception]
) -> None:
    async def main() -> None:
        with pytest.raises(error):
            await CommandsOnlyProvider().create(SandboxSpec.model_validate(changes))

    asyncio.run(main())
