"""What the host knows of the files that an agent changed, also of an agent that is root."""

import asyncio

import pytest
from benchflow_contracts import SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider

FORGED = """touch -r /usr/bin/env /tmp/then; cp /usr/bin/env /tmp/env
printf X | dd of=/tmp/env bs=1 seek=200 conv=notrunc; cat /tmp/env > /usr/bin/env
touch -r /tmp/then /usr/bin/env"""


@pytest.fixture(params=["docker", "local"])
def with_box(request, tmp_path):
    """Run an async test against one sandbox of each provider."""
    store = tmp_path / "store"
    if request.param == "docker":
        made = DockerProvider(image=request.getfixturevalue("image"), store=store)
    else:
        made = LocalProvider(store=store)

    def run(test):
        async def main():
            async with made as provider:
                await test(await provider.create(SandboxSpec()))

        asyncio.run(main())

    return run


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
        await sandbox.set_baseline()
        await sandbox.exec(script, user="root")
        assert path in getattr(await sandbox.changed_files(), kind)

    with_box(check)


def test_a_file_that_was_only_touched_is_as_it_was(with_box):
    async def check(sandbox):
        await sandbox.exec("echo '#' >> /etc/passwd", user="root")
        await sandbox.set_baseline()
        await sandbox.exec("touch /usr/bin/env /etc/passwd", user="root")
        assert (await sandbox.changed_files()).changed == ()

    with_box(check)
