"""`bench agent`: list, show, add and probe agents."""

from pathlib import Path
from typing import Final, cast

from benchflow_agent_acp import AcpAgent, DeclaredAgent, write_proven
from benchflow_agent_acp import probe as run_probe
from benchflow_agent_acp.acp_registry import Wire, declaration_of, read_entry
from benchflow_agent_acp.aliases import ALIASES
from benchflow_contracts import Agent, UsageError
from benchflow_engine.config import AgentConfig, RunConfig
from benchflow_engine.flags import RunFlags
from benchflow_engine.planes import load_agent, open_provider
from benchflow_engine.user_agents import add_declaration, added_agents
from benchflow_kernel import Registry

from .flags import Json
from .output import print_json, print_line, print_table
from .rollout_flags import Run, configuration

_COLUMNS: Final[tuple[str, ...]] = (
    "agent",
    "version",
    "protocol",
    "asks",
    "run",
    "proven",
    "aliases",
    "command",
)
_PROOF_COLUMNS: Final[tuple[str, ...]] = ("agent", "proven", "version", "date", "command")


def list_agents(*, proofs: bool = False, json: Json = False) -> None:
    """List the installed and the added agents, with what real runs have proven.

    `run` is the day of the last real run of this version, and `command` repeats the run or says
    why there was none.

    Examples:
        bench agent list
        bench agent list --proofs

    Args:
        proofs: List of each proof with its day and its command.
    """
    names = sorted({*Registry().names("benchflow.agents"), *added_agents()})
    rows = [_row(name) for name in names]
    columns = _COLUMNS
    if proofs:
        rows = [{"agent": row["agent"], **proof} for row in rows for proof in _proofs(row)]
        columns = _PROOF_COLUMNS
    if json:
        print_json(rows)
    else:
        cells = [[_cell(row[column]) for column in columns] for row in rows]
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
    if isinstance(chosen, DeclaredAgent):
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


def add(
    source: Path,
    agent: str | None = None,
    *,
    wire: Wire = "openai-chat",
    env: tuple[str, ...] = (),
    platform: str = "linux-x86_64",
    replace: bool = False,
    json: Json = False,
) -> None:
    """Add an agent of the public ACP registry, from its `agent.json` or `registry.json`.

    The declaration is written below `~/.config/benchflow/agents`. The registry does not say how an
    agent gets its model: give the protocol and the variables. Then try it: `bench agent probe`.

    Examples:
        bench agent add registry.json goose --env OPENAI_HOST={base_url}

    Args:
        source: The file. A program of `binary` must be in the task's image.
        agent: The id of the agent in a `registry.json`.
        wire: The protocol of the agent's model calls.
        env: Variable of the agent, such as `OPENAI_BASE_URL={base_url}`. Repeatable.
        platform: The key of `binary` to use.
        replace: Replacement of an earlier declaration.
    """
    try:
        data = source.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the registry: {error}", where=str(source)) from error
    entry = read_entry(data, agent, where=str(source))
    declaration, text = declaration_of(entry, wire=wire, env=_variables(env), platform=platform)
    path = add_declaration(declaration.id, text, replace=replace)
    if json:
        print_json({"agent": declaration.id, "path": str(path)})
    else:
        print_line(f"agent {declaration.id!r} added: {path}")


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    for name, mark, _ in pairs:
        if not (name and mark):
            raise UsageError(f"--env {name!r} has no value", hint="give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _evidence(agent: Agent) -> dict[str, object]:
    """Return the last real run of the agent's version, and each of its proofs."""
    if not isinstance(agent, DeclaredAgent):
        return {"run": "-", "command": "built in, run by BenchFlow's tests", "proofs": []}
    decl = agent.decl
    proofs = [
        {"proven": fidelity, **proof.model_dump()}
        for fidelity, proof in sorted(decl.proven.items())
        if proof.version == decl.version
    ]
    run = {"run": "-", "command": f"untested: {decl.probe.untested or 'no run of this version'}"}
    if decl.probe.verified_version == decl.version and decl.probe.date is not None:
        run = {"run": decl.probe.date, "command": decl.probe.command or "-"}
    elif proofs:
        last = max(proofs, key=lambda proof: str(proof["date"]))
        run = {"run": str(last["date"]), "command": str(last["command"])}
    return {**run, "proofs": proofs}


def _proofs(row: dict[str, object]) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", row["proofs"])


def _cell(value: object) -> object:
    return " ".join(map(str, value)) or "-" if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def _row(name: str) -> dict[str, object]:
    agent = load_agent(_config(name))
    capabilities = agent.capabilities()
    return {
        "agent": name,
        "version": capabilities.version or "-",
        "protocol": capabilities.protocol,
        "asks": "yes" if capabilities.ask_user else "no",
        "session_snapshot": capabilities.session_snapshot,
        **_evidence(agent),
        "proven": sorted(capabilities.proven),
        "aliases": sorted(alias for alias, target in ALIASES.items() if target == name),
    }


def _flat(data: object, prefix: str = "") -> list[tuple[str, object]]:
    if isinstance(data, dict):
        rows: list[tuple[str, object]] = []
        for key, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            rows += _flat(value, f"{prefix}.{key}" if prefix else str(key))  # pyright: ignore[reportUnknownArgumentType]
        return rows
    return [(prefix, data)]
