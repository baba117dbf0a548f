"""The provider `kubernetes`."""

import os
import secrets
from contextlib import AsyncExitStack
from typing import Any, Unpack

from benchflow_contracts.errors import CredentialsError
from benchflow_contracts.sandbox import Isolation, SandboxCapabilities, SandboxSpec
from benchflow_sandbox_remote import (
    LINK_CAPABILITIES,
    RemoteOptions,
    RemoteProvider,
    ShellSandbox,
    options_of,
    prove_closed,
    with_open_network,
)
from kubernetes_asyncio import client

from .cloud import Cluster, KubernetesCloud
from .errors import LOGIN, typed_errors
from .pod import Network

_VARIABLES = dict.fromkeys(("namespace", "context", "image", "runtime_class"))
_RIGHTS = ("create", "get", "list", "delete", "create exec", "get exec")
_API_SERVER = '"$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT"'
_PROBE_SECONDS = 120.0
_POLICY = (
    "apply install.yaml, and use a network plugin that enforces policies; or run with the network"
    " public"
)
CAPABILITIES = LINK_CAPABILITIES.model_copy(
    update={
        "resource_limits": frozenset({"cpu", "output"}),
        "notes": {
            **LINK_CAPABILITIES.notes,
            "snapshot_levels": "pods do not have snapshots; branch by replay",
            "egress": "a pod has no proxy that adds headers; use --model-access tunnel",
            "token": "the network is not opened for one host yet; use --model-access tunnel, or"
            " a task with the network 'public'",
            "builds": "push the image to a registry, and name it",
            "resource_limits": "the limits of memory and disk end the whole pod, which fails the"
            " rollout; a limit of processes is the kubelet's podPidsLimit",
            "isolation": "the node's kernel is shared; set a RuntimeClass of gVisor or Kata",
            "services": "a pod has one container; start servers in the image, or use docker",
        },
    }
)


class KubernetesProvider(RemoteProvider):
    """Sandboxes in the pods of one namespace.

    The credentials are those of `kubectl`, or of the pod in which the runner itself runs. The
    options are also `$BENCHFLOW_KUBERNETES_NAMESPACE`, `_CONTEXT`, `_IMAGE` and `_RUNTIME_CLASS`.
    """

    package = "benchflow_sandbox_kubernetes"

    def __init__(self, *, cluster: Cluster | None = None, **options: Unpack[RemoteOptions]) -> None:
        if cluster is None:
            set_by_variables: Any = options_of("BENCHFLOW_KUBERNETES_", **_VARIABLES)
            cluster = Cluster(**set_by_variables)
        self._kubernetes = KubernetesCloud(cluster)
        super().__init__(
            "kubernetes",
            self._kubernetes,
            CAPABILITIES,
            account=f"{os.environ.get('KUBECONFIG')} {cluster.context} {cluster.namespace}",
            **options,
        )

    async def ready(self) -> None:
        """Check that the credentials have each right that sandboxes need.

        Raises:
            CredentialsError: They lack one, are refused or are missing.
        """
        api, _ = await self._kubernetes.apis()
        reviews: Any = client.AuthorizationV1Api(api.api_client)
        namespace = self._kubernetes.namespace
        for right in _RIGHTS:
            verb, _, part = right.partition(" ")
            wanted = {"verb": verb, "resource": "pods", "subresource": part}
            body = {"spec": {"resourceAttributes": {"namespace": namespace, **wanted}}}
            with typed_errors("check the rights"):
                review = await reviews.create_self_subject_access_review(body)
                is_allowed = review.status.allowed
            if not is_allowed:
                name = f"pods/{part}".rstrip("/")
                message = f"Kubernetes: the account cannot {verb} {name} in namespace {namespace!r}"
                raise CredentialsError(message, hint=LOGIN)

    async def probe(self) -> SandboxCapabilities:
        """Start two pods to prove the network policy, and read the RuntimeClass.

        Raises:
            SandboxError: The pods could not be started.
        """
        can = CAPABILITIES.model_copy(update={"isolation": await self._isolation()})
        async with AsyncExitStack() as stack:
            # The API server is reached without a policy, so a failure is the policy's work.
            open_pod = await self._probe_pod(stack, "open")
            closed_pod = await self._probe_pod(stack, "none")
            if not (reason := await prove_closed(open_pod, closed_pod, _API_SERVER)):
                return can
        return with_open_network(can, f"{reason}: {_POLICY}")

    async def _isolation(self) -> Isolation:
        name = self._kubernetes.cluster.runtime_class
        if not name:
            return "container"
        api, _ = await self._kubernetes.apis()
        classes: Any = client.NodeV1Api(api.api_client)
        with typed_errors(f"read the RuntimeClass {name!r}"):
            handler = (await classes.read_runtime_class(name)).handler
        return "vm" if "kata" in handler else "container"

    async def _probe_pod(self, stack: AsyncExitStack, network: Network) -> ShellSandbox:
        pod = await self._kubernetes.create(
            SandboxSpec(),
            key=f"probe-{secrets.token_hex(8)}",
            labels={"benchflow.owner": self._owner.id, "benchflow.purpose": "probe"},
            lifetime=_PROBE_SECONDS,
            network=network,
        )
        stack.push_async_callback(pod.delete)
        return pod
