"""Judge groups by atroposlib's own API server: `python check_atropos.py PORT BATCH_SIZE BATCHES`.

Registers as a trainer, prints a line when it has started, and then the batches as JSON.
"""

import json
import sys
import time
import urllib.request
from typing import Any

PORT, BATCH_SIZE, BATCHES = map(int, sys.argv[1:])


def call(path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def batches() -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < BATCHES and time.monotonic() < deadline:
        batch = call("/batch")["batch"]
        if batch is None:
            time.sleep(0.05)
        else:
            found.append(batch)
    return found


call(
    "/register",
    {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": BATCH_SIZE,
        "max_token_len": 4096,
        "checkpoint_dir": "",
        "save_checkpoint_interval": 0,
        "starting_step": 0,
        "num_steps": 10,
    },
)
assert call("/batch") == {"batch": None}
print("started", flush=True)
print(json.dumps(batches()))
