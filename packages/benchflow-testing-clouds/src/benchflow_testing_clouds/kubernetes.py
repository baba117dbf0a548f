"""A server with a part of Kubernetes' API, over local sandboxes.

It has the routes that `benchflow-sandbox-kubernetes` uses by kubernetes_asyncio 36, and refuses all
others, unknown query parameters, and fields that the schema of Kubernetes 1.37 does not have. It
has the limits that matter: names and labels, a quota of pods, rights, runtime classes, images that
must exist, a network plugin that may ignore policies, and commands that nobody can kill.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import kubernetes_validate  # type: ignore[import-untyped]
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxProvider, SandboxSpec

from .garbage import Garbage
from .http import Receive, Scope, Send, body_of, respond, serving
from .kubernetes_pod import V5, PodSandbox, now

VERSION = "1.37"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LIST = {"labelSelector", "fieldSelector", "limit", "continue"}
_EXEC = {"command", "container", "stdin", "stdout", "stderr", "tty"}
_POD = re.compile(
    r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods(/(?P<name>[^/]+))?(?P<exec>/exec)?"
)
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses/"


class RefusedError(Exception):
    """A request that the server refuses."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class ClusterState:
    """The cluster, which tests change."""

    images: Mapping[str, SandboxSpec]
    policies: Sequence[Mapping[str, Any]] = ()
    enforces_policies: bool = True
    runtime_classes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The handler of each class."""
    max_pods: int = 100
    has_room: bool = True
    """Whether a node has room. Without it a pod stays `Pending`."""
    missing_rights: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Verbs and resources, such as `("create", "pods/exec")`."""
    failures: list[tuple[int, dict[str, str], bool]] = field(
        default_factory=list[tuple[int, dict[str, str], bool]]
    )
    """For the next creations: status, headers, and whether the pod is created all the same."""


class KubernetesServer:
    """One namespace of a cluster."""

    def __init__(
        self, provider: SandboxProvider, cluster: ClusterState, *, token: str, namespace: str
    ) -> None:
        self._provider = provider
        self.cluster = cluster
        self.token, self._namespace = token, namespace
        self.url = ""
        self.garbage = Garbage()
        self.made: dict[str, PodSandbox] = {}
        self.creations = 0
        self.finished = asyncio.Event()
        """Set when a pod has ended by itself."""
        self._version = 0
        self._starting = set[asyncio.Task[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        try:
            self._authenticate(headers)
            if scope["type"] == "websocket":
                await self._exec(scope, receive, send)
            else:
                await self._http(scope, receive, send)
        except RefusedError as error:
            await _refuse(scope, send, error)

    def _authenticate(self, headers: dict[str, str]) -> None:
        if headers.get("authorization") != f"Bearer {self.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        match = _POD.fullmatch(path)
        if (method, path) == ("POST", _REVIEW):
            await respond(send, 201, self._review(_checked(await body_of(receive), scope, set())))
        elif method == "GET" and path.startswith(_CLASSES):
            _query(scope, set())
            await respond(send, 200, self._runtime_class(path.removeprefix(_CLASSES)))
        elif match is None or match["exec"]:
            raise RefusedError(404, "NotFound", f"{method} {path} is not served")
        elif match["namespace"] != self._namespace:
            raise RefusedError(404, "NotFound", f'namespaces "{match["namespace"]}" not found')
        elif match["name"]:
            await self._one(method, match["name"], scope, send)
        elif method == "POST":
            self._need("create", "pods")
            _query(scope, {"fieldValidation"})
            await self._create(_checked(await body_of(receive), scope, {"fieldValidation"}), send)
        elif method == "GET":
            await self._list(_query(scope, _LIST), send)
        else:
            raise RefusedError(405, "MethodNotAllowed", f"{method} {path}")

    def _need(self, verb: str, resource: str) -> None:
        if (verb, resource) in self.cluster.missing_rights:
            message = f'User "runner" cannot {verb} resource "{resource}" in API group ""'
            raise RefusedError(403, "Forbidden", f"pods is forbidden: {message}")

    def _find(self, name: str) -> PodSandbox:
        if name not in self.made:
            raise RefusedError(404, "NotFound", f'pods "{name}" not found')
        return self.made[name]

    async def _one(self, method: str, name: str, scope: Scope, send: Send) -> None:
        if method == "GET":
            self._need("get", "pods")
            _query(scope, set())
            await respond(send, 200, _shown(self._find(name)))
        elif method == "DELETE":
            self._need("delete", "pods")
            if _query(scope, {"gracePeriodSeconds"}).get("gracePeriodSeconds") != "0":
                raise RefusedError(400, "BadRequest", "this server deletes at once only")
            pod = self._find(name)
            await self.remove(name)
            await respond(send, 200, _shown(pod))
        else:
            raise RefusedError(405, "MethodNotAllowed", f"{method} of a pod")

    async def remove(self, name: str) -> None:
        """Delete a pod. Idempotent."""
        pod = self.made.pop(name, None)
        if pod is not None:
            await pod.remove()

    async def _create(self, body: dict[str, Any], send: Send) -> None:
        status, more, made_anyway = (
            self.cluster.failures.pop(0) if self.cluster.failures else (201, {}, True)
        )
        if made_anyway:
            pod = self._make(body)
            if status == 201:
                await respond(send, 201, _shown(pod))
                return
        await respond(send, status, _status(status, "Failure", "a failure of a test"), more)

    def _make(self, body: dict[str, Any]) -> PodSandbox:
        self._check_pod(body)
        self.creations += 1
        name = body["metadata"]["name"]
        body["metadata"] |= {
            "namespace": self._namespace,
            "uid": secrets.token_hex(8),
            "creationTimestamp": now(),
        }
        pod = self.made[name] = PodSandbox(body, self._changed)
        self._changed(pod)
        task = asyncio.get_running_loop().create_task(self._start(pod))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return pod

    def _check_pod(self, body: dict[str, Any]) -> None:
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise RefusedError(
                400, "BadRequest", f"strict decoding error: {error.message}"
            ) from error
        metadata, spec = body["metadata"], body["spec"]
        labels: dict[str, str] = metadata.get("labels", {})
        name: str = metadata["name"]
        if not _NAME.fullmatch(name):
            raise RefusedError(422, "Invalid", f'Pod "{name}" is invalid: metadata.name')
        for key, value in labels.items():
            if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
                raise RefusedError(422, "Invalid", f"metadata.labels: {key}={value!r}")
        if name in self.made:
            raise RefusedError(409, "AlreadyExists", f'pods "{name}" already exists')
        runtime = spec.get("runtimeClassName")
        if runtime is not None and runtime not in self.cluster.runtime_classes:
            message = f'pod rejected: RuntimeClass "{runtime}" not found'
            raise RefusedError(403, "Forbidden", f'pods "{name}" is forbidden: {message}')
        limit, used = self.cluster.max_pods, sum(not pod.is_finished for pod in self.made.values())
        if used >= limit:
            message = f"exceeded quota: pods, requested: pods=1, used: pods={used}, limited: "
            raise RefusedError(
                403, "Forbidden", f'pods "{name}" is forbidden: {message}pods={limit}'
            )

    async def _start(self, pod: PodSandbox) -> None:
        image: str = pod.object["spec"]["containers"][0]["image"]
        if not self.cluster.has_room:
            pod.set_status("Pending", {"waiting": {"reason": "Unschedulable"}})
        elif image not in self.cluster.images:
            for reason in ("ErrImagePull", "ImagePullBackOff"):
                waiting = {"reason": reason, "message": f"pull of {image}: not found"}
                pod.set_status("Pending", {"waiting": waiting})
        else:
            api = None if self._is_closed(pod) else self.url
            try:
                await pod.start(self._provider, self.cluster.images[image], api)
            except SandboxError as error:
                await pod.end("StartError", str(error))

    def _is_closed(self, pod: PodSandbox) -> bool:
        """Return whether a policy selects the pod. Our policies never open the API server."""
        labels = pod.object["metadata"].get("labels", {})
        wanted = (
            each["spec"]["podSelector"].get("matchLabels", {}) for each in self.cluster.policies
        )
        return self.cluster.enforces_policies and any(
            each.items() <= labels.items() for each in wanted
        )

    def _changed(self, pod: PodSandbox) -> None:
        if pod.is_finished:
            self.finished.set()
        self._version += 1
        pod.object["metadata"]["resourceVersion"] = str(self._version)

    async def _list(self, query: dict[str, str], send: Send) -> None:
        self._need("list", "pods")
        _check_fields(query)
        chosen = [_shown(pod) for pod in self.made.values()]
        chosen = [each for each in chosen if _matches(each, query)]
        start, size = int(query.get("continue", "0")), int(query.get("limit", "500"))
        more = {"continue": str(start + size)} if start + size < len(chosen) else {}
        metadata = {"resourceVersion": str(self._version), **more}
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
        await respond(send, 200, {**page, "items": chosen[start : start + size]})

    def _review(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted = body["spec"]["resourceAttributes"]
        part = f"/{wanted['subresource']}" if wanted.get("subresource") else ""
        right = (wanted["verb"], wanted["resource"] + part)
        allowed = right not in self.cluster.missing_rights
        kind = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        return {**kind, "metadata": {}, "spec": body["spec"], "status": {"allowed": allowed}}

    def _runtime_class(self, name: str) -> dict[str, Any]:
        if name not in self.cluster.runtime_classes:
            raise RefusedError(404, "NotFound", f'runtimeclasses.node.k8s.io "{name}" not found')
        kind = {"kind": "RuntimeClass", "apiVersion": "node.k8s.io/v1", "metadata": {"name": name}}
        return {**kind, "handler": self.cluster.runtime_classes[name]}

    async def _exec(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        match = _POD.fullmatch(scope["path"])
        if match is None or not match["exec"] or match["namespace"] != self._namespace:
            raise RefusedError(404, "NotFound", f"{scope['path']} is not served")
        for verb in ("create", "get"):
            self._need(verb, "pods/exec")
        query = _query(scope, _EXEC)
        if V5 not in scope["subprotocols"]:
            raise RefusedError(400, "BadRequest", f"this server speaks only {V5}")
        if query.get("tty") == "True":
            raise RefusedError(400, "BadRequest", "this server has no terminals")
        pod = self._find(match["name"])
        if pod.status["phase"] != "Running":
            raise RefusedError(500, "InternalError", f"the pod is {pod.status['phase']}")
        await send({"type": "websocket.accept", "subprotocol": V5})
        await pod.exec(scope, receive, send)

    async def aclose(self) -> None:
        """Delete every pod."""
        for task in list(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        for name in list(self.made):
            await self.remove(name)


def _query(scope: Scope, allowed: Iterable[str]) -> dict[str, str]:
    query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
    if unknown := query.keys() - set(allowed):
        raise RefusedError(400, "BadRequest", f"unknown query parameters: {sorted(unknown)}")
    return query


def _checked(body: bytes, scope: Scope, allowed: Iterable[str]) -> dict[str, Any]:
    """Return the JSON object of a request."""
    _query(scope, allowed)
    given: Any = json.loads(body)
    if not isinstance(given, dict):
        raise RefusedError(400, "BadRequest", "the body is not an object")
    return given  # pyright: ignore[reportUnknownVariableType]


def _check_fields(query: dict[str, str]) -> None:
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        name = re.split("!?=", part)[0]
        if name not in {"metadata.name", "status.phase"}:
            raise RefusedError(400, "BadRequest", f"field label not supported: {name}")


def _shown(pod: PodSandbox) -> dict[str, Any]:
    return {**pod.object, "status": pod.status}


def _matches(pod: dict[str, Any], query: dict[str, str]) -> bool:
    """Return whether selectors choose a pod: existence of a label, and fields by `=` and `!=`."""
    labels = pod["metadata"].get("labels", {})
    fields = {"metadata.name": pod["metadata"]["name"], "status.phase": pod["status"]["phase"]}
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        name, is_not, value = part.partition("!=") if "!=" in part else part.partition("=")
        if (fields[name] == value) == (is_not == "!="):
            return False
    return all(label in labels for label in filter(None, query.get("labelSelector", "").split(",")))


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    kind["status"] = "Failure"
    return {**kind, "code": code, "reason": reason, "message": message}


async def _refuse(scope: Scope, send: Send, error: RefusedError) -> None:
    body = _status(error.code, error.reason, str(error))
    if scope["type"] == "http":
        await respond(send, error.code, body)
        return
    kind = [(b"content-type", b"application/json")]
    start = {"type": "websocket.http.response.start", "status": error.code, "headers": kind}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": json.dumps(body).encode()})


@asynccontextmanager
async def kubernetes_server(
    provider: SandboxProvider,
    cluster: ClusterState,
    *,
    token: str = "kubernetes_test",  # noqa: S107 - of a test
    namespace: str = "benchflow",
) -> AsyncGenerator[tuple[KubernetesServer, str]]:
    """Serve a namespace over the sandboxes of `provider`; yield it and its URL."""
    server = KubernetesServer(provider, cluster, token=token, namespace=namespace)
    async with serving(server.garbage.around(server)) as server.url:
        try:
            yield server, server.url
        finally:
            await server.aclose()
