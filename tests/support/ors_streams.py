"""Random results as event streams, for the parsers of the published ORS clients."""

import json
import random
from collections.abc import Iterator

from benchflow_adapters_ors.sse import encode_event, encode_result
from benchflow_adapters_ors.wire import TextBlock, ToolOutput, ToolSuccess

PEERS = {"ors": "ors-sdk==0.1.0", "openreward": "openreward==0.1.167"}
_LETTERS = " " * 12 + '\u00a0\u2003\u2028\x85\t\n\r\x1c\\"ab:é語\U0001f600'


def random_streams(boundaries: int, seed: int) -> Iterator[str]:
    """Yield lines `[EXPECTED, STREAM]` whose streams have at least so many chunk boundaries."""
    chance = random.Random(seed)
    while boundaries > 0:
        letters = chance.choices(_LETTERS, k=chance.choice((20, 300, 4000)))
        text = "".join(letters)
        result = ToolSuccess(output=ToolOutput(blocks=(TextBlock(text=text),)))
        events = list(encode_result(result, chance.randrange(1, 12)))
        boundaries -= len(events) - 1
        yield json.dumps([text, (encode_event("task_id", "t") + b"".join(events)).decode()]) + "\n"
