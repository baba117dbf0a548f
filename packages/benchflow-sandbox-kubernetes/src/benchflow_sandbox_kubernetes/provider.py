"""The provider `kubernetes`."""

import os
from typing import Unpack

from benchflow_contracts.sandbox import SandboxCapabilities
from benchflow_sandbox_remote import RemoteOptions, RemoteProvider, found_file, options_of

from .pod import ACCOUNT

_API_SERVER = '"$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT"'
_POLICY = "apply install.yaml, and use a plugin that enforces policies; or use the network public"


class KubernetesProvider(RemoteProvider):
    """Sandboxes in the pods of one namespace.

    The credentials are those of `kubectl`, or of the pod in which the runner itself runs. The
    options are also `$BENCHFLOW_KUBERNETES_NAMESPACE` (default: that of the runner's own pod, or
    `benchflow`), `_CONTEXT` (of the kubeconfig), `_IMAGE` (for tasks that do not name one) and
    `_RUNTIME_CLASS`. `start_seconds` is the limit for the start of a pod.
    """

    package = "benchflow_sandbox_kubernetes"
    key_hint = "set KUBECONFIG to a file of kubectl, or run in a pod that has an account"

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        image: str | None = None,
        runtime_class: str | None = None,
        start_seconds: float = 300.0,
        **options: Unpack[RemoteOptions],
    ) -> None:
        given = {"namespace": namespace, "context": context, "runtime_class": runtime_class}
        found = options_of("BENCHFLOW_KUBERNETES_", image=image, **given)
        account = f"{os.environ.get('KUBECONFIG')} {found.get('context')} {found.get('namespace')}"
        self.check_key("kubernetes", found_file("KUBECONFIG", "~/.kube/config", ACCOUNT / "token"))
        from .cloud import KubernetesCloud  # noqa: PLC0415 - it loads the SDK

        self._kubernetes = KubernetesCloud(found, start_seconds)
        super().__init__("kubernetes", self._kubernetes, account=account, **options)

    async def probe(self) -> SandboxCapabilities:
        """Start two pods to prove the network policy, and read the RuntimeClass."""
        isolation = await self._kubernetes.isolation()
        can = self.static_capabilities.model_copy(update={"isolation": isolation})
        # The API server is reached without a policy, so a failure is the policy's work.
        return await self.prove_network(can, _API_SERVER, _POLICY)
