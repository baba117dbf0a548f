"""The messages of verifiers' env server: msgpack over ZMQ.

Source of the format: verifiers 0.4.0, `verifiers/v1/serve`. In `tests/e2e/test_env_client.py`, the
`EnvClient` of that package runs rollouts here.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgpack  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from benchflow_contracts import (
    BenchFlowError,
    ModelCall,
    RoutedExperts,
    Sample,
    TrainingOptions,
    UsageError,
)
from benchflow_export import episode
from benchflow_serve_client import ModelEndpoint, RolloutRequest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

_MSGPACK: Final[Any] = msgpack
"""The library, which has no types."""
_HEADER: Final = ("version", "id", "verifiers", "task")
"""The fields of a trace that open it."""
_LISTS: Final = (
    "nodes",
    "calls",
    "errors",
    "extra_usage",
    "request_rewrites",
    "response_rewrites",
)
"""The fields of a trace whose items are appended."""
_ITEMS: Final = 200
"""The items of one delta. A receiver must not wait for one large frame."""
_MODELS: Final = frozenset({"prompt", "skills", "artifacts", "timeout", "resources"})
"""The fields of task data that are models in verifiers, so `None` is left out inside them too."""


class EnvWireError(UsageError):
    """A message is not one of verifiers' env clients."""

    default_hint = "use the EnvClient of verifiers 0.4"


class _WireModel(BaseModel):
    """A message of another program. A later version may have more fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class WireClient(_WireModel):
    """The model endpoint of a run. `train` needs token ids, `eval` does not."""

    type: Literal["eval", "train"]
    base_url: str
    api_key_var: str = ""
    headers: Mapping[str, str] = {}
    headers_from_env: Mapping[str, str] = {}


class WireRun(_WireModel):
    """One run: one task, one policy, one episode."""

    task_data: Mapping[str, Any]
    client: WireClient
    model: str
    sampling: Mapping[str, Any] = {}

    @property
    def training(self) -> TrainingOptions:
        """What may be trained on: with `train`, only leaves whose tokens are exact."""
        return TrainingOptions(require_tokens=self.client.type == "train")

    def request(self, *, is_policy: bool, api_key: str | None) -> RolloutRequest:
        """Return the rollout of this run.

        Args:
            is_policy: Whether `model` is the name of a registered policy, which has the endpoint.
            api_key: The key of the endpoint.

        Raises:
            EnvWireError: A value is wrong.
        """
        try:
            endpoint = None if is_policy else self._endpoint(api_key)
            return RolloutRequest(
                task=self._task_id(),
                policy=self.model if is_policy else None,
                endpoint=endpoint,
                sampling={k: v for k, v in self.sampling.items() if v is not None},
                training=self.training,
            )
        except ValidationError as error:
            raise EnvWireError(f"the run is malformed: {_fault(error)}") from None

    def _endpoint(self, api_key: str | None) -> ModelEndpoint:
        return ModelEndpoint(
            url=self.client.base_url,
            model=self.model,
            upstream="vllm" if self.client.type == "train" else "openai",
            api_key=None if api_key is None else SecretStr(api_key),
        )

    def _task_id(self) -> str:
        for key in ("id", "name"):
            if isinstance(value := self.task_data.get(key), str):
                return value
        raise EnvWireError("task_data has no 'id' and no 'name' of a task of this server")


def unpack(data: bytes) -> Mapping[str, Any]:
    """Return a message. Bytes of strangers are an error, and nothing else.

    Raises:
        EnvWireError: The bytes are not a map of strings.
    """
    try:
        found: object = _MSGPACK.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, _MSGPACK.UnpackException, RecursionError) as error:
        raise EnvWireError(f"not msgpack: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise EnvWireError("not a map")
    return cast("Mapping[str, Any]", found)


def pack(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message."""
    data: bytes = _MSGPACK.packb(message, use_bin_type=True)
    return data


def read_run(data: bytes) -> WireRun:
    """Return the run of a request.

    Raises:
        EnvWireError: The bytes are not a run.
    """
    try:
        return WireRun.model_validate(unpack(data))
    except ValidationError as error:
        raise EnvWireError(f"the run is malformed: {_fault(error)}") from None


def echo_task(task_data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of an episode as it was dispatched.

    A trainer refuses an episode whose key or hash is another one, so both are those of verifiers'
    `Task`: the hash of the data without its `None`. A `Task` that overrides `key` can send its own
    as `benchflow_key` in the data.

    Raises:
        EnvWireError: The data is not JSON.
    """
    try:
        digest = task_hash(task_data)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvWireError(f"task_data is not JSON: {type(error).__name__}") from None
    key = task_data.get("benchflow_key")
    return {
        "type": "BenchFlowTask",
        "data": dict(task_data),
        "key": key if isinstance(key, str) else digest,
        "hash": digest,
    }


def task_hash(task_data: Mapping[str, Any]) -> str:
    """Return the hash of task data, as verifiers' `Task.hash`."""
    known = {
        key: _without_none(value) if key in _MODELS else value
        for key, value in task_data.items()
        if value is not None
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _without_none(value: object) -> object:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: _without_none(each) for key, each in table.items() if each is not None}
    if isinstance(value, list):
        return [_without_none(each) for each in cast("list[object]", value)]
    return value


def render_episode(
    samples: Sequence[Sample], calls: Mapping[str, ModelCall], task: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the episode of a tree with one trace a leaf; `None` without samples."""
    rendered = episode(samples, calls, "leaves")
    if rendered is None:
        return None
    traces: list[dict[str, Any]] = [{**trace, "task": task} for trace in rendered["traces"]]
    for sample, trace in zip(samples, traces, strict=True):
        for span, node in zip(sample.spans, trace["nodes"], strict=True):
            if (experts := span.routed_experts) is not None:
                node["routed_experts"] = _array(experts)
            if (mask := span.sampling_mask) is not None and span.is_trainable:
                node["sampling_mask"] = {"ids": _ints(mask.ids), "counts": _ints(mask.counts)}
    return {**rendered, "task": task, "traces": traces}


def _array(experts: RoutedExperts) -> dict[str, Any]:
    """Return an array as verifiers sends one of numpy."""
    shape, data = list(experts.shape), experts.tobytes()
    return {"__nd__": True, "dtype": experts.dtype, "shape": shape, "data": data}


def _ints(data: str) -> dict[str, Any]:
    raw = base64.b64decode(data)
    return {"__nd__": True, "dtype": "int32", "shape": [len(raw) // 4], "data": raw}


def failed_episode(
    rollout: str, task: Mapping[str, Any], errors: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return the episode of a rollout that has nothing to train on. Its reward is not 0."""
    return {
        "id": rollout,
        "env": {"id": "benchflow"},
        "task": task,
        "group": None,
        "ok": False,
        "errors": [{"type": kind, "message": message} for kind, message in errors],
        "traces": [],
    }


def deltas_of(trace: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas that make up a trace: its header, its items in parts, and the rest."""
    lists: dict[str, list[Any]] = {name: trace.get(name) or [] for name in _LISTS}
    longest = max(map(len, lists.values()))
    others = {k: v for k, v in trace.items() if k not in _HEADER and k not in _LISTS}
    for start in range(0, max(1, longest), _ITEMS):
        delta: dict[str, Any] = {"trace": trace["id"]}
        if start == 0:
            delta["open"] = {name: trace[name] for name in _HEADER}
        for name, items in lists.items():
            if part := items[start : start + _ITEMS]:
                delta[name] = part
        if start + _ITEMS >= longest:
            delta["set"] = others
        yield delta


def run_reply(episode_of_tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of a run whose traces were sent as deltas."""
    return {
        "success": True,
        "error": None,
        "head": {key: value for key, value in episode_of_tree.items() if key != "traces"},
        "traces": [
            {"id": each["id"], "nodes": len(each["nodes"]), "calls": len(each["calls"])}
            for each in episode_of_tree["traces"]
        ],
    }


def error_reply(error: BaseException) -> dict[str, Any]:
    """Return the reply of a request that failed. A defect does not show its message."""
    known = isinstance(error, BenchFlowError)
    message = f"{type(error).__name__}: {error}" if known else "the service has a defect"
    return {"success": False, "error": message}


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
