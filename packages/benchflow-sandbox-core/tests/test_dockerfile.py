"""Reading Dockerfiles: what an author writes is hostile."""

from fnmatch import fnmatchcase

import pytest
from benchflow_contracts.errors import BenchFlowError, TaskError
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile
from benchflow_sandbox_core.recipe.heredoc import command
from benchflow_sandbox_core.recipe.pattern import Pattern
from benchflow_sandbox_core.recipe.words import Words
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
        ("FROM x\nRUN cat <<EOF\nhi\n EOF", "Dockerfile:2", "does not end"),
        ("FROM x\n\nCOPY <<$A /a\nhi\nEOF", "Dockerfile:3", "cannot end"),
        ("FROM x\nCOPY <<../up /a\nhi\n../up", "Dockerfile:2", "cannot end"),
        ("FROM x\nRUN", "Dockerfile:2", "has no argument"),
        ("# escape=x\nFROM x", "Dockerfile:1", "escape"),
    ],
)
def test_what_is_malformed_is_refused_with_its_line(text, where, what):
    with pytest.raises(TaskError, match=what) as refused:
        parse(text)
    assert refused.value.where == where


def test_a_here_string_is_no_here_document():
    assert parse("FROM x\nRUN cat <<< word\nRUN echo $((1<<2))")[1][2] == "cat <<< word"


DOCUMENTS = """FROM x
RUN one <<A && \\
  # still the command
  two <<-'B'
first $X
A
\tsecond
\tB
COPY <<"c d" /c
  three \\
# no comment
c d
RUN ["cat", "<<E"]
RUN last
"""


def test_here_documents_are_taken_in_their_order_and_end_at_their_word():
    run, copy, array, last = Dockerfile.parse(DOCUMENTS.encode()).instructions[1:]
    assert (run.line, run.last, run.text) == (2, 8, "one <<A &&   two <<-'B'")
    assert [(d.name, d.text, d.expands) for d in run.documents] == [
        ("A", "first $X\n", True),
        ("B", "second\n", False),
    ]
    assert [(d.name, d.text) for d in copy.documents] == [("c d", "  three \\\n# no comment\n")]
    assert (array.documents, last.line) == ((), 14)


@pytest.mark.parametrize(
    ("dockerfile", "argv"),
    [
        ("RUN <<EOF\na\n\tb $X\nEOF", ("sh", "-c", "a\n\tb $X\n")),
        ("RUN <<-EOF\n\ta\n\tEOF", ("sh", "-c", "a\n")),
        ("RUN cat <<'E' >f\na\nE", ("sh", "-c", "cat <<'E' >f\na\nE")),
        ("RUN <<A cat <<B\na\nA\nb\nB", ("sh", "-c", "<<A cat <<B\na\nA\nb\nB")),
    ],
)
def test_a_script_is_the_shells_and_what_a_command_reads_too(dockerfile, argv):
    (one,) = Dockerfile.parse(dockerfile.encode()).instructions
    assert command(one.text, one.documents, ("sh", "-c"), "here") == argv


def test_a_script_may_name_its_interpreter():
    text = b"RUN <<EOF\n#!/usr/bin/env python3 -u\nprint(1)\nEOF"
    (one,) = Dockerfile.parse(text).instructions
    argv = command(one.text, one.documents, ("sh", "-c"), "here")
    assert argv[-3:] == ("/usr/bin/env", "python3 -u", "/dev/shm/EOF")
    assert argv[-4] == "#!/usr/bin/env python3 -u\nprint(1)\n"


def test_variables_of_a_document_are_resolved_and_its_quotes_stay():
    words = Words({"A": "1"}, "here", "`")
    assert words.document("'$A' \"${B:-2}\" \\$A \\\\ `") == "'1' \"2\" $A \\ `"


def test_what_only_a_shell_knows_is_nothing_in_a_document_and_defaults_nest():
    words = Words({"A": "1"}, "here")
    assert words.document("[$1$@$?] $. ${B:-${A}\"$A\"} ${A:+'x'}") == "[] $. 1\"1\" 'x'"


@pytest.mark.parametrize("first", ["\t#!/bin/x", " #!/bin/x"])
def test_an_interpreter_is_named_at_the_very_beginning(first):
    (one,) = Dockerfile.parse(f"RUN <<-EOF\n{first}\n\tEOF".encode()).instructions
    script = f"{first}\n".lstrip("\t")
    assert command(one.text, one.documents, ("sh", "-c"), "here") == ("sh", "-c", script)


@given(st.text("<-EOF'\"$\\ \t\r\n#!/x", max_size=80))
def test_any_document_is_read_or_a_typed_error(text):
    try:
        file = Dockerfile.parse(f"RUN {text}\nEOF\n".encode())
        for one in file.instructions:
            assert 1 <= one.line <= one.last
            for document in one.documents:
                document.content(Words({}, "here"))
    except TaskError as error:
        assert error.where in {"here"} or error.where.startswith("Dockerfile:")  # noqa: PT017


@given(st.binary(max_size=400))
def test_any_bytes_are_a_dockerfile_or_a_typed_error(data):
    try:
        file = Dockerfile.parse(b"FROM x\n" + data)
    except TaskError as error:
        assert str(error).startswith("Dockerfile:")  # noqa: PT017 - either is right
    else:
        assert all(one.text for one in file.instructions)


KNOWN = {"A": "1", "EMPTY": "", "PATH": "/bin", "F": "a.b.c"}


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
        ("${F#*.} ${F##*.} ${F%.*} ${F%%.*}", ["b.c", "c", "a.b", "a"]),
        ("${F#'a'} ${F#b} ${F#?} ${F%\\}} ${NONE#x}.", [".b.c", "a.b.c", ".b.c", "a.b.c", "."]),
        ("${F/./-} ${F//./-} ${F//.*/} ${F/[a]/x}", ["a-b.c", "a-b-c", "a", "a.b.c"]),
        ("${F/${A:+b}/$PATH} ${F//\\//x}", ["a./bin.c", "a.b.c"]),
        ("${A:?no} ${EMPTY?no}.", ["1", "."]),
    ],
)
def test_words_are_split_and_resolved_as_docker_does(text, words):
    assert Words(KNOWN, "here").split(text) == words


def test_pairs_are_read_in_both_forms():
    words = Words(KNOWN, "here")
    assert words.pairs("X=a Y='b c' Z=$A:$PATH") == {"X": "a", "Y": "b c", "Z": "1:/bin"}
    assert words.pairs("X some words") == {"X": "some words"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("${NONE:?say so}", "'NONE' has no value: say so"),
        ("${NONE?}", "has no value"),
        ("${A#x", "not supported"),
        ("${A/x}", "not supported"),
        ("${A#\\n}", "backslash before 'n'"),
        ("${A/1/\\x}", "plain text"),
        ("${A///x}", "plain text"),
        ("${LONG#x}", "5000 characters is too long"),
        ("$HUGE$HUGE", "grows beyond"),
        ("${NONE:-" * 2000 + "}" * 2000, "too deep"),
    ],
)
def test_a_variable_that_has_no_meaning_or_would_never_end_is_refused(text, what):
    words = Words({"A": "1", "LONG": "x" * 5000, "HUGE": "x" * 600_000}, "here")
    for read in (words.resolve, words.document):
        with pytest.raises(TaskError, match=what) as refused:
            read(text)
        assert refused.value.where == "here"


PATTERNS = st.text("ab*?", max_size=7)


@given(PATTERNS, st.text("ab", max_size=9))
def test_patterns_take_the_shortest_and_the_longest_end_and_beginning(text, value):
    pattern = Pattern.of(text, "here")
    heads = [value[n:] for n in range(len(value) + 1) if fnmatchcase(value[:n], text)]
    tails = [value[:n] for n in range(len(value) + 1) if fnmatchcase(value[n:], text)]
    for longest, head, tail in ((False, 0, -1), (True, -1, 0)):
        without = heads[head] if heads else value
        assert pattern.without_prefix(value, longest=longest) == without
        without = tails[tail] if tails else value
        assert pattern.without_suffix(value, longest=longest) == without


@given(PATTERNS, st.text("ab", max_size=9))
def test_a_replacement_takes_the_place_of_the_first_match_and_as_much_as_matches(text, value):
    spans = [
        (first, last)
        for first in range(len(value) + 1)
        for last in range(len(value), first - 1, -1)
        if fnmatchcase(value[first:last], text)
    ]
    first, last = spans[0] if spans else (0, 0)
    wanted = f"{value[:first]}-{value[last:]}" if spans else value
    pattern = Pattern.of(text, "here")
    assert pattern.replace(value, "-", everywhere=False) == wanted
    assert pattern.replace(value, "-", everywhere=True).startswith(wanted[: first + 1])


@given(st.text("$A{}#%/?:-+*\\'\" b", max_size=40))
def test_any_variable_is_a_word_or_a_typed_error(text):
    for read in (Words(KNOWN, "here").resolve, Words(KNOWN, "here").document):
        try:
            assert isinstance(read(f"${{A{text}}}"), str)
        except TaskError as error:
            assert error.where == "here"  # noqa: PT017 - either is right


def test_a_pattern_of_many_stars_takes_no_long_time():
    pattern, value = Pattern.of("*a" * 30 + "*b", "here"), "a" * 4096
    assert pattern.without_prefix(value, longest=True) == value
    assert pattern.without_suffix(value, longest=False) == value
    assert pattern.replace(value, "x", everywhere=True) == value


@given(st.text(max_size=200))
def test_any_text_is_words_or_a_typed_error(text):
    try:
        for word in Words(KNOWN, "here").split(text):
            assert isinstance(word, str)
    except BenchFlowError as error:
        assert error.where == "here"  # noqa: PT017 - either is right
