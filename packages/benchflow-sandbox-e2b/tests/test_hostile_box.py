"""Root of a sandbox against the runner, by E2B's SDK and our server. Nothing here runs on E2B."""

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec

# Endless output would keep the processors of the test busy. The program does not end either.
REPLACE = """
program=$(command -v sync)
rm -f $program
printf '#!/bin/sh\\nhead -c 2000000 /dev/zero >&2; exec sleep 600\\n' > $program
chmod +x $program
"""


def test_a_program_that_root_replaced_cannot_use_up_the_memory_of_the_runner(with_provider):
    async def test(provider, server):
        del server
        sandbox = await provider.create(SandboxSpec(user="root"))
        assert (await sandbox.exec(REPLACE)).ok
        with pytest.raises(SandboxError, match="written more than") as error:
            await sandbox.snapshot()
        assert error.value.caused_by == "inside"

    with_provider(test)
