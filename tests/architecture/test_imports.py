"""Which package may import what: an allow-list, read from the syntax trees."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "benchflow_adapters_harbor": {
        "pydantic",
        "benchflow_contracts",
        "benchflow_kernel",
        "benchflow_reward",
        "httpx",
        "packaging",
        "pathspec",
        "yaml",
    },
    # Inspect's own package is an extra: only the parts that Inspect imports need it.
    "benchflow_adapters_gymnasium": {
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_env_outside",
        "benchflow_tool_sessions",
        "gymnasium",
        "numpy",
        "pydantic",
    },
    "benchflow_adapters_openenv": {
        "aiohttp",
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_env_outside",
        "benchflow_store",
        "benchflow_tool_sessions",
        "fastapi",
        "openenv",
        "pydantic",
        "uvicorn",
    },
    "benchflow_adapters_inspect": {
        "aiohttp",
        "benchflow_contracts",
        "benchflow_export",
        "benchflow_gateway",
        "benchflow_kernel",
        "inspect_ai",
        "pydantic",
        "starlette",
        "uvicorn",
        "zstandard",
    },
    "benchflow_adapters_nemo_gym": {
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_env_outside",
        "benchflow_kernel",
        "benchflow_serve",
        "benchflow_serve_client",
        "benchflow_store",
        "benchflow_tool_sessions",
        "httpx",
        "litestar",
        "pydantic",
    },
    "benchflow_adapters_ors": {
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_env_outside",
        "benchflow_serve",
        "benchflow_tool_sessions",
        "httpx",
        "httpx_sse",
        "litestar",
        "pydantic",
    },
    # The trainers themselves are imported by name when they are used.
    "benchflow_adapters_trainers": {
        "benchflow_contracts",
        "benchflow_export",
        "benchflow_serve_client",
        "pydantic",
    },
    # Verifiers is imported in the modules that its loaders import, and in its own process.
    "benchflow_adapters_verifiers": {
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_env_outside",
        "benchflow_export",
        "benchflow_kernel",
        "benchflow_serve_client",
        "benchflow_tool_sessions",
        "aiohttp",
        "httpx",
        "pydantic",
        "verifiers",
    },
    "benchflow_monitor": {"httpx"},
    "benchflow_serve": {
        "apsw",
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_export",
        "benchflow_jobs",
        "benchflow_kernel",
        "benchflow_serve_client",
        "benchflow_store",
        "benchflow_tool_sessions",
        "httpx",
        "litestar",
        "msgpack",
        "pydantic",
        "uvicorn",
        "zmq",
    },
    "benchflow_serve_client": {
        "pydantic",
        "pydantic_core",
        "benchflow_contracts",
        "httpx",
        "httpx_sse",
    },
    "benchflow_tool_sessions": {
        "benchflow_agent_acp",
        "benchflow_agent_policy",
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_kernel",
        "benchflow_store",
        "pydantic",
    },
    "benchflow_traces": {
        "benchflow_contracts",
        "google",
        "opentelemetry",
        "pydantic",
        "pydantic_core",
    },
    "benchflow_analysis": {"pydantic", "benchflow_contracts", "benchflow_store", "duckdb", "numpy"},
    "benchflow_clawsbench": set(),
    "benchflow_contracts": {"pydantic"},
    "benchflow_dashboard": {
        "benchflow_analysis",
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_export",
        "benchflow_jobs",
        "benchflow_kernel",
        "benchflow_reward",
        "benchflow_store",
        "benchflow_traces",
        "httpx",
        "httpx2",
        "jinja2",
        "joserfc",
        "apsw",
        "litestar",
        "opentelemetry",
        "pydantic",
        "pydantic_core",
        "uvicorn",
    },
    "benchflow_kernel": {"pydantic", "benchflow_contracts"},
    "benchflow_sandbox_native": set(),
    "benchflow_sandbox_core": {"benchflow_contracts", "benchflow_sandbox_native"},
    "benchflow_sandbox_docker": {
        "benchflow_contracts",
        "benchflow_sandbox_core",
        "benchflow_sandbox_native",
        "docker",
        "pydantic",
        "requests",
    },
    "benchflow_sandbox_local": {
        "pydantic",
        "benchflow_contracts",
        "benchflow_sandbox_core",
        "benchflow_sandbox_native",
    },
    "benchflow_sandbox_daytona": {
        "benchflow_contracts",
        "benchflow_sandbox_remote",
        "daytona",
    },
    "benchflow_sandbox_e2b": {
        "benchflow_contracts",
        "benchflow_sandbox_core",
        "benchflow_sandbox_remote",
        "e2b",
        "httpx",
    },
    "benchflow_sandbox_modal": {
        "benchflow_contracts",
        "benchflow_sandbox_remote",
        "google",
        "grpclib",
        "modal",
    },
    "benchflow_sandbox_kubernetes": {
        "aiohttp",
        "benchflow_contracts",
        "benchflow_sandbox_remote",
        "kubernetes_asyncio",
        "yaml",
    },
    "benchflow_testing_clouds": {
        "benchflow_contracts",
        "connectrpc",
        "e2b",
        "google",
        "grpclib",
        "httpx",
        "modal_proto",
        "kubernetes_validate",
        "protobuf",
        "uvicorn",
        "websockets",
    },
    "benchflow_sandbox_remote": {
        "aiohttp",
        "benchflow_contracts",
        "benchflow_sandbox_core",
        "benchflow_sandbox_native",
        "pydantic",
        "websockets",
    },
    "benchflow_agent_acp": {"pydantic", "benchflow_contracts", "acp"},
    "benchflow_agent_policy": {"benchflow_contracts", "benchflow_agent_acp"},
    "benchflow_env_manifest": {"pydantic", "benchflow_contracts"},
    "benchflow_env_outside": {"aiohttp", "pydantic", "benchflow_contracts"},
    "benchflow_gateway": {
        "pydantic",
        "pydantic_core",
        "benchflow_contracts",
        "aiohttp",
        "yarl",
        "renderers",
        "tokenizers",
    },
    "benchflow_engine": {
        "pydantic",
        "benchflow_agent_acp",
        "benchflow_contracts",
        "benchflow_export",
        "benchflow_gateway",
        "benchflow_kernel",
        "benchflow_reward",
        "benchflow_store",
    },
    "benchflow_export": {
        "pydantic",
        "pydantic_core",
        "benchflow_contracts",
        "benchflow_kernel",
        "httpx",
    },
    "benchflow_jobs": {
        "pydantic",
        "pydantic_core",
        "benchflow_contracts",
        "benchflow_engine",
        "benchflow_export",
        "benchflow_kernel",
        "benchflow_store",
        "yaml",
    },
    "benchflow_jobs_ray": {
        "benchflow_contracts",
        "benchflow_jobs",
        "benchflow_kernel",
        "ray",
    },
    "benchflow_store": {
        "apsw",
        "obstore",
        "psycopg",
        "pydantic",
        "pydantic_core",
        "benchflow_contracts",
        "benchflow_gateway",
        "benchflow_kernel",
    },
    "benchflow_testing": {
        "benchflow_contracts",
        "benchflow_kernel",
        "benchflow_reward",
        "pydantic",
        "pytest",
    },
    "benchflow_reward": {"pydantic", "benchflow_contracts", "httpx"},
}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    (source,) = ROOT.glob(f"*/*/src/{package}")
    files = sorted(source.rglob("*.py"))
    assert files
    allowed = ALLOWED[package] | {package} | sys.stdlib_module_names
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports_of(path)
        if name not in allowed
    }
    assert not wrong


def test_every_package_has_a_rule() -> None:
    present = {path.name for path in ROOT.glob("*/*/src/benchflow*") if path.is_dir()}
    assert present == set(ALLOWED) | {"benchflow"}
