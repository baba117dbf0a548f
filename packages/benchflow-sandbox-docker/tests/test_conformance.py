from functools import partial

import pytest
from benchflow_testing import check_sandbox


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_provider_keeps_every_promise_of_the_contract(with_provider, image):
    results = with_provider(partial(check_sandbox, base=image, at_once=6))
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    # What is not claimed, and nothing else, is skipped.
    assert {r.reason for r in results if r.status == "skipped"} <= {
        "capabilities: no kill_all",
        "capabilities: no live snapshots",
        "capabilities: no disk limit",
        "capabilities: there are builds",
        "capabilities: there are services",
        "every network mode is supported",
    }
