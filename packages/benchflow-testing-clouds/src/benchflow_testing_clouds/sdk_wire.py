"""Compare the SDK of a cloud with the wire that our servers know.

    python sdk_wire.py e2b daytona modal kubernetes    prints JSON; ends with 1 on a difference
    python sdk_wire.py --write e2b ...                 stores what the installed SDKs say

Only the routes, calls and messages that our servers serve are compared. They are stored in
`sdk_wire.json`, as the pinned SDKs have them. Other routes about sandboxes are listed under `new`
and `gone`, and are not a difference. The module needs the standard library and the SDK alone, so
that it runs in an environment with the newest SDK and without BenchFlow. It calls no cloud.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Wire = dict[str, str]
"""What an SDK says: the signature of each route, call and message, by its name."""

KNOWN = Path(__file__).with_name("sdk_wire.json")
_E2B = "e2b.api.client."
_DAYTONA = ("daytona_api_client_async", "daytona_toolbox_api_client_async")
_KUBERNETES = "kubernetes_asyncio.client."
USED: dict[str, tuple[str, ...]] = {
    "e2b": (
        "POST /v2/sandboxes",
        "GET /v2/sandboxes",
        "GET /sandboxes/{sandbox_id}",
        "POST /sandboxes/{sandbox_id}/timeout",
        "DELETE /sandboxes/{sandbox_id}",
        "POST /sandboxes/{sandbox_id}/fork",
        "POST /sandboxes/{sandbox_id}/snapshots",
        "DELETE /templates/{template_id}",
        "POST /v3/templates",
        "GET /templates",
        "GET /templates/aliases/{alias}",
        "GET /templates/{template_id}/files/{hash_}",
        "POST /v2/templates/{template_id}/builds/{build_id}",
        "GET /templates/{template_id}/builds/{build_id}/status",
        "NewSandboxV2",
        "TemplateBuildRequestV3",
        "TemplateRequestResponseV3",
        "TemplateBuildFileUpload",
        "TemplateBuildStartV2",
        "TemplateStep",
        "Template",
        "TemplateBuildInfo",
        "BuildLogEntry",
        "BuildStatusReason",
        "ListedSandbox",
        "SandboxDetail",
        "SandboxForkRequest",
        "SandboxForkResult",
        "SandboxSnapshotRequest",
        "SnapshotInfo",
        "process.Process/Start",
        "process.Process/Connect",
        "process.Process/StreamInput",
        "process.Process/SendInput",
        "process.Process/SendSignal",
    ),
    "daytona": (
        "POST /sandbox",
        "GET /sandbox",
        "GET /sandbox/{sandboxIdOrName}",
        "DELETE /sandbox/{sandboxIdOrName}",
        "POST /sandbox/{sandboxIdOrName}/ttl/{ttlMinutes}",
        "GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url",
        "POST /secret",
        "GET /secret/paginated",
        "DELETE /secret/{secretId}",
        "POST /process/execute",
        "POST /process/session",
        "DELETE /process/session/{sessionId}",
        "POST /process/session/{sessionId}/exec",
        "POST /process/session/{sessionId}/command/{commandId}/input",
        "GET /process/session/{sessionId}/command/{commandId}/logs",
        "POST /files/bulk-upload",
        "CreateSandbox",
        "PortPreviewUrl",
        "CreateBuildInfo",
        "CreateSecret",
        "Secret",
        "Sandbox",
        "ExecuteRequest",
        "ExecuteResponse",
        "CreateSessionRequest",
        "SessionExecuteRequest",
        "SessionSendInputRequest",
    ),
    "kubernetes": (
        "POST /api/v1/namespaces/{namespace}/pods",
        "GET /api/v1/namespaces/{namespace}/pods",
        "GET /api/v1/namespaces/{namespace}/pods/{name}",
        "DELETE /api/v1/namespaces/{namespace}/pods/{name}",
        "GET /api/v1/namespaces/{namespace}/pods/{name}/exec",
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "GET /apis/node.k8s.io/v1/runtimeclasses/{name}",
        "V1ResourceAttributes",
        "V1RuntimeClass",
        "V1PodStatus",
        "V1ContainerStatus",
        "V1ContainerState",
    ),
    "modal": (
        "AuthTokenGet",
        "ClientHello",
        "EnvironmentGetOrCreate",
        "AppGetOrCreate",
        "ImageGetOrCreate",
        "ImageFromId",
        "ImageDelete",
        "SandboxCreateV2",
        "SandboxGetFromNameV2",
        "SandboxWaitV2",
        "SandboxGetTaskIdV2",
        "SandboxGetCommandRouterAccess",
        "SandboxListV2",
        "SandboxTagsGetV2",
        "SandboxTagsSetV2",
        "SandboxTerminateV2",
        "SandboxSnapshotGet",
        "SandboxRestoreV2",
        "TaskSnapshotFilesystem",
        "TaskSnapshotMemory",
        "TaskExecStart",
        "TaskExecStdioRead",
        "TaskExecStdinWrite",
        "TaskExecStdinWriteStream",
        "TaskExecStdinStatus",
        "TaskExecPoll",
        "TaskExecWait",
        "message Sandbox",
        "message NetworkAccess",
        "message ExperimentalOutboundPolicy",
        "message Resources",
        "message GenericResult",
    ),
}
"""What our servers serve, of routes, calls and messages."""
RELATED = {
    "e2b": r"[A-Z]+ /(v2/)?s|process",
    "daytona": r"[A-Z]+ /(sandbox|process|files)",
    "kubernetes": r"[A-Z]+ .*/pods",
    "modal": r"(Sandbox|Task|Image)\w+$",
}
"""The names that are listed when they are new or gone."""
DISTRIBUTIONS = {"kubernetes": "kubernetes_asyncio"}
"""The name of an SDK on PyPI, where it differs."""


def e2b() -> Wire:
    """Return the wire of E2B's SDK: REST by generated modules, and the calls of the box."""
    found: Wire = {}
    for text in _sources(f"{_E2B}api"):
        method, url = re.search(r'"method": "(\w+)"', text), re.search(r'"url": f?"([^"]+)"', text)
        if method and url:
            parts = re.findall(r'(?:headers|params)\["([\w-]+)"\]', text)
            found[f"{method[1].upper()} {url[1]}"] = _joined(set(parts))
    for name, kind in _classes(f"{_E2B}models"):
        if hasattr(kind, "to_dict"):
            text = inspect.getsource(kind.to_dict)
            fields = re.findall(r'field_dict\["(\w+)"\]|^ +"(\w+)": \w+,$', text, re.MULTILINE)
            found[name] = _joined(first or second for first, second in fields)
    process = importlib.import_module("e2b.envd.process.process_pb")
    for service in process.desc().services:
        for call in service.methods:
            ends = (
                _joined(f"{field.number} {field.name}" for field in message.fields)
                for message in (call.input, call.output)
            )
            found[f"{service.type_name}/{call.name}"] = " -> ".join(ends)
    return found


def daytona() -> Wire:
    """Return the wire of Daytona's SDK: two clients of the generator of OpenAPI."""
    found: Wire = {}
    for client in _DAYTONA:
        for text in _sources(f"{client}.api"):
            for method, path in re.findall(r"method='(\w+)',\s+resource_path='([^']+)'", text):
                found[f"{method} {path}"] = ""
        for name, kind in _classes(f"{client}.models"):
            if hasattr(kind, "model_fields"):
                fields = kind.model_fields.items()
                found[name] = _joined(each.serialization_alias or key for key, each in fields)
    return found


def kubernetes() -> Wire:
    """Return the wire of kubernetes_asyncio."""
    found: Wire = {}
    for part in ("core_v1_api", "authorization_v1_api", "node_v1_api"):
        module: Any = importlib.import_module(f"{_KUBERNETES}api.{part}")
        text = inspect.getsource(module)
        pieces = re.split(r"call_api\(\s+'([^']+)', '(\w+)'", text)
        for before, path, method in zip(pieces[0::3], pieces[1::3], pieces[2::3], strict=False):
            queries = re.findall(r"query_params\.append\(\('(\w+)'", before.rpartition("def ")[2])
            found[f"{method} {path}"] = _joined(queries)
    for name, kind in _classes(f"{_KUBERNETES}models"):
        if hasattr(kind, "attribute_map"):
            kinds = kind.openapi_types
            found[name] = _joined(f"{key}: {kinds[own]}" for own, key in kind.attribute_map.items())
    return found


def modal() -> Wire:
    """Return the wire of Modal's SDK, by the descriptors of its protobuf files."""
    found: Wire = {}
    for part in ("api_pb2", "task_command_router_pb2"):
        file: Any = importlib.import_module(f"modal_proto.{part}").DESCRIPTOR
        for service in file.services_by_name.values():
            for call in service.methods:
                parts = (_fields(call.input_type), _fields(call.output_type))
                found[call.name] = " -> ".join(parts)
        for name, message in file.message_types_by_name.items():
            found[f"message {name}"] = _fields(message)
    return found


def _classes(module: str) -> list[tuple[str, Any]]:
    return inspect.getmembers(importlib.import_module(module), inspect.isclass)


def _fields(message: Any) -> str:  # noqa: ANN401 - a descriptor of protobuf
    return _joined(f"{field.number} {field.name}: {field.type}" for field in message.fields)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(sorted(parts))


def _sources(package: str) -> list[str]:
    """Return the text of each module below a package."""
    place = Path(str(importlib.import_module(package).__file__)).parent
    return [path.read_text() for path in sorted(place.rglob("*.py"))]


READERS: dict[str, Callable[[], Wire]] = {
    "e2b": e2b,
    "daytona": daytona,
    "kubernetes": kubernetes,
    "modal": modal,
}


def known_part(sdk: str, wire: Wire) -> dict[str, Any]:
    """Return what is stored of a wire."""
    used = {name: wire[name] for name in USED[sdk] if name in wire}
    return {"version": _version(sdk), "used": used, "related": _related(sdk, wire)}


def _related(sdk: str, wire: Wire) -> list[str]:
    return sorted(name for name in wire if re.match(RELATED[sdk], name))


def compare(sdk: str, known: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """Return the differences between the stored wire of an SDK and the installed one."""
    before: Wire = known["used"]
    related, names = set(known["related"]), set(_related(sdk, wire))
    return {
        "known": known["version"],
        "installed": _version(sdk),
        "changed": {
            name: {"known": before.get(name), "installed": wire.get(name)}
            for name in USED[sdk]
            if name not in wire or before.get(name) != wire[name]
        },
        "new": sorted(names - related),
        "gone": sorted(related - names),
    }


def _version(sdk: str) -> str:
    return version(DISTRIBUTIONS.get(sdk, sdk))


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code: 1 on a difference, 2 on a wrong argument."""
    names = [each for each in arguments if each != "--write"]
    if not names or set(names) - READERS.keys():
        print(f"name SDKs of {sorted(READERS)}, not {names}", file=sys.stderr)  # noqa: T201
        return 2
    stored: dict[str, Any] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    wires = {name: READERS[name]() for name in names}
    if "--write" in arguments:
        stored |= {name: known_part(name, wire) for name, wire in wires.items()}
        KNOWN.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        return 0
    found = {name: compare(name, stored[name], wire) for name, wire in wires.items()}
    print(json.dumps(found, indent=1))  # noqa: T201
    return int(any(each["changed"] for each in found.values()))


if __name__ == "__main__":
    # Our modules beside this one have the names of SDKs.
    sys.path = [each for each in sys.path if Path(each).resolve() != KNOWN.resolve().parent]
    sys.exit(main(sys.argv[1:]))
