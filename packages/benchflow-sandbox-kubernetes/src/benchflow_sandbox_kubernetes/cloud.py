"""A namespace of a Kubernetes cluster."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

import aiohttp
import benchflow_contracts.errors as ours
from benchflow_contracts.sandbox import Isolation, SandboxSpec
from benchflow_sandbox_remote import CloudRecord, Lease, Renewal, ShellSandbox, labels_of
from benchflow_sandbox_remote.limited_answers import with_limits
from kubernetes_asyncio import client, config
from kubernetes_asyncio.stream import WsApiClient
from kubernetes_asyncio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL

from .errors import LOGIN, end_of, typed_errors
from .pod import ACCOUNT, CONTAINER, LABELS, Network, pod_manifest

_CONFIG: Any = config  # its types are not complete
_RIGHTS = {"pods": ("create", "get", "list", "delete"), "pods/exec": ("create", "get")}
_REFUSED = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError"}
_EXEC: dict[str, Any] = {
    **dict.fromkeys(("stdin", "stdout", "stderr"), True),
    "_preload_content": False,
    "_headers": {"sec-websocket-protocol": "v5.channel.k8s.io"},
}
"""Options of a command. Only protocol v5 can close one stream. Kubernetes has it since 1.30."""
_STDIN, _END_OF_STDIN = b"\x00", b"\xff\x00"
_PIECE, _KEPT, _BUFFER = 1 << 15, 500, 1 << 21  # the buffer is that of the SDK


class PodCommand:
    """One running command. It is also the connection to a link."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._status, self._stderr = b"", b""

    async def read(self) -> bytes:
        """Return the next bytes of stdout, or `b""` at the end."""
        async for message in self._socket:
            received: bytes = message.data if message.type is aiohttp.WSMsgType.BINARY else b""
            channel, data = received[0] if received else None, received[1:]
            if channel == STDOUT_CHANNEL and data:
                return data
            if channel == STDERR_CHANNEL:
                self._stderr = (self._stderr + data)[-_KEPT:]
            if channel == ERROR_CHANNEL:
                self._status = data
        return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise `OSError` if the connection has ended."""
        for at in range(0, len(data), _PIECE):
            await self._socket.send_bytes(_STDIN + data[at : at + _PIECE])

    async def finish(self, stdin: bytes) -> tuple[int, str]:
        """Write the whole input; return the exit code and the end of the error output.

        Raises:
            HostError: The connection ended before the command.
        """
        with typed_errors("run a command"):
            await self.write(stdin)
            await self._socket.send_bytes(_END_OF_STDIN)
            while await self.read():
                pass
            if not self._status:
                raise ours.HostError("Kubernetes: a command did not report its end")
            code = WsApiClient.parse_error_data(self._status)
        return code, self._stderr.decode(errors="replace")

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._socket.close()


class KubernetesCloud:
    """The pods of a namespace. The SDK's clients are opened at the first use.

    `options` are `namespace`, `context`, `image` and `runtime_class`, each if it is set.
    """

    def __init__(self, options: Mapping[str, str], start_seconds: float) -> None:
        inside = ACCOUNT / "namespace"
        own = inside.read_text().strip() if inside.exists() else "benchflow"
        self._namespace, self._context = options.get("namespace", own), options.get("context")
        self._image = options.get("image", "debian:stable-slim")
        self._runtime, self._start_seconds = options.get("runtime_class"), start_seconds
        self._apis: tuple[Any, Any] | None = None
        self._lock = asyncio.Lock()

    async def apis(self) -> tuple[Any, Any]:
        """Return the pods' API, by HTTP and by WebSocket."""
        async with self._lock:
            if self._apis is None:
                settings: Any = client.Configuration()
                with typed_errors("read the credentials"):
                    if self._context is None and (ACCOUNT / "token").exists():
                        _CONFIG.load_incluster_config(settings)
                    else:
                        path = os.environ.get("KUBECONFIG")
                        loader = await _CONFIG.load_kube_config(path, self._context, settings)
                        settings.refresh_api_key_hook = Renewal(loader.load_and_set)
                settings.connection_pool_maxsize = 0  # each sandbox has an open stream
                plain = with_limits(client.ApiClient(settings), read_bufsize=_BUFFER)
                web = with_limits(WsApiClient(settings), read_bufsize=_BUFFER)
                self._apis = client.CoreV1Api(plain), client.CoreV1Api(web)
            return self._apis

    async def connect(self) -> None:
        """Check that the credentials have each right that sandboxes need.

        Raises:
            CredentialsError: They lack one, are refused or are missing.
        """
        api, _ = await self.apis()
        reviews: Any = client.AuthorizationV1Api(api.api_client)
        for resource, verb in [(name, each) for name, verbs in _RIGHTS.items() for each in verbs]:
            kind, _, part = resource.partition("/")
            wanted = {"verb": verb, "resource": kind, "subresource": part}
            body = {"spec": {"resourceAttributes": {"namespace": self._namespace, **wanted}}}
            with typed_errors("check the rights"):
                review = await reviews.create_self_subject_access_review(body)
                if not review.status.allowed:
                    right = f"the account cannot {verb} {resource} in namespace {self._namespace!r}"
                    raise ours.CredentialsError(f"Kubernetes: {right}", hint=LOGIN)

    async def isolation(self) -> Isolation:
        """Return how pods are isolated, by the handler of the RuntimeClass."""
        if not (name := self._runtime):
            return "container"
        api, _ = await self.apis()
        nodes: Any = client.NodeV1Api(api.api_client)
        with typed_errors(f"read the RuntimeClass {name!r}"):
            return "vm" if "kata" in (await nodes.read_runtime_class(name)).handler else "container"

    async def is_running(self, sandbox: str) -> bool:
        """Return whether a pod runs; `False`: it is starting.

        Raises:
            SandboxLostError: It has ended.
            SandboxUnsupportedError: Its image cannot be pulled or started.
        """
        api, _ = await self.apis()
        with typed_errors(f"read pod {sandbox!r}"):
            pod = await api.read_namespaced_pod(sandbox, self._namespace)
            if pod.status.phase in {"Succeeded", "Failed"}:
                raise end_of(pod)
            if pod.status.phase is None:
                raise ValueError("a pod without a phase")
            states = [each.state for each in pod.status.container_statuses or ()]
        for waiting in [each.waiting for each in states if each.waiting]:
            if waiting.reason in _REFUSED:
                raise ours.SandboxUnsupportedError(
                    f"pod {sandbox!r}: {waiting.reason}: {waiting.message}",
                    hint="check the name of the image, and the pull secrets of the namespace",
                )
        return pod.status.phase == "Running" and any(each.running for each in states)

    async def start_command(self, sandbox: str, argv: Sequence[str]) -> PodCommand:
        """Start a command as root. Other user ids, variables and directories are the image's."""
        _, web = await self.apis()
        with typed_errors(f"run {argv[0]!r} by pods/exec in pod {sandbox!r}"):
            opening = await web.connect_get_namespaced_pod_exec(
                sandbox, self._namespace, command=list(argv), container=CONTAINER, **_EXEC
            )
            return PodCommand(await opening)

    async def create(
        self, spec: SandboxSpec, *, key: str, network: Network | None = None, **lease: Unpack[Lease]
    ) -> ShellSandbox:
        """Create a pod of `spec.image`, and wait until it runs.

        `network` is the policy, by default that of the spec. A pod that does not run is deleted.
        """
        name = f"benchflow-{key}"
        image = self._image if spec.image in {None, "host"} else str(spec.image)
        network = network or ("public" if spec.network == "public" else "none")
        body = pod_manifest(
            spec, name=name, image=image, network=network, runtime_class=self._runtime, **lease
        )
        api, _ = await self.apis()
        with typed_errors(f"create pod {name!r} of {image!r}"):
            try:
                await api.create_namespaced_pod(self._namespace, body, field_validation="Strict")
            except client.ApiException as error:
                if error.status != 409:
                    raise  # 409: an earlier answer was lost
        hint = "read `kubectl describe pod`: nodes may lack room, or the image is large"
        return await ShellSandbox.start(self, name, self._start_seconds, hint=hint)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the pods of the namespace that have this label and have not ended."""
        api, _ = await self.apis()
        running = "status.phase!=Succeeded,status.phase!=Failed"
        with typed_errors("list the pods"):
            pods = await api.list_namespaced_pod(
                self._namespace, label_selector=label, field_selector=running
            )
            found = [_record(pod) for pod in pods.items]
        for each in found:
            if label in each.labels:
                yield each

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a pod live for `lifetime` seconds from now, by its own clock."""
        await ShellSandbox(self, sandbox).extend(lifetime)

    async def delete(self, sandbox: str) -> None:
        """Delete a pod by its name. Idempotent."""
        api, _ = await self.apis()
        with suppress(ours.SandboxLostError), typed_errors(f"delete pod {sandbox!r}"):
            await api.delete_namespaced_pod(sandbox, self._namespace, grace_period_seconds=0)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        apis, self._apis = self._apis, None
        for api in apis or ():
            await api.api_client.close()


def _record(pod: Any) -> CloudRecord:  # noqa: ANN401 - the SDK's models have no types
    labels = labels_of(LABELS, pod.metadata.annotations or {})
    return CloudRecord(pod.metadata.name, labels, pod.metadata.creation_timestamp.timestamp())
