"""What the host no longer knows of the files that an agent changed."""

import pytest
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec


def test_a_saved_snapshot_has_no_mark_to_compare_with(with_provider, tmp_path):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await box.mark()
        await provider.save(await box.snapshot(), tmp_path / "saved")
        child = await provider.create(SandboxSpec(), image=await provider.load(tmp_path / "saved"))
        with pytest.raises(SandboxUnsupportedError, match="mark"):
            await child.changes()

    with_provider(check)
