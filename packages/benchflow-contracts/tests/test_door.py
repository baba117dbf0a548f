"""Doors and endpoints: what their headers may be."""

import pytest

from benchflow_contracts import UsageError
from benchflow_contracts.door import Door, Endpoint

SECRET = "sk-secret"


@pytest.mark.parametrize("end", ["\n", "\r\nX-Other: 1", "\0", "\u2028", "\u043a"])
def test_a_header_value_that_http_forbids_is_refused_without_quoting_it(end):
    for make in (Endpoint, Door):
        address = {"url" if make is Endpoint else "upstream": "http://127.0.0.1:9"}
        with pytest.raises(UsageError, match="'Authorization'") as refused:
            make(**address, headers={"Authorization": SECRET + end})
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "a\r\nX-Other"])
def test_a_header_name_that_http_forbids_is_refused(name):
    with pytest.raises(UsageError, match="not the name of an HTTP header"):
        Door(upstream="http://127.0.0.1:9", headers={name: "x"})


def test_headers_of_http_are_unchanged():
    headers = {"Authorization": f"Bearer {SECRET}", "x-empty": "", "x-latin": "caf\xe9\t1"}
    assert Endpoint(url="http://127.0.0.1:9", headers=headers).headers == headers
    assert Door(upstream="http://127.0.0.1:9", headers=headers).endpoint.headers == headers
