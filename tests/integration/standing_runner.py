"""A runner that stands still at one step of a checkpoint, for somebody to kill it there.

`python standing_runner.py TASK FOLDER FIDELITY STEP`: it says the step's name and waits.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_contracts import Role
from benchflow_engine.flags import run_config
from benchflow_engine.planes import assemble
from benchflow_kernel import (
    GroupBranch,
    Keep,
    Planes,
    RolloutConfig,
    Scene,
    Turn,
    load_task,
    run_rollout,
)
from benchflow_kernel.rollout.checkpoint_writer import CheckpointWriter
from benchflow_sandbox_local import LocalProvider

TASK, FOLDER, FIDELITY, STEP = sys.argv[1:]


def stand(step: str) -> None:
    """Stop all that this process does, when it is the step."""
    if step == STEP:
        print(step, flush=True)
        while True:
            signal.pause()


class StandingProvider(LocalProvider):
    """Stands still around what a checkpoint asks of the sandbox."""

    async def create(self, *args: Any, **options: Any) -> Any:
        box = await super().create(*args, **options)
        files = f"seq {os.environ['BENCHFLOW_TEST_FILES']} | xargs -r touch"
        assert (await box.exec(f"mkdir -p /many && cd /many && {files}", user="root")).ok
        snapshot = box.snapshot
        engine: Any = box.box.host.runtime.live
        engine.dump = waiting(engine.dump)

        async def sealing(*args: Any, **options: Any) -> Any:
            if STEP == "copying":
                threading.Thread(target=stop_the_copy, daemon=True).start()
            image = await snapshot(*args, **options)
            stand("sealed")
            stand("copying")  # it was too quick to be stopped
            return image

        box.snapshot = sealing  # type: ignore[method-assign]
        return box

    async def save(self, image: Any, to: Path) -> None:
        await super().save(image, to)
        stand("saved")


def waiting(dumping: Any) -> Any:
    """Stand still when an engine has started, and has not been told to go on."""

    @asynccontextmanager
    async def started(box: Any, processes: Any) -> AsyncIterator[Any]:
        async with dumping(box, processes) as dump:
            stand("engine-started")
            yield dump

    return started


def stop_the_copy() -> None:
    """Stop the launcher's fork that copies the first layer, as soon as the layer is there."""
    mine = [pid for task in Path("/proc/self/task").iterdir() for pid in children(task)]
    [launcher] = [pid for pid in mine if b"launcher_process.server" in command(pid)]
    families = Path(f"/proc/{launcher}/root{FOLDER}/store/mnt")
    while not list(families.glob("f-*/l*")):
        pass
    forks = children(Path(f"/proc/{launcher}/task/{launcher}"))
    copying = [int(pid) for pid in forks if command(pid) == command(launcher)]
    for pid in copying:
        os.kill(pid, signal.SIGSTOP)
    if copying:
        print("copying", flush=True)


def children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []  # the thread has just ended


def command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def standing(planes: Planes) -> Planes:
    """Stand still around what a checkpoint asks of the environment, too."""

    def make() -> Any:
        assert planes.environment is not None
        environment: Any = planes.environment()
        quiesce, carry = environment.quiesce, environment.live_services

        def quiet() -> AbstractAsyncContextManager[None]:
            @asynccontextmanager
            async def held() -> AsyncIterator[None]:
                async with quiesce():
                    stand("quiesced")
                    yield

            return held()

        async def carrying() -> Any:
            carried = await carry()
            stand("carried")
            return carried

        environment.quiesce, environment.live_services = quiet, carrying
        return environment

    return replace(planes, environment=make)


async def main() -> None:
    task = load_task(Path(TASK))
    policy: Any = GroupBranch(n=2, at=1, require=FIDELITY)
    turns = (Turn(), Turn(prompt="and on"))
    config = RolloutConfig(
        scenes=(Scene(roles=(Role(agent="oracle"),), turns=turns),),
        branch=policy,
        keep=Keep(which="forks"),
    )

    def told(event: Any) -> None:
        if event.kind == "checkpointed":
            stand("published")

    writer: Any = CheckpointWriter
    writer._drop_oldest = lambda *_: stand("named")

    async with StandingProvider(store=Path(FOLDER, "store")) as provider:
        planes = standing(assemble(run_config(), task, provider))
        directory = Path(FOLDER, "rollout")
        await run_rollout(task, config, planes, directory=directory, subscribers=[told])


if __name__ == "__main__":
    asyncio.run(main())
