"""A server with a part of Modal's API, over local sandboxes.

It has the calls of the backend V2 that `benchflow-sandbox-modal` uses by Modal's SDK 1.6, and
refuses all others with UNIMPLEMENTED. It has Modal's limits that matter: tokens of one account,
images by their Dockerfile, a lifetime of at most 24 h that no call extends, an idle timeout, no
ports without a network, names that are unique in an app, short tags, and snapshots of files as
images that end after their time. `modal_memory` has its snapshots of memory, which an account has
only with `memory`.
"""

import asyncio
import base64
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import grpclib.events
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from google.protobuf.empty_pb2 import Empty
from grpclib.const import Status
from grpclib.server import Server
from modal_proto import api_pb2 as pb
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from .egress import Egress
from .garbage import Garbage, GarbageCodec
from .grpc_service import GrpcService, Refusal, Stream, answer, take
from .http import listen, serving
from .modal_memory import MemorySnapshots, name_of
from .modal_policy import BLOCKED, policy_problems, rewrite
from .modal_router import ModalTask, TaskRouter

TOKEN_ID, TOKEN_SECRET = "ak-test", "as-test"
IMAGE = "debian:bookworm-slim"
_DAY = 24 * 3600
_PAGE = 100
_TAG = re.compile(r"[A-Za-z0-9._-]{1,63}")
_DEFINITION = {
    "image_id",
    "timeout_secs",
    "idle_timeout_secs",
    "network_access",
    "open_ports",
    "resources",
    "name",
    "workdir",
    "enable_snapshot",
    "entrypoint_args",
    "experimental_outbound_policy",
}
_BUNDLE = "/etc/modal/ca-bundle.crt"
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Modal sets these variables in a sandbox whose TLS it reads."""
_GENERIC = pb.GenericResult


@dataclass
class HostedSandbox:
    """One sandbox of the account."""

    id: str
    sandbox: Sandbox
    definition: pb.Sandbox
    app: str
    tags: dict[str, str]
    task: ModalTask
    started: float = field(default_factory=time.time)
    timer: asyncio.TimerHandle | None = None
    entry: Process | None = None
    """The command of the sandbox."""
    expires_at: float | None = None
    """When the memory snapshot of a restored sandbox ends, and each one of the sandbox, too."""


class ModalServer:
    """One account. `failures` are errors for the next calls that create a sandbox."""

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        images: Mapping[str, SandboxSpec],
        outside: Mapping[str, int] = MappingProxyType({}),
        memory: bool = False,
    ) -> None:
        self.has_memory, self.memory = memory, MemorySnapshots(provider)
        self.egress = Egress(outside)
        self.garbage = Garbage()
        self._provider = provider
        self._images = images
        self.url = ""
        self.made: dict[str, HostedSandbox] = {}
        self._ended: dict[str, pb.GenericResult] = {}
        self._by_id: dict[str, SandboxSpec] = {}
        self.snapshots: dict[str, SandboxImage] = {}
        """The snapshots that exist, by the ids of their images."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._apps: dict[str, str] = {}
        self._token = _jwt()
        self.failures: list[tuple[Refusal, bool]] = []
        """An error, and whether the sandbox is created all the same."""
        self.creations = 0
        self.removed = asyncio.Event()
        """Set when a sandbox was deleted or has ended."""
        self._ending = set[asyncio.Task[None]]()
        self.router = TaskRouter(self._snapshot, self._snapshot_memory)

    async def check(self, event: grpclib.events.RecvRequest) -> None:
        """Refuse a call without the tokens of the account, or of the sandbox's task."""
        metadata: Mapping[str, Any] = event.metadata
        if event.method_name.startswith("/modal.task_command_router."):
            self.router.check(str(metadata.get("authorization", "")))
            return
        token = metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")
        if token != (TOKEN_ID, TOKEN_SECRET):
            raise Refusal(Status.UNAUTHENTICATED, "Token ID or secret is not valid")
        needs_token = event.method_name.endswith("V2")
        if needs_token and metadata.get("x-modal-auth-token") != self._token:
            raise Refusal(Status.UNAUTHENTICATED, "the auth token is not valid")

    async def client_hello(self, stream: Stream) -> None:
        """Confirm the tokens."""
        await take(stream, set())
        await answer(stream, pb.ClientHelloResponse())

    async def auth_token_get(self, stream: Stream) -> None:
        """Return the token of the calls for sandboxes."""
        await take(stream, set())
        await answer(stream, pb.AuthTokenGetResponse(token=self._token))

    async def environment_get_or_create(self, stream: Stream) -> None:
        """Return the one environment."""
        await take(stream, {"deployment_name", "object_creation_type"})
        settings = pb.EnvironmentSettings(image_builder_version="2025.06")
        metadata = pb.EnvironmentMetadata(name="main", settings=settings)
        await answer(
            stream, pb.EnvironmentGetOrCreateResponse(environment_id="en-main", metadata=metadata)
        )

    async def app_get_or_create(self, stream: Stream) -> None:
        """Return an app by its name."""
        request = await take(stream, {"app_name", "environment_name", "object_creation_type"})
        app = self._apps.setdefault(request.app_name, f"ap-{secrets.token_hex(11)}")
        await answer(stream, pb.AppGetOrCreateResponse(app_id=app))

    async def image_get_or_create(self, stream: Stream) -> None:
        """Build an image whose Dockerfile is one `FROM`; others fail as a build does."""
        request = await take(stream, {"app_id", "image", "builder_version", "namespace"})
        commands = list(request.image.dockerfile_commands)
        name = commands[0].removeprefix("FROM ") if len(commands) == 1 else ""
        image = f"im-{name.encode().hex()}"
        if name in self._images:
            self._by_id[image] = self._images[name]
            result = _GENERIC(status=_GENERIC.GENERIC_STATUS_SUCCESS)
        else:
            result = _GENERIC(
                status=_GENERIC.GENERIC_STATUS_FAILURE, exception=f"cannot build {commands}"
            )
        await answer(stream, pb.ImageGetOrCreateResponse(image_id=image, result=result))

    async def image_from_id(self, stream: Stream) -> None:
        """Find an image of the account by its id."""
        request = await take(stream, {"image_id"})
        if request.image_id not in self._by_id:
            raise Refusal(Status.NOT_FOUND, f"no image {request.image_id}")
        await answer(stream, pb.ImageFromIdResponse(image_id=request.image_id))

    async def image_delete(self, stream: Stream) -> None:
        """Delete an image. Its sandboxes continue."""
        request = await take(stream, {"image_id"})
        if request.image_id not in self._by_id:
            raise Refusal(Status.NOT_FOUND, f"no image {request.image_id}")
        await self.delete_image(request.image_id)
        await answer(stream, Empty())

    async def delete_image(self, image: str) -> None:
        """Delete an image. Idempotent."""
        self._by_id.pop(image, None)
        if image in self._timers:
            self._timers.pop(image).cancel()
        if image in self.snapshots:
            await self._provider.discard(self.snapshots.pop(image))

    async def _snapshot(self, task: ModalTask, seconds: int) -> str:
        """Take a snapshot of the files of a sandbox; return the id of the image."""
        made = self._of(task)
        taken = await made.sandbox.snapshot("filesystem")
        image = f"im-{secrets.token_hex(11)}"
        self.snapshots[image] = taken
        self._by_id[image] = self._by_id[made.definition.image_id]
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._timers[image] = loop.call_later(
                seconds, lambda: self._in_background(self.delete_image(image))
            )
        return image

    def _of(self, task: ModalTask) -> HostedSandbox:
        (made,) = [each for each in self.made.values() if each.task is task]
        return made

    async def _snapshot_memory(self, task: ModalTask) -> str:
        """Take a snapshot of the memory of a sandbox, which ends; return its id."""
        made = self._of(task)
        name = await self.memory.take(made)
        await self.remove(made.id)
        return name

    async def sandbox_snapshot_get(self, stream: Stream) -> None:
        """Find a snapshot of memory by its id."""
        name = (await take(stream, {"snapshot_id"})).snapshot_id
        self.memory.find(name)
        metadata = pb.SandboxSnapshotHandleMetadata(is_v2=True)
        response = pb.SandboxSnapshotGetResponse(snapshot_id=name, handle_metadata=metadata)
        await answer(stream, response)

    async def sandbox_restore_v2(self, stream: Stream) -> None:
        """Create a sandbox from a snapshot of memory. It has no tags."""
        known = {"snapshot_id", "sandbox_name_override", "sandbox_name_override_type"}
        request = await take(stream, known)
        snapshot = self.memory.find(request.snapshot_id)
        definition = pb.Sandbox()
        definition.CopyFrom(snapshot.definition)
        definition.name = name_of(request, snapshot)
        self._refuse_name(snapshot.app, definition.name)
        failure, made_anyway = self.failures.pop(0) if self.failures else (None, True)
        made = None
        if made_anyway:
            self.creations += 1
            sandbox, entry = await self.memory.restore(snapshot)
            made = self._add(sandbox, definition, snapshot.app, {}, entry)
            made.expires_at = snapshot.expires_at
        if failure is not None or made is None:
            raise failure or Refusal(Status.INTERNAL, "a failure of a test")
        access = pb.CommandRouterAccess(url=self.url, jwt=made.task.token)
        response = pb.SandboxRestoreV2Response(sandbox_id=made.id, task_id=made.task.id)
        response.command_router_access.CopyFrom(access)
        await answer(stream, response)

    async def sandbox_create_v2(self, stream: Stream) -> None:
        """Create a sandbox. Its name is unique among the running ones of the app."""
        request = await take(stream, {"app_id", "definition", "tags"})
        self._refuse_unknown(request)
        failure, made_anyway = self.failures.pop(0) if self.failures else (None, True)
        made = await self._make(request) if made_anyway else None
        if failure is not None or made is None:
            raise failure or Refusal(Status.INTERNAL, "a failure of a test")
        access = pb.CommandRouterAccess(url=self.url, jwt=made.task.token)
        await answer(
            stream,
            pb.SandboxCreateV2Response(
                sandbox_id=made.id,
                task_id=made.task.id,
                metadata=pb.SandboxHandleMetadata(app_id=made.app),
                command_router_access=access,
            ),
        )

    def _refuse_unknown(self, request: Any) -> None:  # noqa: ANN401
        given = request.definition
        unknown = {each.name for each, _ in given.ListFields()} - _DEFINITION
        tags = [text for tag in request.tags for text in (tag.tag_name, tag.tag_value)]
        reasons = {
            f"unknown fields: {sorted(unknown)}": unknown,
            "timeout is over 24 h": not 0 < given.timeout_secs <= _DAY,
            "ports need a network": given.network_access.network_access_type == BLOCKED
            and given.open_ports.ports,
            "tags: 1 to 63 characters of A-Z a-z 0-9 . _ -": not all(map(_TAG.fullmatch, tags)),
            "this account has no snapshots of memory": given.enable_snapshot
            and not self.has_memory,
            "no snapshots of memory with a GPU": given.enable_snapshot
            and given.resources.gpu_config.count,
            **policy_problems(given),
        }
        for reason, holds in reasons.items():
            if holds:
                raise Refusal(Status.INVALID_ARGUMENT, reason)
        if given.image_id not in self._by_id:
            raise Refusal(Status.NOT_FOUND, f"no image {given.image_id}")
        self._refuse_name(request.app_id, given.name)

    def _refuse_name(self, app: str, name: str) -> None:
        if name and self._named(app, name) is not None:
            raise Refusal(Status.ALREADY_EXISTS, f"a sandbox named {name} is running")

    def _named(self, app: str, name: str) -> HostedSandbox | None:
        found = (m for m in self.made.values() if (m.app, m.definition.name) == (app, name))
        return next(found, None)

    async def _make(self, request: Any) -> HostedSandbox:  # noqa: ANN401
        self.creations += 1
        given = request.definition
        own: dict[str, Any] = {"user": "root", "workdir": given.workdir or "/"}
        is_open = given.network_access.network_access_type != BLOCKED
        replacements = list(given.experimental_outbound_policy.header_replacements)
        if doors := self.egress.doors(lambda _: is_open, partial(rewrite, replacements)):
            own |= {"network": "model-only", "doors": doors}
        if given.HasField("experimental_outbound_policy"):
            own["env"] = dict.fromkeys(_CERTIFICATES, _BUNDLE)
        try:
            sandbox = await self._provider.create(
                self._by_id[given.image_id].model_copy(update=own),
                image=self.snapshots.get(given.image_id),
            )
        except SandboxError as error:
            raise Refusal(Status.INTERNAL, str(error)) from error
        if "env" in own:
            bundle = f"mkdir -p /etc/modal; cat /etc/ssl/certs/*.crt > {_BUNDLE} || true"
            await sandbox.exec(["/bin/sh", "-c", bundle], user="root")
        entry = None
        if given.entrypoint_args:
            entry = await sandbox.spawn(list(given.entrypoint_args), user="root")
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return self._add(sandbox, given, request.app_id, tags, entry)

    def _add(
        self,
        sandbox: Sandbox,
        given: pb.Sandbox,
        app: str,
        tags: dict[str, str],
        entry: Process | None,
    ) -> HostedSandbox:
        name = f"sb-{secrets.token_hex(13)}"
        idle = given.idle_timeout_secs if given.HasField("idle_timeout_secs") else None
        task = ModalTask(
            f"ta-{secrets.token_hex(8)}V", sandbox, _jwt(), idle, lambda: self._end(name)
        )
        made = self.made[name] = HostedSandbox(name, sandbox, given, app, tags, task, entry=entry)
        self.router.tasks[task.id] = task
        loop = asyncio.get_running_loop()
        made.timer = loop.call_later(
            given.timeout_secs, self._end, name, _GENERIC.GENERIC_STATUS_TIMEOUT
        )
        return made

    def _end(self, name: str, status: Any = _GENERIC.GENERIC_STATUS_TERMINATED) -> None:  # noqa: ANN401
        self._in_background(self._remove(name, status))

    def _in_background(self, work: Any) -> None:  # noqa: ANN401 - any coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def remove(self, name: str) -> None:
        """End a sandbox, as Modal does to one on a worker that it takes away."""
        await self._remove(name, _GENERIC.GENERIC_STATUS_TERMINATED)

    async def _remove(self, name: str, status: Any) -> None:  # noqa: ANN401
        made = self.made.pop(name, None)
        if made is None:
            return
        self._ended[name] = _GENERIC(status=status)
        if made.timer is not None:
            made.timer.cancel()
        del self.router.tasks[made.task.id]
        await made.task.close()
        await made.sandbox.teardown()
        self.removed.set()

    def _find(self, name: str) -> HostedSandbox:
        if name not in self.made:
            raise Refusal(Status.NOT_FOUND, f"no running sandbox {name}")
        return self.made[name]

    async def sandbox_get_from_name_v2(self, stream: Stream) -> None:
        """Find a running sandbox by its name."""
        request = await take(stream, {"sandbox_name", "app_name", "environment_name"})
        made = self._named(self._apps.get(request.app_name, ""), request.sandbox_name)
        if made is None:
            raise Refusal(Status.NOT_FOUND, f"no sandbox named {request.sandbox_name}")
        await answer(stream, pb.SandboxGetFromNameResponse(sandbox_id=made.id))

    async def sandbox_wait_v2(self, stream: Stream) -> None:
        """Return the result of a sandbox, which is empty while the sandbox runs."""
        request = await take(stream, {"sandbox_id", "timeout"})
        if request.timeout:
            raise Refusal(Status.UNIMPLEMENTED, "this server does not wait")
        result = self._ended.get(request.sandbox_id)
        if result is None:
            self._find(request.sandbox_id)
        await answer(stream, pb.SandboxWaitResponse(result=result))

    async def sandbox_get_task_id_v2(self, stream: Stream) -> None:
        """Return the task of a sandbox, or the result if the sandbox has ended."""
        request = await take(stream, {"sandbox_id"})
        if (result := self._ended.get(request.sandbox_id)) is not None:
            await answer(stream, pb.SandboxGetTaskIdResponse(task_result=result))
            return
        task = self._find(request.sandbox_id).task
        await answer(stream, pb.SandboxGetTaskIdResponse(task_id=task.id))

    async def sandbox_get_command_router_access(self, stream: Stream) -> None:
        """Return the address for the commands of a running sandbox."""
        request = await take(stream, {"sandbox_id"})
        if request.sandbox_id in self._ended:
            raise Refusal(Status.FAILED_PRECONDITION, "the sandbox has ended")
        task = self._find(request.sandbox_id).task
        await answer(stream, pb.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=task.token))

    async def sandbox_list_v2(self, stream: Stream) -> None:
        """List the running sandboxes of an app, the newest first."""
        request = await take(stream, {"app_id", "before_timestamp"})
        before = request.before_timestamp or float("inf")
        every = (m for m in self.made.values() if m.app == request.app_id and m.started < before)
        page = sorted(every, key=lambda made: -made.started)[:_PAGE]
        infos = [pb.SandboxInfo(id=m.id, created_at=m.started, app_id=m.app) for m in page]
        await answer(stream, pb.SandboxListResponse(sandboxes=infos))

    async def sandbox_tags_get_v2(self, stream: Stream) -> None:
        """Return the tags of a sandbox."""
        request = await take(stream, {"sandbox_id"})
        tags = self._find(request.sandbox_id).tags.items()
        found = [pb.SandboxTag(tag_name=name, tag_value=value) for name, value in tags]
        await answer(stream, pb.SandboxTagsGetResponse(tags=found))

    async def sandbox_tags_set_v2(self, stream: Stream) -> None:
        """Replace the tags of a sandbox."""
        request = await take(stream, {"sandbox_id", "tags"})
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self._find(request.sandbox_id).tags = tags
        await answer(stream, Empty())

    async def sandbox_terminate_v2(self, stream: Stream) -> None:
        """End a sandbox. Nothing happens to one that has ended."""
        request = await take(stream, {"sandbox_id"})
        if request.sandbox_id not in self._ended:
            self._find(request.sandbox_id)
            await self.remove(request.sandbox_id)
        await answer(stream, pb.SandboxTerminateResponse())


def _jwt() -> str:
    parts = [{"alg": "none"}, {"exp": time.time() + 3600, "id": secrets.token_hex(8)}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
    return b".".join([*encoded, b"c2ln"]).decode().replace("=", "")


@asynccontextmanager
async def modal_server(
    provider: SandboxProvider,
    *,
    images: Mapping[str, SandboxSpec] = MappingProxyType({IMAGE: SandboxSpec()}),
    outside: Mapping[str, int] = MappingProxyType({}),
    memory: bool = False,
) -> AsyncGenerator[tuple[ModalServer, str]]:
    """Serve an account over the sandboxes of `provider`; yield it and its URL.

    Each image is a spec of `provider`. The SDK reads the URL from `$MODAL_SERVER_URL`. `outside`
    has the hosts, and a port of each, that a sandbox reaches if its network is open. `memory` is
    whether the account has snapshots of memory.
    """
    account = ModalServer(provider, images=images, outside=outside, memory=memory)
    services = [
        GrpcService(ModalClientBase, account),
        GrpcService(TaskCommandRouterBase, account.router),
    ]
    server = Server(services, codec=GarbageCodec(account.garbage))
    grpclib.events.listen(server, grpclib.events.RecvRequest, account.check)
    async with AsyncExitStack() as stack:
        account.egress.url = await stack.enter_async_context(serving(account.egress))
        listener = stack.enter_context(listen())
        account.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        await server.start(sock=listener)
        try:
            yield account, account.url
        finally:
            for name in list(account.made):
                await account.remove(name)
            for image in list(account.snapshots):
                await account.delete_image(image)
            await account.memory.aclose()
            server.close()
            await server.wait_closed()
