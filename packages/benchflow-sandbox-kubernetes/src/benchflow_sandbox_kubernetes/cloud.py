"""A namespace of a Kubernetes cluster."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import SandboxLostError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import CloudRecord, ShellSandbox, labels_of, wait_for_start
from kubernetes_asyncio import client, config
from kubernetes_asyncio.stream import WsApiClient

from .command import V5, PodCommand
from .errors import end_of, typed_errors
from .pod import CONTAINER, LABELS, Network, pod_manifest

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFUSED = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where pods run, and how."""

    namespace: str = ""
    """Default: the namespace of the runner's own pod, or `benchflow`."""
    context: str | None = None
    """Of the kubeconfig."""
    image: str = "debian:stable-slim"
    """For tasks that do not name an image."""
    runtime_class: str | None = None
    start_seconds: float = 300.0
    """The limit for the start of a pod."""


class KubernetesCloud:
    """The pods of a namespace. The SDK's clients are opened at the first use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        inside = _ACCOUNT / "namespace"
        own = inside.read_text().strip() if inside.exists() else "benchflow"
        self.namespace = cluster.namespace or own
        self._apis: tuple[Any, Any] | None = None
        self._lock = asyncio.Lock()

    async def apis(self) -> tuple[Any, Any]:
        """Return the pods' API, by HTTP and by WebSocket."""
        async with self._lock:
            if self._apis is None:
                settings = await self._settings()
                web: Any = WsApiClient(settings)
                self._apis = client.CoreV1Api(client.ApiClient(settings)), client.CoreV1Api(web)
            return self._apis

    async def _settings(self) -> client.Configuration:
        settings = client.Configuration()
        load: Any = config
        path, context = os.environ.get("KUBECONFIG"), self.cluster.context
        with typed_errors("read the credentials"):
            if context is None and (_ACCOUNT / "token").exists():
                load.load_incluster_config(settings)
            else:
                await load.load_kube_config(path, context, settings)
        settings.connection_pool_maxsize = 0  # each sandbox has an open stream
        return settings

    async def is_running(self, name: str) -> bool:
        """Return whether a pod runs; `False`: it is starting.

        Raises:
            SandboxLostError: It has ended.
            SandboxUnsupportedError: Its image cannot be pulled or started.
        """
        api, _ = await self.apis()
        with typed_errors(f"read pod {name!r}"):
            pod = await api.read_namespaced_pod(name, self.namespace)
            if pod.status.phase in {"Succeeded", "Failed"}:
                raise end_of(pod)
            if pod.status.phase is None:
                raise ValueError("a pod without a phase")
            states = [each.state for each in pod.status.container_statuses or ()]
        for waiting in [each.waiting for each in states if each.waiting]:
            if waiting.reason in _REFUSED:
                raise SandboxUnsupportedError(
                    f"pod {name!r}: {waiting.reason}: {waiting.message}",
                    hint="check the name of the image, and the pull secrets of the namespace",
                )
        return pod.status.phase == "Running" and any(each.running for each in states)

    async def start_command(self, sandbox: str, argv: Sequence[str]) -> PodCommand:
        """Start a command as root. The other user ids, variables and directories are the image's.

        Before that, the pod is read: one that has ended says why.
        """
        await self.is_running(sandbox)
        _, web = await self.apis()
        call = partial(web.connect_get_namespaced_pod_exec, sandbox, self.namespace)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), True)
        with typed_errors(f"run {argv[0]!r} by pods/exec in pod {sandbox!r}"):
            return PodCommand(
                await (await call(command=list(argv), container=CONTAINER, **streams, **V5))
            )

    async def create(
        self,
        spec: SandboxSpec,
        *,
        key: str,
        labels: Mapping[str, str],
        lifetime: float,
        network: Network | None = None,
    ) -> ShellSandbox:
        """Create a pod of `spec.image`, and wait until it runs.

        `network` is the policy, by default that of the spec. A pod that does not run in time is
        deleted.
        """
        name = f"benchflow-{key}"
        image = self.cluster.image if spec.image in {None, "host"} else str(spec.image)
        body = pod_manifest(
            spec,
            name=name,
            image=image,
            labels=labels,
            lifetime=lifetime,
            network=network or ("public" if spec.network == "public" else "none"),
            runtime_class=self.cluster.runtime_class,
        )
        api, _ = await self.apis()
        with typed_errors(f"create pod {name!r} of {image!r}"):
            try:
                await api.create_namespaced_pod(self.namespace, body, field_validation="Strict")
            except client.ApiException as error:
                if error.status != 409:
                    raise  # 409: an earlier answer was lost
        hint = "read `kubectl describe pod`: nodes may lack room, or the image is large"
        try:
            await wait_for_start(
                partial(self.is_running, name), self.cluster.start_seconds, hint=hint
            )
        except BaseException:
            await asyncio.shield(self.delete(name))
            raise
        return ShellSandbox(self, name)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the pods of the namespace that have this label and have not ended."""
        api, _ = await self.apis()
        running = "status.phase!=Succeeded,status.phase!=Failed"
        with typed_errors("list the pods"):
            pods = await api.list_namespaced_pod(
                self.namespace, label_selector=label, field_selector=running
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
        with suppress(SandboxLostError), typed_errors(f"delete pod {sandbox!r}"):
            await api.delete_namespaced_pod(sandbox, self.namespace, grace_period_seconds=0)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        apis, self._apis = self._apis, None
        for api in apis or ():
            await api.api_client.close()


def _record(pod: Any) -> CloudRecord:  # noqa: ANN401 - the SDK's models have no types
    labels = labels_of(LABELS, pod.metadata.annotations or {})
    return CloudRecord(pod.metadata.name, labels, pod.metadata.creation_timestamp.timestamp())
