"""The manifests of the package, by the schemas of Kubernetes."""

import json
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_kubernetes import pod_manifest
from hypothesis import given, settings
from hypothesis import strategies as st

VERSION = "1.37"


def check(manifest):
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_installation_has_valid_manifests_and_no_right_over_secrets_or_policies():
    printed = subprocess.run(
        [sys.executable, "-m", "benchflow_sandbox_kubernetes"], capture_output=True, check=True
    )
    manifests = list(yaml.safe_load_all(printed.stdout))
    for each in manifests:
        check(each)
    roles = [each for each in manifests if each["kind"] in {"Role", "ClusterRole"}]
    resources = {name for role in roles for rule in role["rules"] for name in rule["resources"]}
    assert resources == {"pods", "pods/exec", "runtimeclasses"}


@settings(max_examples=30, deadline=None)
@given(
    labels=st.dictionaries(st.sampled_from(["benchflow.task", "benchflow.scope"]), st.text()),
    memory=st.none() | st.integers(1, 1 << 20),
    cpus=st.none() | st.floats(0.01, 100),
    runtime=st.none() | st.just("gvisor"),
    image=st.sampled_from(["debian", "\x7f\U0001f600: {"]),
)
def test_each_pod_is_valid_and_its_labels_are_allowed(labels, memory, cpus, runtime, image):
    spec = SandboxSpec(limits=ResourceLimits(memory_mb=memory, cpus=cpus))
    pod = pod_manifest(
        spec,
        name="benchflow-1",
        image=image,
        labels=labels,
        lifetime=300,
        network="none",
        runtime_class=runtime,
    )
    check(pod)
    assert json.dumps(pod["spec"]["containers"][0]["image"]) == json.dumps(image)
    for value in pod["metadata"]["labels"].values():
        assert len(value) <= 63
        assert value.isascii()
        assert set(value) <= set(map(chr, range(128))) - set(" /\n")


def test_the_check_refuses_an_unknown_field():
    pod = pod_manifest(
        SandboxSpec(), name="a", image="debian", labels={}, lifetime=300, network="none"
    )
    pod["spec"]["automountToken"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="automountToken"):
        check(pod)
