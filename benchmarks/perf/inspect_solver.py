"""What BenchFlow adds to a task of Inspect: processor time for each model call of its solver.

A solver calls the model some times and does nothing else. `bench run` plays it with the agent
`inspect-solver`: each call goes through the gateway to a scripted endpoint, and is a step of the
record. `inspect eval` plays the same solver, with Inspect's own client of the same endpoint, and
with its `mockllm` without any endpoint. Each process runs with few and with many calls; the
difference is free of the start. `added` is the time of `bench run` less that of `inspect eval` with
the same endpoint: it has the gateway, the record, and our client less Inspect's client. The time
over `mockllm` also has a whole client. The endpoint's own time counts nowhere.

`python inspect_solver.py [--rounds 5]`. It installs Inspect's package with uv, once.
"""

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path

from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from inspect_judge import PROGRAMS, run_inspect
from scripted_llm import ModelReply, ScriptedLlm

BOUND_MS = 3.0
CLIENT = "openai==3.51.0"
"""What Inspect's own client of an endpoint needs."""
FEW, MANY = 100, 1100
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import includes
from inspect_ai.solver import solver


@solver
def calls(count):
    async def solve(state, generate):
        for _ in range(count):
            state.messages = [ChatMessageUser(content="Say it.")]
            state = await generate(state)
        return state

    return solve


@task
def few():
    return Task([Sample(input="Say it.", target="Done")], solver=calls(FEW), scorer=includes())


@task
def many():
    return Task([Sample(input="Say it.", target="Done")], solver=calls(MANY), scorer=includes())
""".replace("FEW", str(FEW)).replace("MANY", str(MANY))


def spent(*args: object) -> float:
    """Run Inspect's Python in a new directory with the task; return its CPU milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "calls_task.py").write_text(TASK)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run_inspect(Path(name), *args, packages=(CLIENT,))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def a_call(*args: object) -> float:
    """Return the CPU milliseconds of one model call. `{}` in `args` is the name of the task."""
    few, many = (spent(*(str(arg).format(name) for arg in args)) for name in ("few", "many"))
    return (many - few) / (MANY - FEW)


def main() -> None:
    """Measure both by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ["STUB_API_KEY"] = "none"
    found: dict[str, list[float]] = {"bench": [], "client": [], "mock": []}
    with ScriptedLlm(lambda _: ModelReply(text="Done")) as llm:
        endpoint = f"{llm.url}/v1"
        source = (PROGRAMS / "run_sample.py", "inspect:calls_task.py@{}", "--json")
        flags = ("--agent", "inspect-solver", "--sandbox", "local")
        model = ("--base-url", endpoint, "--model", "scripted")
        own = ("-m", "inspect_ai", "eval", "calls_task.py@{}", "--model")
        programs: dict[str, tuple[object, ...]] = {
            "bench": (*source, *flags, *model),
            "client": (*own, "openai-api/stub/scripted", "--model-base-url", endpoint),
            "mock": (*own, "mockllm/model"),
        }
        for _ in range(rounds):
            for name, words in programs.items():
                found[name].append(a_call(*words))
    peer = emit("inspect_solver.inspect_eval_cpu_ms_per_call", found["client"])
    emit("inspect_solver.inspect_eval_mockllm_cpu_ms_per_call", found["mock"])
    emit("inspect_solver.bench_run_cpu_ms_per_call", found["bench"], peer=round(peer, 3))
    for name, other in (("added", "client"), ("added_over_mockllm", "mock")):
        added = [ours - theirs for ours, theirs in zip(found["bench"], found[other], strict=True)]
        emit(f"inspect_solver.{name}_cpu_ms_per_call", added, limit=BOUND_MS)


main()
