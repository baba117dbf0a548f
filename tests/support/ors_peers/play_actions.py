"""Play scripts of calls with a published ORS client: `play_actions.py PACKAGE URL NAME SCRIPTS`.

NAME is an environment with one task. SCRIPTS is JSON, a list of lists `[TOOL, INPUT]`. Print the
reward of the last call of each script as a JSON list.
"""

import asyncio
import json
import sys

from play import environment_of, played


async def main(package: str, url: str, name: str, scripts) -> None:
    api, environment = environment_of(package, url, "no-key", name)
    [task] = await environment.list_tasks("train")
    rewards = []
    for calls in scripts:
        async with environment.session(task=task) as session:
            await session.get_prompt()
            outputs = await played(session, calls)
        rewards.append(outputs[-1].get("reward"))
    for client in api._clients.values():
        await client.close()
    print(json.dumps(rewards))


asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
