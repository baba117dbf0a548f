import asyncio
from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_testing import AdapterCheck, AdapterSubject, adapter_checks, run_check
from harbor_corpus import BAD, GOOD, TERMINAL_BENCH, write


@pytest.mark.parametrize("check", adapter_checks(), ids=str)
@pytest.mark.parametrize(
    "good", [GOOD["two-steps"], TERMINAL_BENCH], ids=["harbor", "terminal-bench"]
)
def test_the_adapter_passes_the_conformance_kit(
    check: AdapterCheck, good: dict[str, str], tmp_path: Path
) -> None:
    subject = AdapterSubject(
        HarborAdapter(cache=tmp_path),
        lambda folder: write(folder, good) and None,
        lambda folder: write(folder, BAD["wrong-type"]) and None,
    )
    asyncio.run(run_check(check, subject)).raise_if_failed()
