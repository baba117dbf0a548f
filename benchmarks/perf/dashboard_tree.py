"""What a rollout tree of 5,000 nodes costs: layout, drawing and facts, in CPU ms.

The peer is d3-flextree, the contour-packing layout of the browser world, in node on the same tree:
`npm install d3-flextree` in a directory, and name it with --flextree. It only lays out.

One JSON line per bench on stdout.
"""

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchflow_contracts import BranchRecord, RolloutNode, RolloutTree, Step, VerifyResult
from benchflow_dashboard.tree.display import DisplayTree, Folding
from benchflow_dashboard.tree.facts import TreeFacts
from benchflow_dashboard.tree.layout import tidy_rows
from benchflow_dashboard.tree.measure import measure
from benchflow_dashboard.tree.svg import Links, Marks, draw
from report import emit

FLEXTREE = """
const { flextree } = require("d3-flextree");
const { children, n } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const build = (at) => ({ size: [24, 32], children: children[at].map(build) });
const times = [];
for (let run = 0; run < n; run += 1) {
  const data = build(0);
  const before = process.cpuUsage();
  const layout = flextree();
  layout(layout.hierarchy(data));
  const used = process.cpuUsage(before);
  times.push((used.user + used.system) / 1000);
}
console.log(JSON.stringify(times));
"""


def made_tree(size: int, seed: int = 0) -> RolloutTree:
    """Return a tree with forks at every depth; about every fourth node is a leaf."""
    rng = random.Random(seed)
    root = RolloutNode(id="n0")
    index, path = {root.id: root}, [root]
    for number in range(1, size):
        climb = rng.choice((0, 0, 0, rng.randrange(1, 12)))
        del path[max(len(path) - climb, 1) :]
        step = Step(id=f"s{number}", message=f"step {number}", started_at=0, finished_at=number % 7)
        node = RolloutNode(id=f"n{number}", parent=path[-1], step=step)
        path[-1].children.append(node)
        index[node.id] = node
        path.append(node)
    for number, node in enumerate(index.values()):
        if not node.children:
            node.results["reward"] = VerifyResult(reward=(number % 5) / 4)
        elif len(node.children) > 1:
            node.branch = BranchRecord(
                policy="group", fidelity="state", reason="made", children=len(node.children)
            )
    return RolloutTree(
        rollout_id="made", task_id="made", root=root, index=index, status="completed"
    )


def cpu_ms(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return (time.process_time() - before) * 1_000


def flextree_ms(directory: Path, children: list[list[int]], n: int) -> list[float]:
    """Return the CPU ms of `n` layouts by d3-flextree."""
    found = subprocess.run(
        ["node", "-e", FLEXTREE],
        cwd=directory,
        input=json.dumps({"children": children, "n": n}),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--n", type=int, default=20, help="repetitions")
    parser.add_argument("--flextree", type=Path, help="directory with d3-flextree in node_modules")
    given = parser.parse_args()
    tree = made_tree(given.nodes)
    unfolded = Folding(chains=False, budget=given.nodes)
    values = TreeFacts.of(tree).values
    display = DisplayTree.of(tree, unfolded)

    def drawing() -> object:
        return draw(
            DisplayTree.of(tree, unfolded), measure(tree, "value", values), Marks(), Links()
        )

    facts: dict[str, object] = {"unit": "CPU ms", "nodes": given.nodes}
    found = [cpu_ms(lambda: tidy_rows(display.children)) for _ in range(given.n)]
    peer: dict[str, object] = {}
    if given.flextree is not None:
        other = flextree_ms(given.flextree, display.children, given.n)
        middle = emit("tree.layout_flextree", other, **facts)
        ratio = round(middle / sorted(found)[given.n // 2], 2)
        peer = {"peer": "d3-flextree in node", "peer_median": round(middle, 3), "ratio": ratio}
    emit("tree.layout", found, **facts, **peer)
    emit("tree.layout_and_svg", [cpu_ms(drawing) for _ in range(given.n)], limit=60, **facts)
    emit("tree.facts", [cpu_ms(lambda: TreeFacts.of(tree)) for _ in range(given.n)], **facts)


if __name__ == "__main__":
    main()
