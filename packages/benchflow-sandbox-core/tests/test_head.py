import pytest
from benchflow_sandbox_core.relay.head import Head, HeadError, split_request, status_of
from hypothesis import given
from hypothesis import strategies as st

TOKEN = st.text("abcXYZ019-_", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@given(st.lists(st.tuples(TOKEN, VALUE), max_size=8))
def test_what_is_encoded_is_parsed_back(fields):
    head = Head("GET / HTTP/1.1", tuple(fields))
    assert Head.parse(head.encode({})) == head


@given(st.binary(max_size=300))
def test_no_bytes_break_the_parser(raw):
    try:
        head = Head.parse(raw + b"\r\n\r\n")
        head.body(default=0)
        split_request(head.start)
    except HeadError:
        return
    encoded = head.encode({})
    # What is accepted is seen in exactly the same way by a second reader.
    assert Head.parse(encoded) == head
    assert b"\x00" not in encoded


@given(st.text(st.sampled_from("/.%2eE\\5Cab?#"), max_size=14))
def test_no_target_climbs_out_of_the_prefix(rest):
    try:
        _, target = split_request(f"GET /{rest} HTTP/1.1")
    except HeadError:
        return
    path = target.partition("?")[0].lower().replace("%2e", ".")
    assert ".." not in path.replace("%2f", "/").replace("%5c", "/").split("/")
    assert "\\" not in path


def test_fields_of_one_hop_are_dropped():
    raw = b"GET / HTTP/1.1\r\nConnection: X-One, close\r\nX-One: 1\r\nUpgrade: h2c\r\nA: b\r\n\r\n"
    assert Head.parse(raw).without({"host"}).fields == (("A", "b"),)


def test_a_body_length_stays_although_connection_names_it():
    raw = b"GET / HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\n"
    assert Head.parse(raw).without(set()).values("content-length") == ["3"]


@pytest.mark.parametrize("line", ["HTTP/1.1 2000 x", "HTTP/2 200", "HTTP/1.1 abc", ""])
def test_a_bad_status_line_is_refused(line):
    with pytest.raises(HeadError):
        status_of(line)
