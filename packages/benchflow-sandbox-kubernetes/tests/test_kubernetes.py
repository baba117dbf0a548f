"""kubernetes_asyncio against our server: faults of the cluster, the connection and the runner."""

import asyncio
import os
import subprocess
import sys
import time
from functools import partial

import pytest
import yaml
from benchflow_contracts.errors import (
    CapacityError,
    CredentialsError,
    QuotaError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_kubernetes import KubernetesProvider
from benchflow_sandbox_remote import renewal

SPEC = SandboxSpec(network="public")
"""Without the proof of the network policy, which costs two pods."""


def sandboxes(server):
    return [pod for name, pod in server.made.items() if "probe" not in name]


def test_a_command_has_separate_outputs_an_exit_code_and_the_agents_user(with_provider):
    async def test(provider, server):
        del server
        sandbox = await provider.create(SPEC)
        result = await sandbox.exec("cat; echo bad >&2; id -un; exit 3", stdin="ä\n".encode())
        assert (result.stdout, result.stderr, result.exit_code) == ("ä\nagent\n", "bad\n", 3)

    with_provider(test)


def test_a_pod_has_the_labels_limits_and_deadline_of_its_rollout_and_no_token(with_provider):
    identity = RolloutIdentity(scope="job", task="a/b ü", deadline=int(time.time()) + 1000)
    limits = ResourceLimits(memory_mb=512, cpus=0.5, disk_mb=1024)

    async def test(provider, server):
        spec = SPEC.model_copy(update={"limits": limits})
        sandbox = await provider.create(spec, identity=identity)
        (record,) = [each async for each in provider.sandboxes(scope="job")]
        assert (record.id, record.identity.task) == (sandbox.id, "a/b ü")
        (pod,) = sandboxes(server)
        labels, spec = pod.object["metadata"]["labels"], pod.object["spec"]
        assert labels["benchflow.scope"] == "job"
        assert "benchflow.task" not in labels  # not a value that Kubernetes allows
        assert spec["automountServiceAccountToken"] is False
        assert 4500 < spec["activeDeadlineSeconds"] <= 4600
        assert spec["containers"][0]["resources"]["limits"] == {
            "cpu": "500m",
            "memory": "512Mi",
            "ephemeral-storage": "1024Mi",
        }
        await sandbox.teardown()
        assert server.made == {}

    with_provider(test)


def test_a_lost_answer_and_a_storm_of_429_end_in_one_pod_each(with_provider):
    async def test(provider, server):
        await provider.capabilities()
        made = server.creations
        server.cluster.failures = [(500, {}, True), (429, {"retry-after": "1"}, False)]
        await provider.create(SPEC)
        assert server.creations == made + 1
        assert len(sandboxes(server)) == 1

    with_provider(test)


def test_wrong_and_missing_credentials_and_rights_end_a_job_before_it_begins(
    with_provider, monkeypatch, tmp_path
):
    async def refused(provider, server):
        with pytest.raises(CredentialsError, match="Unauthorized"):
            await provider.ready()
        assert server.creations == 0

    with_provider(refused, token="other")

    async def without_right(provider, server):
        server.cluster.missing_rights = {("create", "pods/exec")}
        with pytest.raises(CredentialsError, match="cannot create pods/exec"):
            await provider.ready()
        with pytest.raises(CredentialsError, match="pods/exec"):
            await provider.create(SPEC)
        assert server.made == {}

    with_provider(without_right)

    async def with_wrong_file():
        async with KubernetesProvider() as provider:
            with pytest.raises(CredentialsError) as error:
                await provider.ready()
        assert "KUBECONFIG" in error.value.hint

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "wrong"))
    (tmp_path / "wrong").write_text("{}")
    asyncio.run(with_wrong_file())
    # Neither a file nor an account of a pod: an error before the slow import of the SDK.
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{os.pathsep}{tmp_path}/none-too")
    program = (
        "import sys\nfrom benchflow_sandbox_kubernetes import KubernetesProvider\n"
        "try:\n    KubernetesProvider()\n"
        "except Exception as error:\n    print(type(error).__name__, *sorted("
        "{'kubernetes_asyncio', 'aiohttp'} & sys.modules.keys()))"
    )
    done = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert done == "CredentialsError\n"


PLUGIN = """import json, pathlib, sys
status = {"token": pathlib.Path(sys.argv[1]).read_text(), "expirationTimestamp": sys.argv[2]}
kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
print(json.dumps({**kind, "status": status}))
"""


def test_a_token_of_a_program_is_renewed_before_it_ends(with_provider, tmp_path, monkeypatch):
    """As those of EKS, whose tokens are valid for 15 minutes."""
    token, clock = tmp_path / "token", [1000.0]
    monkeypatch.setattr(renewal, "_clock", lambda: clock[0])
    token.write_text("kubernetes_test")
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 240))

    async def test(provider, server):
        text = yaml.safe_load((tmp_path / "config").read_text())
        program = {"command": sys.executable, "args": ["-c", PLUGIN, str(token), soon]}
        version = "client.authentication.k8s.io/v1"
        text["users"][0]["user"] = {"exec": {"apiVersion": version, **program}}
        (tmp_path / "config").write_text(yaml.safe_dump(text))
        await provider.ready()
        token.write_text("the next one")
        server.token = "the next one"
        with pytest.raises(CredentialsError):
            await provider.ready()
        clock[0] += 61
        await provider.ready()
        # A program that fails once does not end a job whose token is still valid.
        token.unlink()
        clock[0] += 61
        await provider.ready()

    with_provider(test)


def test_a_network_that_the_cluster_does_not_close_is_refused(with_provider, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_remote.network_proof._TRIES", 1)

    async def test(provider, server):
        del server
        with pytest.raises(SandboxUnsupportedError, match="network 'none'") as error:
            await provider.create(SandboxSpec())
        assert "install.yaml" in error.value.hint
        assert (await provider.create(SPEC)).spec.network == "public"

    with_provider(test, state={"enforces_policies": False})
    with_provider(test, state={"policies": []})


def test_a_closed_network_of_the_whole_namespace_proves_nothing(with_provider):
    everything = {"spec": {"podSelector": {}, "policyTypes": ["Egress"]}}

    async def test(provider, server):
        del server
        with pytest.raises(SandboxUnsupportedError) as error:
            await provider.create(SandboxSpec())
        assert "nothing is proven" in error.value.hint

    with_provider(test, state={"policies": [everything]})


def test_a_runtime_class_is_the_isolation_and_must_exist(with_provider):
    async def vm(provider, server):
        await provider.create(SPEC)
        assert (await provider.capabilities()).isolation == "vm"
        (pod,) = sandboxes(server)
        assert pod.object["spec"]["runtimeClassName"] == "kata"

    classes = {"runtime_classes": {"kata": "kata-qemu"}}
    with_provider(vm, state=classes, runtime_class="kata")

    async def missing(provider, server):
        with pytest.raises(SandboxUnsupportedError, match="not found"):
            await provider.create(SPEC)
        assert server.creations == 0

    with_provider(missing, runtime_class="gvisor")


def test_an_image_that_cannot_be_pulled_is_refused_and_leaves_no_pod(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxUnsupportedError, match=r"ImagePullBackOff.*not found"):
            await provider.create(SPEC.model_copy(update={"image": "no/such:image"}))
        assert server.made == {}

    with_provider(test)


def test_a_pod_without_a_node_in_time_is_a_lack_of_capacity(with_provider):
    async def test(provider, server):
        with pytest.raises(CapacityError, match="did not run within"):
            await provider._cloud.create(SPEC, key="k", labels={}, lifetime=60)
        assert server.made == {}

    with_provider(test, state={"has_room": False}, start_seconds=1.0)


def test_a_full_quota_is_a_lack_of_capacity_and_one_of_0_is_a_quota(with_provider):
    async def test(provider, server):
        create = partial(provider._cloud.create, SPEC, labels={}, lifetime=60)
        server.cluster.max_pods = 0
        with pytest.raises(QuotaError, match="exceeded quota"):
            await create(key="first")
        server.cluster.max_pods = 1
        await create(key="first")
        with pytest.raises(CapacityError, match="exceeded quota"):
            await create(key="second")

    with_provider(test)


@pytest.mark.parametrize(
    ("reason", "container", "culprit"),
    [("Evicted", "Error", "host"), ("", "OOMKilled", "inside")],
)
def test_a_pod_that_the_cluster_ends_says_why_at_once(with_provider, reason, container, culprit):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        (pod,) = sandboxes(server)
        started = time.monotonic()
        process = await sandbox.spawn("cat")
        await pod.end(reason, "The node was low on memory." * bool(reason), container=container)
        assert await process.stdout.read() == b""
        with pytest.raises(SandboxLostError, match=reason or container) as error:
            await sandbox.exec("true")
        assert error.value.caused_by == culprit
        assert time.monotonic() - started < 60

    with_provider(test)


def test_streams_that_the_server_ends_lose_no_byte(with_provider):
    # More than the pipes and the link hold.
    numbers = b"".join(b"%d\n" % number for number in range(1, 400_001))

    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        (pod,) = sandboxes(server)
        process = await sandbox.spawn("seq 1 400000")
        data = bytearray()
        while piece := await process.stdout.read(4096):
            if len(data) % (1 << 19) < 4096:
                pod.cut()
            data += piece
        assert bytes(data) == numbers
        assert sandbox.connections > 1

    with_provider(test)


def test_a_runner_that_is_killed_leaves_no_running_pod_after_its_lifetime(with_provider):
    async def test(provider, server):
        sandbox = await provider.create(SPEC)
        other = await provider._cloud.create(SPEC, key="other", labels={}, lifetime=300)
        await provider._cloud.extend(sandbox.id, 5)
        provider._heartbeat.cancel()
        started = time.monotonic()
        async with asyncio.timeout(30):
            await server.finished.wait()
        assert time.monotonic() - started < 10
        assert [pod.status["phase"] for pod in sandboxes(server)] == ["Succeeded", "Running"]
        assert [each.id async for each in provider.sandboxes()] == []
        await other.delete()

    with_provider(test, lifetime=20.0)
