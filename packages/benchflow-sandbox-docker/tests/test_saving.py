import asyncio
import hashlib
import json

import pytest
from benchflow_contracts import RolloutIdentity
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_docker import DockerProvider

pytestmark = pytest.mark.slow


async def saved_to(provider, path):
    box = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="mine"))
    assert (await box.exec("echo kept > file")).ok
    image = await box.snapshot()
    await provider.save(image, path)
    await box.teardown()
    return image


def test_a_snapshot_outlives_its_runner_and_the_engine_forgets_it_after(image, tmp_path):
    async def save():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            return await saved_to(provider, tmp_path / "saved")

    async def load(before):
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            loaded = await provider.load(tmp_path / "saved")
            assert (loaded.digest, loaded.bytes) == (before.digest, before.bytes)
            box = await provider.create(SandboxSpec(), image=loaded)
            api = box.container.engine.api
            # It is this owner's now: whoever reaps the dead one's leaves it alone.
            label = api.inspect_image(loaded.ref)["Config"]["Labels"]
            assert json.loads(label["benchflow.labels"]) == {"benchflow.scope": "mine"}
            await provider.reap(ReapPolicy(scope="mine"))
            assert (await box.exec("cat file")).stdout == "kept\n"
            again = await box.snapshot()
            await provider.save(again, tmp_path / "again")
            here = {each["Id"] for each in api.images(all=True)}
            assert {loaded.ref, again.ref} <= here
        return loaded.ref, again.ref

    before = asyncio.run(save())
    gone = {before.ref, *asyncio.run(load(before))}
    assert gone.isdisjoint(asyncio.run(images(image, tmp_path)))


async def images(image, tmp_path):
    async with DockerProvider(image=image, store=tmp_path / "store") as provider:
        box = await provider.create(SandboxSpec())
        return {each["Id"] for each in await box.container.engine.do("images", all=True)}


def test_what_this_store_has_not_sealed_is_never_shown_to_the_engine(with_provider, tmp_path):
    async def check(provider):
        await saved_to(provider, tmp_path / "saved")
        tar, told = tmp_path / "saved/image.tar", tmp_path / "saved/snapshot.json"
        whole, text = tar.read_bytes(), told.read_text()
        said = json.loads(text)

        def forged(**changes):
            return json.dumps({**said, **changes})

        hostile = b"hostile" + whole[7:]
        digest = hashlib.sha256(hostile).hexdigest()
        for content, note in (
            (whole[:-1], text),
            (whole[: len(whole) // 2], text),
            (hostile, text),
            # The digest can be made to fit, the seal cannot.
            (hostile, forged(sha256=digest)),
            (whole, forged(seal="")),
            (whole, forged(image={**said["image"], "provider": "local"})),
            (whole, forged(surprise=1)),
            (whole, text[:-2]),
            (whole, "[" * 5000),
        ):
            tar.write_bytes(content)
            told.write_text(note)
            with pytest.raises(SnapshotError):
                await provider.load(tmp_path / "saved")
        tar.write_bytes(whole)
        told.write_text(text)
        await provider.load(tmp_path / "saved")
        tar.rename(tmp_path / "elsewhere")
        tar.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SnapshotError):
            await provider.load(tmp_path / "saved")

    with_provider(check)


def test_another_users_snapshot_is_refused(with_provider, image, tmp_path):
    async def check(provider):
        await saved_to(provider, tmp_path / "saved")
        async with DockerProvider(image=image, store=tmp_path / "other") as another:
            with pytest.raises(SnapshotError, match="another store saved it"):
                await another.load(tmp_path / "saved")

    with_provider(check)


def test_what_cannot_be_written_leaves_nothing(with_provider, tmp_path):
    async def check(provider):
        await saved_to(provider, tmp_path / "saved")
        with pytest.raises(SnapshotError, match="exists already"):
            await saved_to(provider, tmp_path / "saved")
        (tmp_path / "file").touch()
        with pytest.raises(SnapshotError):
            await saved_to(provider, tmp_path / "file" / "below")

    with_provider(check)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"store", "saved", "file"}
