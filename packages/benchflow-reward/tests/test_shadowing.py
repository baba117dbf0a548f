"""Modules and packages of the agent's that interpreters of the tests find before the image's."""

import asyncio

import pytest
from benchflow_contracts import ExecResult, FileChanges, RewardError, SandboxSpec
from benchflow_reward.script.integrity import integrity_report
from benchflow_reward.script.search_paths import SearchPaths
from benchflow_reward.script.tamper_rules import TamperRules

DIRS = ["/app", "/home", "/root", "/tmp"]
PATH = "/opt/jdk/bin:/app/bin:/usr/local/bin:/usr/bin:/bin"
IMAGE = SearchPaths(
    {"HOME": "/root", "PERL5LIB": "/app/lib", "RUBYLIB": "/app/rb", "NODE_PATH": "/opt/n:/opt/m"},
    frozenset(
        {
            "/opt/jdk/bin/java",
            "/app/bin/perl",
            "/usr/bin/mocha",
            "/usr/lib/ruby/gems/3.1.0/specifications/default/json-2.6.1.gemspec",
            "/opt/m/chk",
            "/usr/local/lib/node_modules/npm",
            "/app/node_modules/mocha",
            "/app/node_modules/lodash",
            "/app/node_modules/@jest/core",
        }
    ),
)


def rules(tests):
    return TamperRules.of(tests, DIRS, PATH, pinned=False, image=IMAGE)


def grade(path, tests, change="added"):
    return rules(tests).grade(path, change, {})


def report(provider, tests, added, there, *, answer=None):
    """Grade new files, in a box that finds `there`, pairs of a module's name and a file."""

    async def main():
        box = await provider.create(SandboxSpec())
        told = "".join(f"{name}\0{path}\0" for name, path in there) + "end\0"
        done = answer or ExecResult(exit_code=0, stdout=told, stderr="", duration_sec=0)
        box.on('/bin/sh -c for n in "$@"', lambda call: done)
        changes = FileChanges(added=tuple(added))
        return await integrity_report(box, changes, rules(tests), user="root")

    return asyncio.run(main())


PERLS, LUAS = "/usr/share/perl/5.36.0", "/usr/local/share/lua/5.4"
FOUND_FIRST = [
    (b"perl /tests/t.pl", "/etc/perl/strict.pm", "strict", f"{PERLS}/strict.pm"),
    (b"prove /tests", "/etc/perl/TAP/Harness.pm", "TAP/Harness", f"{PERLS}/TAP/Harness.pm"),
    (b"perl /tests/t.pl", f"{PERLS}/strict.pmc", "strict", f"{PERLS}/strict.pm"),
    (b"perl /tests/t.pl", "/app/lib/strict.pm", "strict", f"{PERLS}/strict.pm"),
    (b"ruby /tests/t.rb", "/app/rb/json.rb", "json", "/usr/lib/ruby/3.1.0/json.rb"),
    (b"lua /tests/t.lua", f"{LUAS}/a/init.lua", "a", "/usr/share/lua/5.4/a.lua"),
]


@pytest.mark.parametrize(("tests", "new", "name", "image"), FOUND_FIRST)
def test_a_module_that_is_found_before_the_images_is_tampered_with(
    provider, tests, new, name, image
):
    own = [] if new.startswith("/app/") else [(name, new)]
    there = [*own, (name, image)]
    assert report(provider, tests, [new], there)["grade"] == "tampered"
    assert report(provider, tests, [new], own)["grade"] == "clean"
    assert report(provider, tests, [new, image], there)["grade"] == "clean"
    assert report(provider, b"true", [new], there)["grade"] == "clean"


def test_a_module_that_is_found_after_the_images_is_not(provider):
    new, image = f"{PERLS}/strict.pm", "/usr/lib/x86_64-linux-gnu/perl-base/strict.pm"
    there = [("strict", image), ("strict", new)]
    assert report(provider, b"perl /tests/t.pl", [new], there)["grade"] == "clean"


def test_a_file_that_is_no_module_hides_none(provider):
    there = [("a", f"{LUAS}/a.lua"), ("a", "/usr/share/lua/5.4/a.txt")]
    assert report(provider, b"lua /tests/t.lua", [f"{LUAS}/a.lua"], there)["grade"] == "clean"


@pytest.mark.parametrize("stdout", ["", "a\0/etc/perl/a.pm\0", "a\0end\0"])
def test_a_twin_that_does_not_say_all_of_it_vouches_for_nothing(provider, stdout):
    cut = ExecResult(exit_code=0, stdout=stdout, stderr="", duration_sec=0)
    with pytest.raises(RewardError, match="which modules a twin has"):
        report(provider, b"perl /tests/t.pl", ["/etc/perl/a.pm"], [], answer=cut)


@pytest.mark.parametrize(
    ("path", "tests", "change"),
    [
        ("/usr/local/lib/node_modules/npm/node_modules/x/index.js", b"node /tests/t.js", "added"),
        ("/usr/local/lib/node_modules/npm.js", b"npm test", "added"),
        ("/opt/n/chk/index.js", b"node /tests/t.js", "added"),
        ("/opt/m/chk/package.json", b"node /tests/t.js", "added"),
        ("/app/node_modules/mocha/lib/m.js", b"npx mocha /tests", "changed"),
        ("/app/node_modules/mocha/lib/m", b"npx mocha /tests", "added"),
        ("/app/node_modules/@jest/core/x.js", b"npx jest", "added"),
        ("/app/node_modules/.bin/mocha", b"./node_modules/.bin/mocha /tests", "changed"),
        ("/app/node_modules/.bin/mocha", b"npx mocha /tests", "added"),
        ("/var/lib/gems/3.1.0/specifications/json-99.0.0.gemspec", b"ruby /tests/t.rb", "added"),
        ("/root/.local/share/gem/ruby/3.1.0/specifications/json-9.gemspec", b"rspec", "added"),
        ("/usr/local/bundle/gems/rspec-core-3/lib/rspec/core.rb", b"rspec", "changed"),
        ("/usr/share/lua/5.4/json.lua", b"lua /tests/t.lua", "changed"),
        ("/usr/local/share/perl/5.36.0/JSON/XS.pm", b"perl /tests/t.pl", "added"),
        ("/usr/bin/php-cli.ini", b"php /tests/t.php", "added"),
        ("/app/.Rprofile", b"Rscript /tests/t.R", "added"),
        ("/app/.proverc", b"prove /tests", "added"),
        ("/root/.proverc", b"prove /tests", "added"),
        ("/opt/jdk/lib/server/libjvm.so", b"java /tests/T.java", "changed"),
        ("/opt/jdk/lib/jvm.cfg", b"true", "changed"),
        ("/opt/jdk/src/testing/zz.go", b"true", "added"),
    ],
)
def test_what_interpreters_run_unasked_is_tampered_with(path, tests, change):
    assert grade(path, tests, change) == "tampered"


@pytest.mark.parametrize(
    ("path", "tests", "change"),
    [
        ("/usr/local/lib/node_modules/other/node_modules/npm/x.js", b"npm test", "added"),
        ("/usr/local/lib/node_modules/npm/x/index.js", b"python3 /tests/t.py", "added"),
        ("/usr/local/lib/node_modules/chk/index.js", b"node /tests/t.js", "added"),
        ("/app/node_modules/left-pad/index.js", b"npx mocha /tests", "added"),
        ("/app/node_modules/.bin/left-pad", b"npx mocha /tests", "added"),
        ("/app/node_modules/mocha/lib/m.js", b"npx mocha /tests", "removed"),
        ("/app/node_modules/mocha/lib/m.js", b"python3 /tests/t.py", "changed"),
        ("/var/lib/gems/3.1.0/specifications/rack-3.0.gemspec", b"ruby /tests/t.rb", "added"),
        ("/app/vendor/ruby/3.1.0/specifications/json-99.gemspec", b"ruby /tests/t.rb", "added"),
        ("/var/lib/gems/3.1.0/specifications/json-99.gemspec", b"python3 /tests/t.py", "added"),
        ("/app/.Rprofile", b"python3 /tests/t.py", "added"),
        ("/app/project/.Rprofile", b"Rscript /tests/t.R", "added"),
        ("/opt/jdk/lib/ext/x.jar", b"java /tests/T.java", "added"),
        ("/opt/jdk/var/log", b"java /tests/T.java", "changed"),
        ("/app/lib/x.pl", b"/app/bin/perl", "changed"),
    ],
)
def test_what_others_bring_and_interpreters_do_not_ask_for_is_clean(path, tests, change):
    assert grade(path, tests, change) is None


def test_another_package_of_a_project_may_be_brought_up_to_date():
    assert grade("/app/node_modules/lodash/x.js", b"npx mocha", "changed") == "suspicious"


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (b"# -*- encoding: utf-8 -*-\n# stub: json-schema 1.0 ruby lib\n", False),
        (b"# -*- encoding: utf-8 -*-\n# stub: json 99.0 ruby lib\n", True),
        (b"exit! 0\n", True),
        (b"# stub: json-schema 1.0 ruby lib\n# stub: json 99.0 ruby lib\n", True),
    ],
)
def test_a_gem_may_not_say_that_it_is_another(provider, text, claims):
    path = "/var/lib/gems/3.1.0/specifications/json-schema-1.0.gemspec"

    async def main():
        box = await provider.create(SandboxSpec())
        box.files.put(path, text)
        asked = FileChanges(added=(path,))
        return await integrity_report(box, asked, rules(b"ruby /tests/t.rb"), user="root")

    assert asyncio.run(main())["grade"] == ("tampered" if claims else "clean")
