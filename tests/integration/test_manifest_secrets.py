"""What an agent can neither see nor change of a world."""

from pathlib import Path

import pytest
from bank import ONE, boxed, run, world
from benchflow_contracts import (
    EnvironmentError_,
    ProvisionContext,
)


def test_the_agent_can_neither_read_nor_write_the_state(tmp_path: Path):
    async def test():
        # The directory came with the task's files: readable by all.
        async with boxed(tmp_path, ONE) as bank:
            await bank.root("mkdir -m 755 /data")
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await bank.ready()
            snap = await bank.environment.snapshot()
            for path in ("/data/bank.db", "/data/bank.db-wal", f"{snap.path}/0/0.db"):
                assert await bank.agent(f"cat {path}") != 0
                assert await bank.agent(f"echo x >> {path}") != 0
                assert await bank.agent(f"rm -f {path}") != 0
            assert await bank.agent("touch /data/new") != 0
            assert await bank.agent("ls /.bf-state") != 0

    run(test)


def test_state_within_the_agent_s_reach_is_refused(tmp_path: Path):
    async def test(path: str):
        async with boxed(tmp_path, ONE.replace("/data/bank.db", path)) as bank:
            with pytest.raises(EnvironmentError_, match=r"replaced by the agent.*"):
                await bank.environment.provision(ProvisionContext(bank.box, "x"))

    run(lambda: test("/workspace/bank.db"))
    run(lambda: test("/tmp/bank.db"))


def test_a_state_file_swapped_for_a_link_or_another_file_is_refused(tmp_path: Path):
    async def test():
        async with world(tmp_path) as bank:
            environment = bank.environment
            await bank.root("mv /data/bank.db /data/x && ln -s /data/x /data/bank.db")
            for call in (environment.query, environment.snapshot):
                with pytest.raises(EnvironmentError_, match="not a regular file"):
                    await call()
            await bank.root("rm /data/bank.db && ln /data/x /data/bank.db")
            with pytest.raises(EnvironmentError_, match="second hard link"):
                await environment.query()
            await bank.root("rm /data/x && chown agent /data/bank.db")
            with pytest.raises(EnvironmentError_, match="replaced by the agent"):
                await environment.query()
            await bank.root("rm /data/* && echo 'not rows' > /data/bank.db")
            with pytest.raises(EnvironmentError_, match="not a SQLite database"):
                await environment.query()

    run(test)


def test_hidden_files_are_unreadable_for_the_agent(tmp_path: Path):
    text = (
        ONE
        + '[verifier]\nhidden_from_agent = ["expectations.json", "tasks/*/fixtures", "/srv/k*"]\n'
    )

    async def test():
        async with boxed(tmp_path, text) as bank:
            await bank.root(
                "cd /workspace && mkdir -p tasks/1/fixtures && echo 1 > expectations.json"
                " && echo 2 > tasks/1/fixtures/a && echo 3 > tasks/1/open && echo 4 > /srv/key"
                " && chown -R agent: . && chmod -R a+rwX ."
            )
            await bank.environment.provision(ProvisionContext(bank.box, "x"))
            await bank.ready()
            for path in ("expectations.json", "tasks/1/fixtures/a", "/srv/key"):
                assert await bank.agent(f"cat {path}") != 0
            assert await bank.agent("cat tasks/1/open") == 0

    run(test)
