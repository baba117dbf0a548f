"""Images from recipes, made in real boxes on an image of the host's own programs."""

import asyncio
import os
import re
import subprocess
import tarfile

import pytest
from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    TaskError,
)
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.build.builder import Builder
from benchflow_sandbox_local.rootfs.store import ImageStore

PROGRAMS = ("sh", "cat", "id", "ln", "ls", "mkdir", "rm", "sleep", "stat", "touch", "true", "env")


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A directory with the image `tiny`: a shell and a few programs."""
    place = tmp_path_factory.mktemp("images")
    root = place / "tiny" / "rootfs"
    for name in ("usr/bin", "etc", "tmp", "root"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    programs = [os.path.realpath(f"/bin/{name}") for name in PROGRAMS]
    for name, program in zip(PROGRAMS, programs, strict=True):
        subprocess.run(["cp", program, root / "usr/bin" / name], check=True)
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for path in {word for word in told.split() if word.startswith("/") and not word.endswith(":")}:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-L", path, root / path[1:]], check=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:77:78::/srv:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\napp:x:78:\n")
    (root / "etc" / "mark").write_text("of the base\n")
    return place


@pytest.fixture
def context(tmp_path):
    path = tmp_path / "context"
    path.mkdir()
    return path


@pytest.fixture
def built(with_provider, context, images):
    """Run an async test against a box of a Dockerfile."""

    def run(dockerfile, test, timeout_sec=60, args=(), target="", **spec):
        (context / "Dockerfile").write_text(dockerfile)
        recipe = ImageRecipe(context=context, args=args, target=target, timeout_sec=timeout_sec)
        asked = {"user": "", "workdir": "", "image_search": (str(images),), **spec}

        async def main(provider):
            box = await provider.create(SandboxSpec(recipe=recipe, **asked))
            return await test(box)

        return with_provider(main)

    return run


def kept_in(store):
    found = (store / "images" / "layers").glob("*")
    return [path.name for path in found if not path.name.endswith(".lock")]


def shows(command, expected):
    async def test(box):
        result = await box.exec(command)
        assert result.stdout == expected, result

    return test


async def never(_box):
    pytest.fail("it was made")


def test_run_changes_files_and_the_image_says_how_its_processes_run(built):
    async def test(box):
        assert (box.spec.user, box.spec.workdir) == ("app", "/srv/data")
        seen = await box.exec("cat made /etc/mark; echo $GREETING; id -u; ls -ld . | cut -c1-10")
        assert seen.stdout.startswith("two\nhello you\n77\n"), seen
        assert (await box.exec("touch mine")).ok

    built(
        'FROM tiny\nARG WHO=you\nENV GREETING="hello $WHO"\nUSER app\nWORKDIR /srv/data\n'
        'RUN echo one > made\nRUN ["sh", "-c", "echo two > made"]\nUSER root\n'
        "RUN rm /etc/mark\nUSER app\n",
        test,
    )


def test_here_documents_are_scripts_inputs_and_files(built, context):
    (context / "given").write_text("given\n")
    dockerfile = """# syntax=docker/dockerfile:1
FROM tiny
ARG WHO=you
RUN <<EOF
echo one >/made
echo "$WHO" >>/made
EOF
RUN cat >>/made <<-'EOF' && echo after >>/made
\tas it is: $WHO
\tEOF
RUN <<EOF
#!/bin/env sh
echo $0 >>/made
EOF
COPY --chmod=600 <<EOF /text
"hello" $WHO \\$WHO
EOF
COPY given <<first <<'second' /files/
1
first
$WHO
second
"""
    said = "one\nyou\nas it is: $WHO\nafter\n/dev/shm/EOF\n"
    files = '"hello" you $WHO\ngiven\n1\n$WHO\n600 644\n'
    command = (
        "cat /made /text /files/given /files/first /files/second; "
        "echo $(stat -c %a /text /files/first); ls /dev/shm"
    )
    built(dockerfile, shows(command, said + files))


def test_arguments_that_a_build_is_given_are_those_that_it_declares(built):
    dockerfile = """ARG BASE=none
ARG BEFORE=1
FROM $BASE AS first
ARG WHAT=default
ARG BEFORE
ARG OWN=own
RUN echo "$WHAT $BEFORE $OWN $UNSAID" >/made
FROM first
COPY <<EOF /text
$WHAT $UNSAID
EOF
"""
    args = (("BASE", "tiny"), ("WHAT", "given"), ("UNSAID", "x"))
    built(dockerfile, shows("cat /made /text", "given 1 own \ngiven \n"), args=args)
    built(dockerfile, shows("cat /text", "other \n"), args=(("BASE", "tiny"), ("WHAT", "other")))


def test_what_is_mounted_is_seen_by_its_instruction_and_in_no_layer(built, context):
    (context / "given").write_text("given\n")
    (context / "left").write_text("left\n")
    (context / ".dockerignore").write_text("left\n")
    dockerfile = """FROM tiny AS other
RUN echo other >/made; mkdir /deep; echo deep >/deep/file
FROM tiny
RUN mkdir /cache; echo before >/cache/kept
RUN --mount=type=cache,target=/cache,uid=77,mode=700 --mount=type=tmpfs,dst=/scratch \\
  --mount=target=/given --mount=from=other,source=/made,target=/one \\
  --mount=type=bind,from=other,src=deep,target=/two <<EOF
echo $(ls /cache) $(stat -c %u:%a /cache) >/seen
echo x >/cache/new; echo x >/scratch/new
cat /given/given /one /two/file >>/seen
ls /given >>/seen
touch /given/new || echo read-only >>/seen
EOF
"""
    seen = "77:700\ngiven\nother\ndeep\nDockerfile\ngiven\nread-only\nbefore\nkept\n"
    built(dockerfile, shows("cat /seen /cache/kept; ls /cache; ls /scratch /given/*", seen))


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("type=secret,id=x", "secret"),
        ("type=bind,target=/x,rw", "rw"),
        ("type=cache", "needs a target"),
        ("type=cache,target=/x,mode=rwx", "numbers"),
        ("type=cache,target=/link/x", "below a symlink"),
    ],
)
def test_a_mount_that_cannot_be_had_is_refused_with_its_line(built, flags, what):
    with pytest.raises((TaskError, SandboxUnsupportedError), match=what) as refused:
        built(f"FROM tiny\nRUN ln -s etc /link\nRUN --mount={flags} true\n", never)
    assert refused.value.where == "Dockerfile:3"


def test_a_link_that_took_a_mounts_place_leads_nowhere(built, tmp_path):
    outside = tmp_path / "outside"
    (outside / "cache").mkdir(parents=True)
    (outside / "cache" / "kept").write_text("kept")
    dockerfile = f"""FROM tiny
RUN --mount=type=cache,target=/var/cache <<EOF
rm -r /var/cache
rm -r /var
cat /etc/mark
EOF
RUN --mount=type=cache,target=/a/cache rm -r /a && ln -s {outside} /a
"""
    command = "ls /var/cache || echo gone; stat -c %N /a"
    built(dockerfile, shows(command, f"gone\n'/a' -> '{outside}'\n"))
    assert (outside / "cache" / "kept").exists()


def test_what_run_starts_ends_with_it(built):
    built("FROM tiny\nRUN sleep 1000 & echo x > /tmp/x\n", shows("cat /tmp/x", "x\n"))


def test_copy_takes_files_modes_and_links_but_not_what_is_ignored(built, context):
    (context / "app" / "deep").mkdir(parents=True)
    (context / "app" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (context / "app" / "run.sh").chmod(0o755)
    (context / "app" / "deep" / "kept").write_text("kept")
    (context / "app" / "deep" / "left").write_text("left")
    (context / "app" / "secret").symlink_to("/etc/shadow")
    (context / ".dockerignore").write_text("**/left\nDockerfile\n")
    command = "/opt/run.sh; ls -R /opt | cat; cat /one; stat -c %u:%g:%a /two"
    listed = "/opt:\ndeep\nrun.sh\nsecret\n\n/opt/deep:\nkept\n"
    built(
        "FROM tiny\nCOPY app /opt\nCOPY app/d*/kept /one\n"
        "COPY --chown=app:root --chmod=640 app/run.sh /two\n",
        shows(command, f"ran\n{listed}kept77:0:640\n"),
    )


def test_a_source_that_is_a_link_is_what_it_leads_to(built, context):
    for name, text in {"real/a": "a", "real/b": "b", "secret/c": "c"}.items():
        (context / name).parent.mkdir(exist_ok=True)
        (context / name).write_text(text)
    (context / "real" / "inner").symlink_to("a")
    (context / "to").symlink_to("/real")
    (context / "out").symlink_to("../../../real/b")
    (context / ".dockerignore").write_text("secret\n")
    built(
        "FROM tiny AS made\nCOPY to /dir\nCOPY to/a o*t /files/\nRUN ln -s dir /name\n"
        "FROM tiny\nCOPY --from=made /name/inner /file\nCOPY --from=made /name /dir\n"
        "COPY --from=made /files /files\n",
        shows(
            "cat /file /files/a /files/out; stat -c %F /dir/*",
            "aab" + "regular file\nregular file\nsymbolic link\n",
        ),
    )
    for target in ("secret/c", "absent", "round"):
        (context / "round").unlink(missing_ok=True)
        (context / "round").symlink_to(target)
        with pytest.raises(
            TaskError, match=r"'round'.* (is not in the context|more than 40 symlinks)"
        ):
            built("FROM tiny\nCOPY round /x\n", never)


def test_an_image_without_a_path_has_buildkits(built):
    standard = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    built(
        'FROM tiny\nENV PATH="/own:$PATH"\nRUN env | cat > /said\n',
        shows(
            "cat /said | while read x; do case $x in PATH=*) echo $x;; esac; done",
            f"PATH=/own:{standard}\n",
        ),
    )


def test_a_dockerfile_that_is_no_file_is_built_of_its_context(with_provider, context, images):
    (context / "kept").write_text("kept")
    (context / "left").write_text("left")
    (context / ".dockerignore").write_text("kept")
    (context / "said.dockerignore").write_text("left\n*.dockerignore")
    recipe = ImageRecipe(context=context, dockerfile="said", inline="FROM tiny\nCOPY . /in\n")

    async def main(provider):
        spec = SandboxSpec(recipe=recipe, image_search=(str(images),), user="", workdir="")
        box = await provider.create(spec)
        assert (await box.exec("ls -A /in | cat")).stdout == "kept\n"

    with_provider(main)


def test_a_link_of_the_image_leads_a_copy_nowhere_but_inside(built, context, tmp_path):
    (context / "link").mkdir()
    (context / "link" / "etc").symlink_to("/etc")
    (context / "link" / "out").symlink_to(tmp_path)
    (context / "file").write_text("written")
    built("FROM tiny\nCOPY link /l\nCOPY file /l/etc/\n", shows("cat /etc/file", "written"))
    with pytest.raises(SandboxError, match="File exists"):
        built("FROM tiny\nCOPY link /l\nCOPY file /l/out/\n", shows("true", ""))
    assert not (tmp_path / "file").exists()


def test_stages_hand_over_files_and_unneeded_ones_are_not_made(built):
    built(
        "FROM tiny AS maker\nRUN mkdir /out && echo made > /out/a && echo b > /out/b\n"
        "FROM tiny AS never\nRUN false-is-not-there\n"
        "FROM maker AS other\nRUN echo more > /out/a\n"
        "FROM tiny\nCOPY --from=maker /out/a /a\nCOPY --from=2 /out /out\n",
        shows("cat /a /out/a /out/b; ls /out | cat", "made\nmore\nb\na\nb\n"),
    )


STAGES = """FROM tiny AS First
ENV STAGE=first
FROM first
ENV STAGE=1
FROM first AS twice
ENV STAGE=2
FROM absent AS twice
"""


@pytest.mark.parametrize(("target", "stage"), [("FIRST", "first"), ("1", "1"), ("2", "2")])
def test_an_image_is_made_up_to_the_stage_that_a_recipe_names(built, target, stage):
    built(STAGES, shows("echo $STAGE", f"{stage}\n"), target=target)


@pytest.mark.parametrize(
    ("target", "where", "what"),
    [("third", "Dockerfile", "not have a stage 'third'"), ("twice", "Dockerfile:7", "absent")],
)
def test_of_stages_of_one_name_the_last_is_meant_and_one_that_is_none_is_named(
    built, target, where, what
):
    with pytest.raises((SandboxError, TaskError), match=what) as refused:
        built(STAGES, never, target=target)
    assert refused.value.where == where


def test_a_stage_that_is_made_from_itself_is_refused(built):
    with pytest.raises(TaskError, match="depends on itself") as refused:
        built("FROM tiny AS a\nCOPY --from=b /x /x\nFROM a AS b\nRUN true\nFROM b\n", never)
    assert refused.value.where == "Dockerfile:3"


def test_add_unpacks_local_archives(built, context):
    (context / "inner").write_text("packed")
    with tarfile.open(context / "a.tar.gz", "w:gz") as tar:
        tar.add(context / "inner", "sub/inner")
    built("FROM tiny\nADD a.tar.gz /x/\nADD inner /y\n", shows("cat /x/sub/inner /y", "packed" * 2))


def test_an_image_of_nothing_holds_what_was_copied(built, context, tmp_path):
    (context / "hello").write_text("hello")

    async def test(box):
        await box.download("/hello", tmp_path / "got")
        assert (tmp_path / "got").read_text() == "hello"
        with pytest.raises(SandboxError):
            await box.exec(["/usr/bin/id"])

    built("FROM scratch\nCOPY hello /hello\n", test)


def test_the_images_own_entrypoint_runs_as_its_own_user(built):
    async def test(box):
        async with asyncio.timeout(20):
            while not (await box.exec("cat /tmp/started")).stdout:  # noqa: ASYNC110 - in the box
                await asyncio.sleep(0.01)
        started = (await box.exec("cat /tmp/started")).stdout
        assert started == "77 sh -c sleep infinity\n"

    script = 'echo "$(id -u) $*" > /tmp/started; exec "$@"'
    built(
        f"FROM tiny\nRUN echo '{script}' > /run.sh\nUSER app\n"
        'ENTRYPOINT ["/bin/sh", "/run.sh"]\nCMD ["ignored"]\n',
        test,
        entrypoint="image",
        user="root",
    )


@pytest.mark.parametrize(
    ("dockerfile", "error", "where", "what"),
    [
        ("FROM tiny\nRUN echo no >&2; exit 3", SandboxError, ":2", "exit code 3:\nno"),
        ("FROM tiny\n\nCOPY none /", TaskError, ":3", "'none' is not in the context"),
        ("FROM tiny\nCOPY ../x /", TaskError, ":2", "is outside of the context"),
        ("FROM tiny\nADD https://example.org/x /", SandboxUnsupportedError, ":2", "network"),
        ("FROM tiny\nRUN --mount=type=ssh true", SandboxUnsupportedError, ":2", "--mount"),
        ("FROM none-such", SandboxUnsupportedError, ":1", "image 'none-such' was not found"),
        ("FROM /etc", TaskError, ":1", "is not the name of an image"),
        ("FROM host", TaskError, ":1", "the host's root"),
        ("FROM --platform=linux/none tiny", SandboxUnsupportedError, ":1", "this machine"),
        ("FROM tiny\nUSER none\nRUN true", SandboxError, ":3", "no user 'none'"),
        ("FROM tiny\nUSER 4294967296\nWORKDIR /w", SandboxError, ":3", "no user '4294967296'"),
        ("RUN true\nFROM tiny", TaskError, ":1", "before the first FROM"),
    ],
)
def test_what_fails_is_told_with_its_line_and_leaves_nothing(
    built, store, monkeypatch, dockerfile, error, where, what
):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")

    with pytest.raises(error, match=what) as refused:
        built(dockerfile, never)
    assert refused.value.where == f"Dockerfile{where}"
    assert kept_in(store) == []


def test_a_build_that_takes_too_long_is_ended(built, store):
    with pytest.raises(SandboxTimeoutError, match="1"):
        built("FROM tiny\nRUN sleep 1000\n", shows("true", ""), timeout_sec=1)
    assert kept_in(store) == []


def test_the_same_bytes_are_built_once_and_others_again(with_provider, context, images, store):
    (context / "file").write_text("one")
    (context / "Dockerfile").write_text("FROM tiny\nRUN true\nCOPY file /file\nRUN true\n")
    spec = SandboxSpec(recipe=ImageRecipe(context=context), image_search=(str(images),))

    def layers():
        return {path.name for path in (store / "images" / "layers").glob("[!.]*")}

    async def main(provider):
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(provider.create(spec))
        first = layers()
        assert len(first) == 3
        os.utime(context / "file")
        await provider.create(spec)
        assert layers() == first
        (context / "file").write_text("two")
        box = await provider.create(spec)
        assert (await box.exec("cat /file")).stdout == "two"
        assert len(layers() - first) == 2  # what came before the copy is the same

    with_provider(main)
    with_provider(main_finds(spec, layers))


def main_finds(spec, layers):
    async def main(provider):
        before = layers()
        await provider.create(spec)
        assert layers() == before

    return main


def test_snapshots_of_a_built_image_go_on_and_are_loaded_again(
    with_provider, context, images, tmp_path
):
    (context / "Dockerfile").write_text("FROM tiny\nENV A=1\nRUN echo base > /f\nUSER app\n")
    spec = SandboxSpec(
        recipe=ImageRecipe(context=context), image_search=(str(images),), user="", workdir=""
    )

    async def save(provider):
        box = await provider.create(spec)
        await box.exec("echo $A > /f", user="root")
        await provider.save(await box.snapshot(), tmp_path / "saved")

    async def load(provider):
        box = await provider.create(spec, image=await provider.load(tmp_path / "saved"))
        assert (await box.exec("cat /f; id -u; echo $A")).stdout == "1\n77\n1\n"

    with_provider(save)
    with_provider(load)


def test_without_root_nothing_is_built_and_it_says_so(tmp_path):
    builder = Builder(None, ImageStore(tmp_path), refusal="files of several users need root")
    spec = SandboxSpec(recipe=ImageRecipe(context=tmp_path))
    with pytest.raises(SandboxUnsupportedError, match="need root"):
        asyncio.run(builder.source(spec))


def test_an_image_is_told_by_what_it_was_made_from(built):
    async def test(box):
        return dict(box.image_digests)

    told = [built(f"FROM tiny\nRUN echo {word} > made\n", test) for word in ("one", "one", "two")]
    assert told[0] == told[1] != told[2]
    assert re.fullmatch("sha256:[0-9a-f]{64}", told[0]["main"])


def test_the_hosts_own_root_is_told_by_nothing(with_provider):
    async def test(provider):
        return (await provider.create(SandboxSpec())).image_digests

    assert with_provider(test) == {}
