import pytest
from benchflow_contracts.testing import check_sandbox


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("engine")
def test_the_provider_keeps_every_promise_of_the_contract(with_provider):
    results = with_provider(check_sandbox)
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    # What is not claimed, and nothing else, is skipped.
    assert {r.reason for r in results if r.status == "skipped"} <= {
        "capabilities: no live snapshots",
        "capabilities: no network mode public",
        "every level is supported",
        "capabilities: there are live snapshots",
        "not claimed: one of a living owner is not reaped",
    }
