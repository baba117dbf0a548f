"""kubernetes_asyncio against our server."""

import os
import tempfile
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from unittest.mock import patch

import yaml
from benchflow_sandbox_kubernetes import KubernetesProvider
from benchflow_testing_clouds.kubernetes import ClusterState, kubernetes_server

INSTALL = (files("benchflow_sandbox_kubernetes") / "install.yaml").read_text()
POLICIES = [each for each in yaml.safe_load_all(INSTALL) if each["kind"] == "NetworkPolicy"]
DEFAULT = "debian:stable-slim"


def kubeconfig(url, token):
    """Return the text of a configuration of kubectl."""
    parts = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    return yaml.safe_dump(parts)


@contextmanager
def using(text):
    """Let the SDK read this configuration inside the block."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        with patch.dict(os.environ, {"KUBECONFIG": file.name}):
            yield


@asynccontextmanager
async def account(local, images):
    (image,) = images.values()
    cluster = ClusterState(images={**images, DEFAULT: image}, policies=POLICIES)
    async with kubernetes_server(local, cluster, token="test") as (server, url):
        with using(kubeconfig(url, "test")):
            async with KubernetesProvider() as provider:
                await provider.capabilities()  # two pods, which prove the network policy
                server.creations = 0
                yield provider, server
