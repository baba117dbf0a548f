"""Checks of services: containers beside a sandbox, which start and end with it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.container import ContainerOptions, ServiceCondition
from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    TransferError,
)
from benchflow_contracts.sandbox import Sandbox
from benchflow_contracts.service import ServiceHealth, ServiceSpec
from benchflow_contracts.services_support import SupportsServices

from benchflow_testing.check import (
    CheckFailedError,
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    lacks_services,
    until,
)

_REACH = """
import socket, sys
with socket.create_connection((sys.argv[1], 8000), timeout=9) as one:
    print(one.recv(9).decode())
"""
_SERVE = """
import socket
with socket.create_server(("", 8000)) as server:
    while True:
        with server.accept()[0] as client:
            client.sendall(b"pong")
"""
_IDLE = "sleep 1000"


def _has_services(subject: SandboxSubject) -> str | None:
    return "capabilities: there are services" if subject.capabilities.services else None


def _service(subject: SandboxSubject, name: str, text: str, **more: object) -> ServiceSpec:
    shell = {"entrypoint": ("sh", "-c"), "command": (text,)}
    given = {"name": name, "image": subject.base or "scratch", **shell, **more}
    return ServiceSpec.model_validate(given)


@asynccontextmanager
async def _beside(
    subject: SandboxSubject, *services: ServiceSpec, **more: object
) -> AsyncGenerator[tuple[Sandbox, SupportsServices]]:
    async with subject.open_sandbox(spec=subject.spec_with(services=services, **more)) as sandbox:
        if not isinstance(sandbox, SupportsServices):
            raise CheckFailedError("a sandbox with services does not have SupportsServices")
        yield sandbox, sandbox


@promise(lacks_services)
async def a_service_is_reached_by_its_name(subject: SandboxSubject) -> None:
    """A service is also reached by its aliases; it reaches the sandbox as `main`."""
    serve = _service(
        subject, "web", f"exec python3 -I -c '{_SERVE}'", networks={"default": ("pages",)}
    )
    async with _beside(subject, serve) as (sandbox, services):
        if not (await sandbox.exec("command -v python3")).ok:
            raise CheckSkippedError("the sandbox does not have python3, which the check runs")

        async def answers() -> bool:
            return (await sandbox.exec(["python3", "-I", "-c", _REACH, "web"])).ok

        await until(answers, "the service does not answer by its name")
        found = await sandbox.exec(["python3", "-I", "-c", _REACH, "pages"])
        expect_equal(found.stdout, "pong\n", "the answer by another name")
        back = "import socket; socket.getaddrinfo('main', 1)"
        code = await services.service_exec("web", ["python3", "-I", "-c", back])
        expect_equal(code, 0, "the exit code of who looks for `main`")


@promise(lacks_services)
async def create_waits_for_needed_services(subject: SandboxSubject) -> None:
    """`completed` and `healthy` hold before the first command, for services and for the sandbox."""
    own = {"volumes": {"/data": "shared"}}
    seed = _service(subject, "seed", "sleep 0.5; echo seeded > /data/seed", **own)
    copy = _service(
        subject,
        "copy",
        f"cp /data/seed /data/copy; sleep 0.5; touch /data/ready; {_IDLE}",
        needs={"seed": "completed"},
        health=ServiceHealth(
            test=("CMD-SHELL", "test -e /data/ready"), interval_sec=0.1, retries=100
        ),
        **own,
    )
    options = ContainerOptions(needs={"copy": "healthy"}, volumes={"/got": "shared"})
    async with _beside(subject, copy, seed, container=options) as (sandbox, _):
        found = await subject.output(sandbox, "cat /got/copy; ls /got/ready")
        expect_equal(found, "seeded\n/got/ready\n", "what was there at the first command")


@promise(lacks_services)
async def a_service_that_fails_is_named(subject: SandboxSubject) -> None:
    """If a service fails, `create` names the service in an error and leaves no sandbox."""
    await _starts_nothing(subject, _service(subject, "broken", "exit 7"), needs="completed")


@promise(lacks_services)
async def a_service_that_is_never_healthy_is_named(subject: SandboxSubject) -> None:
    """If a needed service is never healthy, `create` names it and leaves no sandbox."""
    health = ServiceHealth(test=("CMD", "false"), interval_sec=0.1, retries=1)
    await _starts_nothing(subject, _service(subject, "broken", _IDLE, health=health), "healthy")


async def _starts_nothing(
    subject: SandboxSubject, service: ServiceSpec, needs: ServiceCondition
) -> None:
    key = uuid4().hex
    options = ContainerOptions(needs={service.name: needs})
    spec = subject.spec_with(services=(service,), container=options)
    call = subject.provider.create(spec, identity=RolloutIdentity(scope=key))
    error = await expect_error(SandboxError, call, f"a service that is not {needs}")
    expect(service.name in str(error), f"the error does not name the service: {error}")
    left = [each.id async for each in subject.provider.sandboxes(scope=key)]
    expect_equal(left, list[str](), "the sandboxes that are left")


@promise(lacks_services)
async def a_command_in_a_service_returns_its_exit_code(subject: SandboxSubject) -> None:
    """Text and argument vectors work. An unknown service and a timeout raise typed errors."""
    async with _beside(subject, _service(subject, "one", _IDLE)) as (_, services):
        expect_equal(await services.service_exec("one", "exit 7"), 7, "the exit code of text")
        expect_equal(await services.service_exec("one", ["true"]), 0, "the exit code of a vector")
        await expect_error(SandboxError, services.service_exec("two", "true"), "an unknown service")
        call = services.service_exec("one", "sleep 30", timeout=0.5)
        await expect_error(SandboxTimeoutError, call, "a command beyond its time")


@promise(lacks_services)
async def files_of_a_service_are_copied_out(subject: SandboxSubject) -> None:
    """The limits of `Sandbox.download` apply, and links are not followed."""
    text = f"mkdir -p /k/d; echo 1 > /k/d/f; ln -s /etc/passwd /k/link; touch /k/done; {_IDLE}"
    async with _beside(subject, _service(subject, "one", text)) as (_, services):

        async def made() -> bool:
            return await services.service_exec("one", "test -e /k/done") == 0

        await until(made, "the service did not make its files")
        local = subject.fresh()
        await services.service_download("one", "/k/d", local)
        expect_equal((local / "f").read_text(), "1\n", "the file of a service")
        for remote, most in (("/k/link", 1 << 30), ("/k/d", 1), ("/k/none", 1 << 30)):
            call = services.service_download("one", remote, subject.fresh(), max_bytes=most)
            await expect_error(TransferError, call, f"{remote!r} of a service, of {most} bytes")


@promise(lacks_services)
async def services_end_with_their_sandbox(subject: SandboxSubject) -> None:
    """Volumes end with their sandbox, too. The volumes of the next sandbox are empty."""
    one = _service(subject, "one", _IDLE, volumes={"/data": "shared"})
    for _ in range(2):
        async with _beside(subject, one) as (_, services):
            made = await services.service_exec("one", "mkdir /data/fresh")
            expect_equal(made, 0, "the exit code of who makes what a new volume lacks")
        await expect_error(SandboxError, services.service_exec("one", "true"), "an ended service")


@promise(_has_services)
async def services_are_refused_if_unsupported(subject: SandboxSubject) -> None:
    """Services and container options raise SandboxUnsupportedError. They are not ignored."""
    spec = subject.spec_with(services=(_service(subject, "one", _IDLE),))
    await expect_error(SandboxUnsupportedError, subject.provider.create(spec), "a service")
    spec = subject.spec_with(container=ContainerOptions(hostname="other"))
    await expect_error(SandboxUnsupportedError, subject.provider.create(spec), "a hostname")


SERVICE_CHECKS: tuple[SandboxCheck, ...] = (
    a_service_is_reached_by_its_name,
    create_waits_for_needed_services,
    a_service_that_fails_is_named,
    a_service_that_is_never_healthy_is_named,
    a_command_in_a_service_returns_its_exit_code,
    files_of_a_service_are_copied_out,
    services_end_with_their_sandbox,
    services_are_refused_if_unsupported,
)
