"""Every command: its function and its help line.

`bench --help` reads only this table: it imports neither a command nor the parser. The
parser imports only the command that it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc


@dataclass(frozen=True, slots=True)
class Command:
    """A command's implementation, as `module:function`, and its help line."""

    target: str
    summary: str

    def load(self) -> object:
        """Import the function of the command."""
        module, name = self.target.split(":")
        return getattr(import_module(module), name)

    def examples(self) -> list[str]:
        """Return the examples of the command's docstring."""
        text = getdoc(self.load()) or ""
        shown = text.partition("Examples:\n")[2].partition("\n\n")[0]
        return [line.strip() for line in shown.splitlines()]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that share a noun."""

    summary: str
    commands: dict[str, Command]
    default: str | None = None
    """The command for words that name none: `bench analyze JOB`."""
    runs_alone: bool = False
    """Whether the group without any word runs `default`: `bench dashboard`."""


ROOT: dict[str, Command] = {
    "demo": Command("benchflow.cli.demo:demo", "Watch one rollout: act, ask, fork, grade."),
    "run": Command("benchflow.cli.run:run", "Run one rollout of one task."),
    "serve": Command("benchflow.cli.serve:serve", "Serve rollouts to a trainer over HTTP."),
    "doctor": Command("benchflow.cli.doctor:doctor", "Check what this machine can do."),
}

GROUPS: dict[str, Group] = {
    "eval": Group(
        "Run jobs and show their results.",
        {
            "create": Command("benchflow.cli.eval:create", "Run tasks as a job, or resume one."),
            "list": Command("benchflow.cli.eval:list_jobs", "List jobs."),
            "show": Command("benchflow.cli.eval:show", "Show a job's rollouts and rewards."),
            "export": Command(
                "benchflow.cli.eval_export:export", "Export a job for another engine."
            ),
        },
    ),
    "job": Group(
        "Run jobs of a job.toml; pause, extend and resume them.",
        {
            "run": Command("benchflow.cli.job:run", "Run the job of a job.toml, or resume it."),
            "status": Command("benchflow.cli.job_status:status", "Show the state of a job."),
            "watch": Command(
                "benchflow.cli.job_status:watch", "Show the state whenever it changes."
            ),
            "pause": Command("benchflow.cli.orders:pause", "Start no further rollout."),
            "resume": Command("benchflow.cli.job:resume", "End a pause, or run what is left."),
            "drain": Command("benchflow.cli.orders:drain", "Let what runs end, then end the job."),
            "cancel": Command("benchflow.cli.orders:cancel", "End what runs, then end the job."),
            "kill": Command("benchflow.cli.orders:kill", "Cancel, or else kill the process."),
            "requeue": Command("benchflow.cli.orders:requeue", "Run slots without a score again."),
            "extend": Command(
                "benchflow.cli.orders:extend", "Add replications, tasks or variants."
            ),
            "set": Command("benchflow.cli.orders:set_limits", "Change limits of a job that runs."),
        },
    ),
    "analyze": Group(
        "Compare jobs and variants: pass@k, intervals, SQL.",
        {
            "show": Command("benchflow.cli.analyze:show", "Show and compare jobs (the default)."),
            "sql": Command("benchflow.cli.analyze:sql", "Run a SELECT over the facts of a job."),
            "parquet": Command(
                "benchflow.cli.analyze:parquet", "Write the facts of a job as parquet."
            ),
        },
        default="show",
    ),
    "rollout": Group(
        "Read rollouts, and continue them.",
        {
            "list": Command(
                "benchflow.cli.rollouts:list_rollouts", "List rollouts, with their rewards."
            ),
            "show": Command("benchflow.cli.rollout:show", "Show a rollout step by step."),
            "tree": Command("benchflow.cli.rollout:tree", "Show a rollout as a tree."),
            "diff": Command(
                "benchflow.cli.rollout:diff", "Show the difference between two states."
            ),
            "evidence": Command(
                "benchflow.cli.rollout:evidence", "Show verdicts, logs and artifacts."
            ),
            "export": Command("benchflow.cli.rollout:export", "Export trajectories for a trainer."),
            "formats": Command("benchflow.cli.rollout:list_formats", "List export formats."),
            "import": Command(
                "benchflow.cli.rollout_import:import_rollout",
                "Import trajectories that BenchFlow did not run.",
            ),
            "branch": Command("benchflow.cli.branch:branch", "Continue from a saved checkpoint."),
            "resume": Command(
                "benchflow.cli.resume:resume", "Run the rest of a rollout that was cut short."
            ),
            "replay": Command(
                "benchflow.cli.branch:replay", "Run a trajectory again from its record."
            ),
        },
    ),
    "checkpoint": Group(
        "List, export and delete saved checkpoints.",
        {
            "list": Command("benchflow.cli.checkpoint:list_checkpoints", "List saved checkpoints."),
            "show": Command("benchflow.cli.checkpoint:show", "Show one saved checkpoint."),
            "export": Command(
                "benchflow.cli.checkpoint:export", "Copy a saved checkpoint to a directory."
            ),
            "gc": Command("benchflow.cli.checkpoint:gc", "Delete old saved checkpoints."),
        },
    ),
    "store": Group(
        "Check, rebuild and clean the record database of a job.",
        {
            "verify": Command(
                "benchflow.cli.store:verify", "Check the database, the artifacts and the facts."
            ),
            "rebuild": Command(
                "benchflow.cli.store:rebuild", "Write the facts again from the database."
            ),
            "gc": Command("benchflow.cli.store:gc", "Delete artifacts that no attempt names."),
            "migrate": Command(
                "benchflow.cli.store:migrate", "Bring the database to this version's schema."
            ),
        },
    ),
    "tasks": Group(
        "Write, check and serve tasks.",
        {
            "check": Command(
                "benchflow.cli.tasks:check", "Check tasks: well-formed, nop = 0, oracle = 1."
            ),
            "import": Command(
                "benchflow.cli.tasks:import_foreign_tasks",
                "Copy tasks of Harbor and Terminal-Bench.",
            ),
            "init": Command("benchflow.cli.tasks:init", "Create a new task directory."),
            "list": Command("benchflow.cli.tasks:list_tasks", "List the tasks of a directory."),
            "serve": Command(
                "benchflow.cli.task_server:serve_tasks",
                "Serve tasks to another framework: ORS, NeMo Gym, OpenEnv.",
            ),
        },
    ),
    "env": Group(
        "Check environment manifests.",
        {
            "check": Command(
                "benchflow.cli.env:check", "Check a manifest; with --start, start its services."
            ),
        },
    ),
    "dashboard": Group(
        "Show runs, rollout trees and rewards in the browser.",
        {
            "serve": Command("benchflow.cli.dashboard:serve", "Serve the dashboard (the default)."),
            "runs": Command("benchflow.cli.dashboard:runs", "List runs as the dashboard does."),
            "failures": Command(
                "benchflow.cli.dashboard:failures", "List the causes of failed rollouts."
            ),
            "search": Command("benchflow.cli.dashboard:search", "Search the steps of rollouts."),
            "fleet": Command("benchflow.cli.dashboard:fleet", "Show sandboxes and queues."),
            "export": Command("benchflow.cli.dashboard:export", "Export runs for a trainer."),
            "notes": Command(
                "benchflow.cli.dashboard:notes", "Show labels and notes on a rollout."
            ),
            "cost": Command("benchflow.cli.dashboard_reports:cost", "Show cost and tokens."),
            "rewards": Command(
                "benchflow.cli.dashboard_reports:rewards", "Show rewards by space and granularity."
            ),
            "user": Command("benchflow.cli.dashboard:user", "Add a user with a token."),
            "reindex": Command(
                "benchflow.cli.dashboard:reindex", "Build the index of the dashboard anew."
            ),
        },
        default="serve",
        runs_alone=True,
    ),
    "view": Group(
        "Write pages of the dashboard as files.",
        {
            "bundle": Command(
                "benchflow.cli.view:bundle", "Write jobs and rollouts as static pages."
            ),
        },
    ),
    "monitor": Group(
        "Score and chart traces of production agents.",
        {
            "run": Command(
                "benchflow.cli.monitor:run", "Serve the dashboard, and take traces of agents."
            ),
            "show": Command(
                "benchflow.cli.monitor:show", "Show metrics and rewards, or a rollout."
            ),
            "watch": Command("benchflow.cli.monitor:watch", "Print rollouts that end, and alerts."),
            "alerts": Command("benchflow.cli.monitor:alerts", "List alerts."),
            "replay": Command("benchflow.cli.monitor:replay", "Score recorded traces offline."),
            "export": Command(
                "benchflow.cli.monitor:export", "Write a rollout as a trainer row or a task."
            ),
            "key": Command("benchflow.cli.monitor:key", "Make an ingest key."),
        },
    ),
    "agent": Group(
        "List, show, add and probe agents.",
        {
            "list": Command("benchflow.cli.agent:list_agents", "List the known agents."),
            "show": Command("benchflow.cli.agent:show", "Show an agent's declaration."),
            "add": Command("benchflow.cli.agent:add", "Add an agent of the ACP registry."),
            "probe": Command(
                "benchflow.cli.agent:probe", "Run an agent and report its capabilities."
            ),
        },
    ),
    "gateway": Group(
        "Record and replay an agent's model calls.",
        {
            "serve": Command("benchflow.cli.gateway:serve", "Serve a recorded model endpoint."),
            "show": Command("benchflow.cli.gateway:show", "Show recorded calls."),
            "probe": Command(
                "benchflow.cli.rendering:probe", "Show whether a model endpoint returns tokens."
            ),
            "render": Command(
                "benchflow.cli.rendering:render", "Serve a chat endpoint over a token engine."
            ),
        },
    ),
    "sandbox": Group(
        "List and delete sandboxes, check a provider.",
        {
            "list": Command("benchflow.cli.sandbox:list_sandboxes", "List sandboxes."),
            "prune": Command("benchflow.cli.sandbox:prune", "Delete the sandboxes of ended runs."),
            "check": Command(
                "benchflow.cli.sandbox:check", "Run the conformance checks on a provider."
            ),
        },
    ),
}

EPILOGUE = """\
Short options of runs and jobs, as in Harbor:
  -a --agent, -m --model, -p --tasks-dir, -d --dataset, -n --concurrency, -k --repeats

Options for every command:
  --json       JSON on standard output.
  --config F   Options from a TOML or YAML file; BENCHFLOW_<OPTION> overrides the file.
  --no-color   No colours (also NO_COLOR=1).
  --debug      Tracebacks of errors.
  --help       Options and examples of a command.

Completion: bench --install-completion [bash|zsh|fish]

Exit codes: 0 success, 1 ran but failed, 2 wrong usage, 3 wrong task or manifest,
4 the machine, sandbox or agent failed, 130 interrupted.
"""


def with_default(words: list[str]) -> list[str]:
    """Return `words` with the default command of their group, if they name none of the group."""
    group = GROUPS.get(words[0])
    if group is None or group.default is None:
        return words
    if len(words) == 1:
        return [words[0], group.default] if group.runs_alone else words
    is_named = words[1] in group.commands or words[1] in {"--help", "-h"}
    return words if is_named else [words[0], group.default, *words[1:]]


def find_command(words: Sequence[str]) -> Command | None:
    """Return the command that `words` start with, `None` for a bare group."""
    if words[0] not in GROUPS:
        return ROOT.get(words[0])
    return GROUPS[words[0]].commands.get(words[1]) if len(words) > 1 else None


def overview() -> str:
    """Return the text of `bench --help`."""
    rows = [(name, command.summary) for name, command in ROOT.items()]
    for name, group in GROUPS.items():
        rows.append((f"{name} {'|'.join(group.commands)}", group.summary))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {summary}" for name, summary in rows]
    head = "Usage: bench COMMAND\n\nThe environment-and-rollout engine for agentic RL.\n"
    return "\n".join([head, "Commands:", *lines, "", EPILOGUE])
