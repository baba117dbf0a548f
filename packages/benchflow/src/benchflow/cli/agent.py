"""`bench agent`: list, show and probe agents."""

from benchflow_agent_acp import AcpAgent, write_proven
from benchflow_agent_acp import probe as run_probe
from benchflow_contracts import UsageError
from benchflow_engine.config import AgentConfig, RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.planes import load_agent, open_provider
from benchflow_kernel import Registry

from .flags import Json
from .output import print_json, print_table
from .rollout_flags import Run, configuration


def list_agents(*, json: Json = False) -> None:
    """List the installed agents by registry name.

    Examples:
        bench agent list
    """
    names = sorted(Registry().names("benchflow.agents"))
    rows = [_row(name) for name in names]
    if json:
        print_json(rows)
    else:
        columns = ("agent", "version", "protocol", "asks", "session snapshot")
        cells = [[row[c.replace(" ", "_")] for c in columns] for row in rows]
        print_table(columns, cells, empty="no agents")


def show(agent: str, *, json: Json = False) -> None:
    """Show an agent's declaration, and its proven capabilities.

    Examples:
        bench agent show mistral-vibe

    Args:
        agent: Registry name, or the path of a declaration.
    """
    chosen = load_agent(_config(agent))
    data: dict[str, object] = {"capabilities": chosen.capabilities().model_dump(mode="json")}
    if isinstance(chosen, AcpAgent):
        data["declaration"] = chosen.decl.model_dump(mode="json", exclude_defaults=True)
    if json:
        print_json(data)
    else:
        print_table(("key", "value"), _flat(data), empty="no declaration")


async def probe(
    agent: str,
    *,
    options: Run = RunFlags(),
    write: bool = False,
    json: Json = False,
) -> int:
    """Start an agent in a sandbox, fork it, and report its capabilities.

    Examples:
        bench agent probe scripted
        bench agent probe mistral-vibe --base-url http://127.0.0.1:8000/v1 --model m

    Args:
        agent: Registry name, or the path of a declaration.
        options: The sandbox and the model endpoint.
        write: Update of the agent's declaration file with the results.
    """
    chosen = load_agent(_config(agent))
    if not isinstance(chosen, AcpAgent):
        raise UsageError(f"agent {agent!r} does not speak ACP", hint="probe an ACP agent")
    config = configuration(options)
    endpoint, model = config.model.endpoint(), config.agent.model
    async with open_provider(config) as provider:
        report = await run_probe(chosen, provider, endpoint=endpoint, model=model)
    if write:
        write_proven(chosen.declaration_path, report)
    data = report.model_dump(mode="json")
    if json:
        print_json(data)
    else:
        print_table(("fact", "value"), _flat(data), empty="no results")
    return 0 if report.ok else 1


def _config(agent: str) -> RunConfig:
    return RunConfig(agent=AgentConfig(name=agent))


def _row(name: str) -> dict[str, object]:
    capabilities = load_agent(_config(name)).capabilities()
    return {
        "agent": name,
        "version": capabilities.version or "-",
        "protocol": capabilities.protocol,
        "asks": "yes" if capabilities.ask_user else "no",
        "session_snapshot": capabilities.session_snapshot,
    }


def _flat(data: object, prefix: str = "") -> list[tuple[str, object]]:
    if isinstance(data, dict):
        rows: list[tuple[str, object]] = []
        for key, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            rows += _flat(value, f"{prefix}.{key}" if prefix else str(key))  # pyright: ignore[reportUnknownArgumentType]
        return rows
    return [(prefix, data)]
