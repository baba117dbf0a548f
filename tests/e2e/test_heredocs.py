"""Here-documents in Dockerfiles are read as BuildKit reads them."""

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import BenchFlowError, ImageRecipe, SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from own_engine import OwnEngine, docker_of_the_machine

Sandboxes = type[DockerProvider] | type[LocalProvider]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
ARGS = {"FROM_OUTSIDE": "given $v `x`", "EARLY": "early", "V": "overruled"}
TOP = "ARG EARLY=default\nFROM {image} AS base\nRUN mkdir /out /out/there\n"
# What is built, one below the other: a name of each, and its lines.
TAKEN = {
    "script": "RUN <<EOF\necho $0 $((1 + 1)) 'a  b' > /out/script\nEOF\n",
    "quoted script": "RUN <<'EOF'\nv=2; echo \"$v\" \\\n  two > /out/quoted\nEOF\n",
    "tabs": "RUN <<-EOF\n\t\tcat > /out/tabs <<X\n\t a\tb\n\tX\n\tEOF\n",
    "interpreter": 'RUN <<EOF\n#!/bin/bash -eu\necho "${BASH_VERSION:+bash} $- $#">/out/sh0\nEOF\n',
    "interpreter with env": "RUN <<-EOF\n#!/usr/bin/env bash\n\techo ${BASH:+b}>/out/env\n\tEOF\n",
    "interpreter behind tabs": "RUN <<-EOF\n\t#!/bin/bash\n\techo ${BASH:+b}>/out/tabbed\n\tEOF\n",
    "command": 'RUN cat <<EOF > /out/command\n$HOME $((2+2)) \\$x "q" `echo sub`\nEOF\n',
    "quoted command": 'RUN cat <<"EOF" > /out/quoted-command\n$HOME \\$x\nEOF\n',
    "several commands": "RUN cat <<A > /out/1 && cat <<-'B' >/out/2\n$HOME\nA\n\t$HOME\n\tB\n",
    "descriptor": "RUN cat 3<<EOF <&3 >/out/3\nthree\nEOF\n",
    "two alone": "RUN <<A <<B\necho 1 >/out/two\nA\necho 2 >/out/two\nB\n",
    "empty script": "RUN <<EOF\nEOF\n",
    "other shell": 'SHELL ["/bin/bash", "-ec"]\nRUN <<EOF\necho $0 ${BASH:+b} > /out/sh\nEOF\n'
    "RUN cat <<EOF > /out/sh2\n${BASH:+b}\nEOF\nRUN cat <<< x >/out/string\n"
    'SHELL ["/bin/sh", "-c"]\n',
    "continued": "RUN cat <<EOF \\\n  # a comment\n\n  > /out/continued\n"
    "  # text\n\ntext\\\nmore\nEOF\n",
    "no document": "RUN echo $((1<<2)) '<<EOF' \"<<EOF\" >/out/none\n",
    "carriage returns": "RUN <<EOF\r\ntrue\nprintf 'a\r\n' >/out/cr\r\nEOF\r\n"
    "COPY <<EOF /out/crlf\r\na\r\nb\r\nEOF\r\n",
    "file": "COPY <<EOF /out/file\na\n\tb\nEOF\n",
    "files": "COPY <<one <<-'two' <<\"th\"ree /out/files/\n"
    "$EARLY.\none\n\t$EARLY\n\ttwo\n$V\nthree\n",
    "same name": "COPY <<one <<one /out/same/\n1\none\n2\none\n",
    "empty file": "COPY <<EOF /out/empty\nEOF\n",
    "into a directory": "COPY <<EOF /out/there\nx\nEOF\n",
    "beside a source": "COPY source <<EOF /out/beside/\nx\nEOF\n",
    "added": "ADD <<EOF /out/added\nx\nEOF\n",
    "owned": "COPY --chown=12:34 <<EOF /out/owned\nx\nEOF\n",
    "relative": "WORKDIR /out/work\nCOPY <<EOF relative\nx\nEOF\n",
    "target of a variable": "ENV place=/out/place\nCOPY <<EOF ${place}\nx\nEOF\n",
    "variables": "ENV V=of-env E=\nARG V=of-arg\nARG A=arg\nARG FROM_OUTSIDE\nARG EARLY\nARG N\n"
    "COPY <<EOF /out/variables\n$V ${V} $A $FROM_OUTSIDE ${EARLY} [$N] [${NOT}]\n"
    "${E-a} ${E:-b} ${N-c} ${V+d} ${E:+e} ${A:-${V}}"
    " ${NOT:-${V}x} ${NOT:-\"q $V\"} ${NOT:-'$V'}\nEOF\n",
    "characters": 'COPY <<EOF /out/characters\n\\$V \\\\ \\n \\\nx \'a $V\' "b $V" \\"c\\" `d`\n'
    "[$1] [$12x] [$@] [$*] [$#] [$?] [$-] [$$] [$!] [$0] [$é] [$ x] [$.] $\nEOF\n",
    "several to one": "COPY <<a <<b /out/one\n1\na\n2\nb\nCOPY source <<a /out/beside-one\n1\na\n"
    "COPY <<a <<b /out/there\n1\na\n2\nb\n",
    "patterns": "ENV F=a.b.c/d/e\nCOPY <<EOF /out/patterns\n"
    "${F#*.} ${F##*.} ${F%.*} ${F%%/*} ${F#?} ${F%?} ${F#a} ${F%x} ${NO#x} ${F#[a]} [${F#*}]"
    ' [${F##*}] [${F%*}] ${F#\\*} ${F#a.\\?} ${F%%.?*} ${F##$EARLY} ${F#"a"} [${F%%*?}]\n'
    "${F/./-} ${F//./-} ${F/b*/x} ${F//?.?/} ${F/\\//x} ${F//\\//x} ${F/a/$EARLY} ${F/[a]/x}"
    ' ${F//*/x} ${F/*/x} ${F/x/y} ${F/a/ "q" }\n'
    "${F:?no} ${F?} ${EARLY:?$NOT}\nEOF\n",
    "unexpanded": "COPY <<'EOF' /out/unexpanded\n$V \\$V ${\nEOF\n",
    "escaped delimiter": "COPY <<\\EOF /out/escaped\n$V\nEOF\n",
    "name with a dot": "COPY <<a.b-c_d /out/named/\nx\na.b-c_d\n",
    "directory of a user": "USER 12\nWORKDIR /out/user/own\nRUN touch mine\nUSER root\nWORKDIR /\n",
    "modes": "COPY --chmod=0640 --chown=3:4 source /out/modes\n",
    "wildcard": "COPY sour* /out/wild/\n",
    "links": "COPY link /out/link\nCOPY dirlink /out/dirlink/\nCOPY dirlink/be* l?nk /out/links/\n"
    "RUN ln -s /out/links /out/named\n",
    "path": 'ENV PATH="/own:$PATH"\nRUN echo $PATH >/out/path\n',
    "stage": "FROM base AS last\nRUN mkdir -p /out\nCOPY <<EOF /out/stage\n$EARLY $A $V\nEOF\n"
    "ENV V=again\nCOPY <<EOF /out/again\n$V\nEOF\nARG V\nCOPY <<EOF /out/argued\n$V\nEOF\n",
    "of a stage": "COPY --from=base --chown=5 /out/there /out/from\n"
    "COPY --from=base /out/named /out/followed/\n",
}


# What neither builds: its lines, and what ours says of them.
REFUSED = {
    "COPY <<EOF /out/x\nx\n": "does not end",
    "RUN cat <<EOF\nx\n EOF\n": "does not end",
    "RUN cat <<-EOF\nx\n  EOF\n": "does not end",
    "COPY source <<EOF\nx\nEOF\n": "needs a target",
    "COPY <<EOF\nx\nEOF\n": "needs a target",
    "COPY <<EOF /out/x\n${V\nEOF\n": "not supported",
    "COPY <<EOF /out/x\n${P:?no}\nEOF\n": "'P' has no value: no",
    "ENV P=\nCOPY <<EOF /out/x\n${P:?no}\nEOF\n": "'P' has no value: no",
    "COPY <<EOF /out/x\n${V/x}\nEOF\n": "not supported",
    "COPY <<EOF /out/x\n${V#\\n}\nEOF\n": "a backslash before 'n'",
    "COPY <<EOF /out/x\n${:x}\nEOF\n": "not supported",
    "COPY <<EOF /out/x\n${V:#x}\nEOF\n": "not supported",
    "COPY <<'a b' /out/x\na b\n": "not a plain file name",
    "RUN <<EOF\nfalse\nEOF\n": "exit code: 1",
}
# What BuildKit builds, and we say that we do not.
NOT_OURS = {
    "COPY source source <<a /out/x\na\n": "end with /",
    "COPY <<EOF /out/x\n${EARLY/a/\\b}\nEOF\n": "plain text",
    "ONBUILD RUN <<EOF\ntrue\nEOF\n": "ONBUILD",
}


@pytest.fixture
def api(image: str) -> Iterator[Any]:
    """The engine of the machine: its BuildKit reads here-documents itself."""
    assert image
    with docker_of_the_machine() as client:
        yield client


@pytest.fixture
def recipe(tmp_path: Path) -> ImageRecipe:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/source").write_text("source")
    (tmp_path / "context/below").mkdir()
    (tmp_path / "context/below/below").symlink_to("../source")
    (tmp_path / "context/link").symlink_to("/source")
    (tmp_path / "context/dirlink").symlink_to("below")
    return ImageRecipe(context=tmp_path / "context", args=tuple(ARGS.items()), timeout_sec=120)


def write(recipe: ImageRecipe, lines: str) -> None:
    top = TOP.format(image=os.environ["BENCHFLOW_DOCKER_IMAGE"])
    (recipe.context / "Dockerfile").write_text(top + lines, newline="")


def by_buildkit(api: Any, recipe: ImageRecipe, to: Path) -> str:
    """Build with the engine's BuildKit what is there; return why not, or unpack what it made."""
    packed = io.BytesIO()
    # The engine knows an archive by its first bytes, which are none of PAX.
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(recipe.context, ".")
    options = {"version": "2", "t": "theirs", "networkmode": "none", "buildargs": json.dumps(ARGS)}
    url = f"{api.base_url}/v{api.api_version}/build"
    answer = api.post(url, params=options, data=packed.getvalue(), timeout=120)
    said = [json.loads(line) for line in answer.text.splitlines()]
    failed = [str(each["error"]) for each in said if "error" in each]
    if failed or not answer.ok:
        return "".join(failed) or answer.text
    container = api.create_container("theirs", ["true"])["Id"]
    try:
        stream, _ = api.get_archive(container, "/out")
        (to / "theirs.tar").write_bytes(b"".join(stream))
    finally:
        api.remove_container(container)
        api.remove_image("theirs")
    return ""


def by_us(recipe: ImageRecipe, to: Path, made_by: Sandboxes = DockerProvider) -> None:
    """Build as a task's image is built; pack what it made."""

    async def main() -> None:
        async with made_by(store=to / "store") as provider:
            box = await provider.create(SandboxSpec(recipe=recipe, user="root", workdir="/"))
            packed = await box.exec("tar -C / -cf /tmp/ours.tar out")
            assert packed.ok, packed
            await box.download("/tmp/ours.tar", to / "ours.tar")

    asyncio.run(main())


def files(archive: Path) -> dict[str, tuple[object, ...]]:
    """Return the files with all but their times."""
    found = {}
    with tarfile.open(archive) as tar:
        for each in tar:
            data = tar.extractfile(each) if each.isfile() else None
            content = data.read() if data else each.linkname
            found[each.name] = (each.type, oct(each.mode), each.uid, each.gid, content)
    return found


def test_files_are_those_that_buildkit_makes(
    api: Any,
    older: OwnEngine,
    recipe: ImageRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(recipe, "".join(TAKEN.values()))
    assert by_buildkit(api, recipe, tmp_path) == ""
    theirs = files(tmp_path / "theirs.tar")
    assert len(theirs) > len(TAKEN)
    sandboxes: dict[str, Sandboxes] = {
        "docker": DockerProvider,
        "local": LocalProvider,
        # Its BuildKit does not know here-documents: it builds what we rewrite.
        "docker 20.10": DockerProvider,
    }
    for name, made_by in sandboxes.items():
        if name == "docker 20.10":
            monkeypatch.setenv("DOCKER_HOST", older.host)
        (tmp_path / name).mkdir()
        by_us(recipe, tmp_path / name, made_by)
        assert files(tmp_path / name / "ours.tar") == theirs, name


def test_what_buildkit_refuses_is_refused_and_little_else(
    api: Any, recipe: ImageRecipe, tmp_path: Path
) -> None:
    for lines, why in {**REFUSED, **NOT_OURS}.items():
        write(recipe, lines)
        refused = by_buildkit(api, recipe, tmp_path)
        assert bool(refused) is (lines in REFUSED), (lines, refused)
        with pytest.raises(BenchFlowError, match=why):
            by_us(recipe, tmp_path)
