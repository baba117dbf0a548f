"""Reading Dockerfiles: what an author writes is hostile."""

import pytest
from benchflow_contracts.errors import BenchFlowError, TaskError
from benchflow_sandbox_local.build.dockerfile import Dockerfile
from benchflow_sandbox_local.build.words import Words
from hypothesis import given
from hypothesis import strategies as st


def parse(text):
    return [(one.line, one.name, one.text) for one in Dockerfile.parse(text.encode()).instructions]


def test_lines_go_on_over_comments_and_empty_lines():
    text = '# a comment\nfrom x\nRUN one \\\n  # not this\n\n  && two\nCMD [ "a" ]\n'
    assert parse(text) == [(2, "FROM", "x"), (3, "RUN", "one   && two"), (7, "CMD", '[ "a" ]')]


def test_the_escape_can_be_another():
    text = "# escape=`\nFROM x\nRUN dir c:\\ `\n  more\n"
    assert parse(text)[1] == (3, "RUN", "dir c:\\   more")


def test_flags_and_arrays_are_read():
    one = Dockerfile.parse(b'FROM a\nCOPY --from=b --chown=1:2 ["a b", "/c"]\n').instructions[1]
    assert (dict(one.flags), one.array) == ({"from": "b", "chown": "1:2"}, ("a b", "/c"))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "Dockerfile", "no instruction"),
        ("FROM x\nONBUILD RUN true", "Dockerfile:2", "ONBUILD"),
        ("FROM x\nRUN cat <<EOF\nhi\nEOF", "Dockerfile:2", "here-document"),
        ("FROM x\n\nCOPY <<-'EOF' /a\nhi\nEOF", "Dockerfile:3", "here-document"),
        ("FROM x\nRUN", "Dockerfile:2", "says nothing"),
        ("# escape=x\nFROM x", "Dockerfile:1", "escape"),
    ],
)
def test_what_is_not_interpreted_is_refused_with_its_line(text, where, what):
    with pytest.raises(TaskError, match=what) as refused:
        parse(text)
    assert refused.value.where == where


def test_a_here_string_is_no_here_document():
    assert parse("FROM x\nRUN cat <<< word\nRUN echo $((1<<2))")[1][2] == "cat <<< word"


@given(st.binary(max_size=400))
def test_any_bytes_are_a_dockerfile_or_a_typed_error(data):
    try:
        file = Dockerfile.parse(b"FROM x\n" + data)
    except TaskError as error:
        assert str(error).startswith("Dockerfile:")  # noqa: PT017 - either is right
    else:
        assert all(one.text for one in file.instructions)


KNOWN = {"A": "1", "EMPTY": "", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b", ["a", "b"]),
        ("'a b' \"c d\"", ["a b", "c d"]),
        ("$A ${A}x $NONE.", ["1", "1x", "."]),
        ("'$A' \"$A\" \\$A", ["$A", "1", "$A"]),
        ("${NONE:-x} ${EMPTY:-x} ${EMPTY-x}y", ["x", "x", "y"]),
        ("${A:+x} ${NONE:+x}. ${EMPTY+x}", ["x", ".", "x"]),
        ("a\\ b", ["a b"]),
        ('"a\\n\\"b"', ['a\\n"b']),
        ("cost: $", ["cost:", "$"]),
    ],
)
def test_words_are_split_and_resolved_as_docker_does(text, words):
    assert Words(KNOWN, "here").split(text) == words


def test_pairs_are_read_in_both_forms():
    words = Words(KNOWN, "here")
    assert words.pairs("X=a Y='b c' Z=$A:$PATH") == {"X": "a", "Y": "b c", "Z": "1:/bin"}
    assert words.pairs("X some words") == {"X": "some words"}


@given(st.text(max_size=200))
def test_any_text_is_words_or_a_typed_error(text):
    try:
        for word in Words(KNOWN, "here").split(text):
            assert isinstance(word, str)
    except BenchFlowError as error:
        assert error.where == "here"  # noqa: PT017 - either is right
