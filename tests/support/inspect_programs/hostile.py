"""List and score hostile tasks: `hostile.py CACHE`. Print refusals and verdicts as JSON."""

import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import quote

from benchflow_adapters_inspect.tasks import InspectAdapter, inspect_rewards
from benchflow_contracts import Evidence, RewardError, RolloutNode
from hostile_task import SCORES

adapter = InspectAdapter(Path(sys.argv[1]))
here = Path(__file__).with_name("hostile_task.py")


def verdict(kind: str) -> list[object]:
    """Return the reward and the size of its facts, or the error, of a task without a sandbox."""
    (listed,) = adapter.list_tasks(f"inspect:{here}@hostile_scores?kind={quote(kind)}")
    assert listed.path is not None
    task = adapter.load_task(listed.path)
    (reward,) = inspect_rewards(task)
    try:
        result = asyncio.run(reward.score(RolloutNode(id="n0"), Evidence(task=task)))
    except RewardError as error:
        return [None, str(error)]
    return [result.reward, len(json.dumps(result.meta))]


listing = adapter.list_tasks(f"inspect:{here}@hostile_files")
facts = {each.name: [refusal.reason for refusal in each.refusals] for each in listing}
print(json.dumps({"files": facts, "verdicts": {kind: verdict(kind) for kind in SCORES}}))
