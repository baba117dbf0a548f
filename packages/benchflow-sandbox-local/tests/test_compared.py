"""What the host knows of the files that an agent changed, also of an agent that is root."""

import pytest
from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec

FORGED = """touch -r /usr/bin/env /tmp/then; cp /usr/bin/env /tmp/env
printf X | dd of=/tmp/env bs=1 seek=200 conv=notrunc; cat /tmp/env > /usr/bin/env
touch -r /tmp/then /usr/bin/env"""


@pytest.mark.parametrize(
    ("script", "kind", "path"),
    [
        (FORGED, "changed", "/usr/bin/env"),
        ("echo x > /etc/ld.so.preload.new", "added", "/etc/ld.so.preload.new"),
        ("chmod 777 /usr/bin", "changed", "/usr/bin"),
        ("rm /usr/bin/env", "removed", "/usr/bin/env"),
        ("rm -rf /etc/alternatives; mkdir /etc/alternatives", "changed", "/etc/alternatives"),
        ("printf x > $(printf '/tmp/a\\377')", "added", "/tmp/a\\xff"),
        ("chmod 000 /workspace; mkdir -m 000 /tmp/shut", "added", "/tmp/shut"),
    ],
)
def test_what_root_does_is_named_whatever_it_forges(with_box, script, kind, path):
    async def check(sandbox):
        await sandbox.mark()
        await sandbox.exec(script, user="root")
        assert path in getattr(await sandbox.changes(), kind)

    with_box(check)


def test_a_file_that_was_only_touched_is_as_it_was(with_box):
    async def check(sandbox):
        await sandbox.exec("echo '#' >> /etc/passwd", user="root")
        await sandbox.mark()
        await sandbox.exec("touch /usr/bin/env /etc/passwd", user="root")
        assert (await sandbox.changes()).changed == ()

    with_box(check)


def test_a_saved_snapshot_has_no_mark_to_compare_with(with_provider, tmp_path):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await box.mark()
        await provider.save(await box.snapshot(), tmp_path / "saved")
        child = await provider.create(SandboxSpec(), image=await provider.load(tmp_path / "saved"))
        with pytest.raises(SandboxUnsupportedError, match="mark"):
            await child.changes()

    with_provider(check)
