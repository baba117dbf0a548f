from functools import partial

import pytest
from benchflow_testing import check_sandbox


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lines", [False, True], ids=["bytes", "lines"])
def test_a_remote_sandbox_keeps_every_promise_of_the_contract(with_provider, lines):
    results = with_provider(partial(check_sandbox, at_once=4), lines=lines)
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    assert [r for r in results if r.status == "passed"]
