"""Play our server with a published ORS client: `play.py PACKAGE URL KEY ENVIRONMENT CALLS`.

CALLS is JSON `[[TOOL, INPUT], ...]`. Print the outputs of the calls, and what the client reads of
the environment before, as one JSON object. `None` as ENVIRONMENT is the default environment.
"""

import asyncio
import importlib
import json
import sys
from dataclasses import asdict

API = {
    "ors": "ors.client.environment:AsyncEnvironmentsAPI",
    "openreward": "openreward.api.environments.client:AsyncEnvironmentsAPI",
}


def environment_of(package: str, url: str, key: str, name: str):
    module, attr = API[package].split(":")
    api = getattr(importlib.import_module(module), attr)(url, key)
    if package == "ors":
        return api, api.get(name)
    return api, api.get("ours", None if name == "None" else name)


async def played(session, calls):
    outputs = []
    for tool, arguments in calls:
        try:
            outputs.append(asdict(await session.call_tool(tool, arguments)))
        except Exception as error:  # the test reads the type and the text
            outputs.append({"error": type(error).__name__, "text": str(error)})
    return outputs


async def group_scores(session, answers):
    types = importlib.import_module("openreward.environments.types")

    def message(role: str, text: str):
        return types.Message(role=role, blocks=[types.TextBlock(text=text)])

    groups = [[message("user", "Say it."), message("assistant", text)] for text in answers]
    assert await session.supports_score_group()
    return [asdict(score) for score in await session.score_group(groups)]


async def main(package: str, url: str, key: str, name: str, calls) -> None:
    api, environment = environment_of(package, url, key, name)
    splits = await environment.list_splits()
    tasks = await environment.list_tasks(splits[0])
    tail = await environment.get_task_range(splits[0], start=-1)
    one = await environment.get_task(splits[0], 0)
    report = {
        "splits": splits,
        "tasks": [task.task_spec for task in tasks],
        "count": await environment.num_tasks(splits[0]),
        "one": one.task_spec,
        "tail": [task.task_spec for task in tail],
        "tools": [tool.name for tool in await environment.list_tools()],
    }
    secret = "wordless-secret"
    secrets = {"PLAY_SECRET": secret if package == "ors" else (secret, ["example.org"])}
    async with environment.session(task=tasks[0], secrets=secrets) as session:
        report["prompt"] = [block.text for block in await session.get_prompt()]
        report["session_tools"] = [tool.name for tool in await session.list_tools()]
        report["outputs"] = await played(session, calls)
    # ors-sdk has neither toolsets of the client nor groups.
    chosen = {} if package == "ors" else {"toolset": "codex"}
    async with environment.session(split=splits[0], index=0, **chosen) as session:
        report["by_index"] = [block.text for block in await session.get_prompt()]
        report["chosen_tools"] = [tool.name for tool in await session.list_tools()]
        if chosen:
            report["chosen_outputs"] = await played(
                session, [["bash", {"command": "echo hi"}], ["read_file", {"path": "/etc/hosts"}]]
            )
            report["scores"] = await group_scores(session, ["four", "a", "seventy"])
    for client in api._clients.values():
        await client.close()
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], json.loads(sys.argv[5])))
