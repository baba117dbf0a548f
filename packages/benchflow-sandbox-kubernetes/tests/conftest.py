"""kubernetes_asyncio against our server over local sandboxes. Nothing here runs on a cluster."""

import asyncio
from importlib.resources import files

import pytest
import yaml
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_kubernetes import KubernetesProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.kubernetes import ClusterState, kubernetes_server

INSTALL = list(
    yaml.safe_load_all((files("benchflow_sandbox_kubernetes") / "install.yaml").read_text())
)
POLICIES = [each for each in INSTALL if each["kind"] == "NetworkPolicy"]
IMAGE = "debian:stable-slim"


def kubeconfig(url, token):
    """Return the text of a configuration of kubectl."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
    )


@pytest.fixture
def use_server(tmp_path, monkeypatch):
    """Let kubernetes_asyncio use the server of a URL."""

    def use(url, token="kubernetes_test"):
        (tmp_path / "config").write_text(kubeconfig(url, token))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    return use


@pytest.fixture
def with_provider(use_server):
    """Run an async test against a provider and the server of its cluster."""

    def run(test, *, token="kubernetes_test", state=(), **options):
        async def main():
            given = {"images": {IMAGE: SandboxSpec()}, "policies": POLICIES, **dict(state)}
            cluster = ClusterState(**given)
            async with LocalProvider() as local, kubernetes_server(local, cluster) as (server, url):
                use_server(url, token)
                async with KubernetesProvider(**options) as provider:
                    return await test(provider, server)

        return asyncio.run(main())

    return run
