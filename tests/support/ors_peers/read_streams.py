"""Read event streams with the parser of a published ORS client: `read_streams.py PACKAGE SEED`.

Run in the environment of `ors-sdk` (PACKAGE `ors`) or `openreward`. Standard input is lines of
JSON `[EXPECTED, STREAM]`. Each stream is cut at random bytes. Print the number of characters that
were expected, and the number of those that differ.
"""

import asyncio
import importlib
import json
import random
import sys

import aiohttp

PARSERS = {"ors": "ors.client._http", "openreward": "openreward.api._session.http"}


class Response:
    def __init__(self, content: aiohttp.StreamReader) -> None:
        self.content = content


async def main(package: str, seed: int) -> None:
    parse = importlib.import_module(PARSERS[package])._parse_sse_events
    loop = asyncio.get_running_loop()
    chance = random.Random(seed)
    expected_chars = lost_chars = 0
    for line in sys.stdin:
        expected, stream = json.loads(line)
        reader = aiohttp.StreamReader(FlowControl(), 2**16, loop=loop)
        data = stream.encode()
        while data:
            cut = chance.randrange(1, 9000)
            reader.feed_data(data[:cut])
            data = data[cut:]
        reader.feed_eof()
        chunks = [data async for event, data in parse(Response(reader)) if event != "task_id"]
        found = json.loads("".join(chunks))["output"]["blocks"][0]["text"]
        expected_chars += len(expected)
        lost_chars += sum(a != b for a, b in zip(expected, found, strict=False))
        lost_chars += abs(len(expected) - len(found))
    print(json.dumps({"characters": expected_chars, "lost": lost_chars}))


class FlowControl:
    """A connection that never needs to pause."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self, **options: object) -> None: ...


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
