"""Read a log by Inspect's own readers: `read_log.py FILE`. Print the facts as JSON."""

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from inspect_ai.event import timeline_build
from inspect_ai.log import (
    EvalSample,
    read_eval_log,
    read_eval_log_sample,
    read_eval_log_sample_summaries,
    write_eval_log,
)

path = sys.argv[1]


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return the places where a value that we wrote is missing or differs in Inspect's model."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return [where]
        return [
            place
            for key, value in ours.items()
            for place in differences(value, theirs.get(key), f"{where}.{key}")
        ]
    if isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return [where]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [p for i, (a, b) in pairs for p in differences(a, b, f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours!r} != {theirs!r}"]


def branches_of(span: Any) -> list[Any]:
    """Return a span's branches as `[anchor, name, events, branches]`, with those inside."""
    found = []
    for branch in span.branches:
        inner = [i for item in branch.content if item.type == "span" for i in branches_of(item)]
        found.append([branch.branched_from, branch.name, len(leaf_events(branch)), inner])
    for item in span.content:
        if item.type == "span":
            found += branches_of(item)
    return found


def leaf_events(span: Any) -> list[str]:
    """Return the kinds of the events below a span, without its branches."""
    kinds: list[str] = []
    for item in span.content:
        kinds += leaf_events(item) if item.type == "span" else [item.event.event]
    return kinds


log = read_eval_log(path)
header = read_eval_log(path, header_only=True)
assert header.samples is None
assert log.samples is not None
with zipfile.ZipFile(path) as archive:
    written = {name: json.loads(archive.read(name)) for name in archive.namelist()}
again = Path(tempfile.mkdtemp()) / "again.eval"
write_eval_log(log, str(again))
second = read_eval_log(str(again))
lost = []
for sample in log.samples:
    name = f"samples/{sample.id}_epoch_{sample.epoch}.json"
    pool = written[name].pop("events_data")["messages"]
    for event in written[name]["events"]:
        # Inspect's reader replaces the references by the messages.
        for start, end in event.pop("input_refs", []):
            event["input"] += pool[start:end]
    read = json.loads(EvalSample.model_dump_json(sample))
    lost += differences(written[name], read, name)
    one = read_eval_log_sample(path, id=sample.id, epoch=sample.epoch)
    assert one.model_dump_json() == sample.model_dump_json()
lost += differences(written["header.json"], json.loads(header.model_dump_json()), "header")
trees = [timeline_build(sample.events).root for sample in log.samples]
print(
    json.dumps(
        {
            "status": log.status,
            "epochs": [[sample.id, sample.epoch] for sample in log.samples],
            "lost": lost,
            "rewritten": [
                a.model_dump_json(exclude={"location"}) == b.model_dump_json(exclude={"location"})
                for a, b in zip(log.samples, second.samples or [], strict=True)
            ],
            "scores": [{k: v.value for k, v in (s.scores or {}).items()} for s in log.samples],
            "errors": [s.error is not None for s in log.samples],
            "metrics": {
                score.name: {name: m.value for name, m in score.metrics.items()}
                for score in (header.results.scores if header.results else [])
            },
            "summaries": len(read_eval_log_sample_summaries(path)),
            "branches": [branches_of(root) for root in trees],
            "tokens": [root.total_tokens() for root in trees],
            "usage": {k: v.total_tokens for k, v in header.stats.model_usage.items()},
        }
    )
)
