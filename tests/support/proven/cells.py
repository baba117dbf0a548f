"""One cell of the page: a command line of `bench`, and what must be seen of its run."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from benchflow_agent_acp import AgentDecl
from benchflow_agent_acp.declaration import ProvenFidelity
from benchflow_contracts import Role

from .model import DRINKS, PORT
from .page import can_fork

ROOT = Path(__file__).parents[3]
TASK = "tests/support/proven/task"
SCRIPT = "/opt/proven/script.toml"
_WORTH = dict(zip(DRINKS, (1.0, 0.5, 0.25), strict=True))
_NOT_LIVE = "BENCHFLOW_CRIU=/nonexistent "
_GROUP = "--branch group --branch-n 2 --branch-at 1 --branch-require"
_CALL = 4
"""The number of the model call at which the rollout is forked, within its second turn."""
_AT_CALL = f"--branch group --branch-n 2 --branch-at-call {_CALL}"
_SECONDS = 600


class NotSeenError(Exception):
    """The run did not show what its cell says."""


@dataclass(frozen=True)
class Cell:
    """What one agent is to be shown to carry."""

    decl: AgentDecl
    fidelity: ProvenFidelity

    def command(self, port: int = PORT) -> str:
        """Return the shell line that shows it, beside a model server on `port`."""
        run = f"bench run {TASK} --agent {self.decl.id}{_model(self.decl, port)}"
        match self.fidelity:
            case "state":
                return f"{_NOT_LIVE}{run} {_GROUP} state"
            case "live":
                return f"{run} {_GROUP} live"
            case "live-ask":
                return f"{run}{_asking(self.decl)} --branch ask-user --branch-require live"
            case "live-call":
                return f"{run} {_AT_CALL} --branch-require live"
            case "replay-call":
                return f"{_NOT_LIVE}{run} {_AT_CALL}"
            case "replay-ask":
                return f"{_NOT_LIVE}{run}{_asking(self.decl)} --branch ask-user"
            case "replay":
                return f'{run} && bench rollout replay "$(ls -t jobs | head -n 1)"'

    def show(self, port: int) -> None:
        """Run the command in an empty directory, and look at what is on record.

        Raises:
            NotSeenError: It failed, or shows something else.
        """
        with tempfile.TemporaryDirectory(prefix="proven-") as place:
            Path(place, "tests").symlink_to(ROOT / "tests")
            said = _shell(self.command(port), Path(place))
            trees = [json.loads(file.read_text()) for file in Path(place).glob("jobs/*/tree.json")]
        if self.fidelity == "replay":
            _expect(len(trees) == 2 and " recorded model calls" in said, said)
            _expect(all(_rewards(tree) == {"None": 1.0} for tree in trees), said)
            return
        _expect(len(trees) == 1, f"{len(trees)} rollouts: {said.strip()[-200:]}")
        (tree,) = trees
        forks = [node for node in tree["nodes"] if node["branch"]]
        _expect(len(forks) == 1, f"{len(forks)} forks: {said.strip()[-200:]}")
        (fork,) = forks
        fidelity = self.fidelity.removesuffix("-ask").removesuffix("-call")
        _expect(fork["branch"]["fidelity"] == fidelity, fork["branch"]["reason"])
        if self.fidelity.endswith("ask"):
            _expect(_rewards(tree) == _WORTH, f"rewards {_rewards(tree)}")
        else:
            _expect(list(_rewards(tree).values()) == [1.0, 1.0], f"rewards {_rewards(tree)}")
            at_call = _CALL if self.fidelity.endswith("call") else None
            _expect(fork["branch"]["call"] == at_call, f"forked at call {fork['branch']['call']}")


def cells_of(decl: AgentDecl) -> Iterator[Cell]:
    """Return the cells of one agent that its declaration does not rule out."""
    for fidelity in get_args(ProvenFidelity):
        calls_model = fidelity == "replay" or fidelity.endswith("-call")
        if not calls_model or decl.model.wire != "none":
            yield Cell(decl, fidelity)


def cells(decls: list[AgentDecl]) -> list[Cell]:
    """Return the cells of several agents."""
    return [cell for decl in decls if can_fork(decl) for cell in cells_of(decl)]


def _model(decl: AgentDecl, port: int) -> str:
    if decl.model.wire == "none":
        return f" --agent-env.BENCHFLOW_SCRIPT {SCRIPT}"
    # What the wire's vendor calls its base URL has a version in it, or has not.
    path = "" if decl.model.wire in ("anthropic", "gemini") else "/v1"
    return f" --base-url http://127.0.0.1:{port}{path} --model scripted"


def _asking(decl: AgentDecl) -> str:
    return "" if decl.asks(Role()) else " --agent-env.BENCHFLOW_ASK_MCP 1"


def _shell(command: str, cwd: Path) -> str:
    env = {**os.environ, "NO_COLOR": "1"}
    run = subprocess.Popen(
        ["sh", "-c", command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        said, _ = run.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired as late:
        # As by Ctrl-C: `bench` takes down what it started.
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=_SECONDS)
        raise NotSeenError(f"it did not end within {_SECONDS} s") from late
    if run.returncode:
        lines = said.strip().splitlines()
        why = [line for line in lines if line.startswith(("reward -", "not the same", "error"))]
        raise NotSeenError((why or lines or ["it said nothing"])[-1].partition("  jobs/")[0])
    return said


def _expect(seen: bool, what: str) -> None:
    if not seen:
        raise NotSeenError(what)


def _rewards(tree: dict[str, Any]) -> dict[str, float | None]:
    """Return the reward of each child of the fork by its label, or of the one line."""
    nodes = {node["id"]: node for node in tree["nodes"]}
    found: dict[str, float | None] = {}
    for node in tree["nodes"]:
        if "reward" in node["results"]:
            found[_label(nodes, node)] = node["results"]["reward"]["reward"]
    return found


def _label(nodes: dict[str, Any], node: dict[str, Any]) -> str:
    while node["parent"] is not None and node["label"] is None:
        node = nodes[node["parent"]]
    return str(node["label"])
