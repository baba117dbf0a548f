"""What our server with Kubernetes' API refuses, as Kubernetes does."""

import asyncio

import httpx
import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_testing_clouds.kubernetes import ClusterState, kubernetes_server

PODS = "/api/v1/namespaces/benchflow/pods"


def pod(name="a", **spec):
    container = {"name": "main", "image": "debian", "command": ["sleep", "1000"]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return {**body, "spec": {"containers": [container], **spec}}


@pytest.fixture
def ask():
    """Send requests to a server of its own; return the answers."""

    def run(*requests, token="kubernetes_test", **state):
        async def main():
            cluster = ClusterState(images={"debian": SandboxSpec()}, **state)
            headers = {"authorization": f"Bearer {token}"}
            async with (
                LocalProvider() as local,
                kubernetes_server(local, cluster) as (_, url),
                httpx.AsyncClient(base_url=url, headers=headers) as client,
            ):
                answers = [await client.request(*words, **more) for words, more in requests]
                return [(each.status_code, each.json()) for each in answers]

        return asyncio.run(main())

    return run


def create(body):
    return ("POST", PODS), {"json": body}


def test_credentials_routes_and_parameters_that_are_unknown_are_refused(ask):
    assert [code for code, _ in ask((("GET", PODS), {}), token="other")] == [401]
    answers = ask(
        (("GET", "/version"), {}),
        (("GET", f"{PODS}/none"), {}),
        (("GET", PODS), {"params": {"resourceVersion": "0"}}),
        (("GET", PODS), {"params": {"fieldSelector": "spec.nodeName=a"}}),
        (("POST", "/api/v1/namespaces/other/pods"), {"json": pod()}),
        (("DELETE", f"{PODS}/a"), {}),
    )
    assert [code for code, _ in answers] == [404, 404, 400, 400, 404, 400]
    assert all(body["kind"] == "Status" for _, body in answers)


def test_names_labels_fields_and_runtime_classes_that_are_wrong_are_refused(ask):
    labelled = pod()
    labelled["metadata"]["labels"] = {"a": "x" * 64}
    wrong = [
        pod("Upper"),
        pod("x" * 64),
        labelled,
        pod(gpu=1),
        pod(runtimeClassName="none"),
    ]
    answers = ask(*map(create, wrong))
    assert [code for code, _ in answers] == [422, 422, 422, 400, 403]
    assert "gpu" in answers[3][1]["message"]


def test_a_second_pod_of_a_name_and_one_over_the_quota_are_refused(ask):
    answers = ask(*map(create, [pod(), pod(), pod("b")]), max_pods=1)
    assert [code for code, _ in answers] == [201, 409, 403]
    assert "exceeded quota" in answers[2][1]["message"]
