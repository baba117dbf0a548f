"""The programs of a fake sandbox: some of POSIX, with some of their options."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from .shell import FakeShell, FakeShellExit, Level, Program, signal_number

_BITS: Mapping[str, Literal[4, 2, 1]] = MappingProxyType({"-r": 4, "-w": 2, "-x": 1})


async def _true(_shell: FakeShell, _arguments: list[str]) -> int:
    return 0


async def _false(_shell: FakeShell, _arguments: list[str]) -> int:
    return 1


async def _exit(shell: FakeShell, arguments: list[str]) -> int:
    raise FakeShellExit(int(arguments[0]) if arguments else shell.status)


async def _echo(shell: FakeShell, arguments: list[str]) -> int:
    await shell.streams.stdout.write((" ".join(arguments) + "\n").encode())
    return 0


async def _printf(shell: FakeShell, arguments: list[str]) -> int:
    form = arguments[0].replace("\\n", "\n").replace("\\t", "\t")
    rest = arguments[1:]
    out = form
    if "%s" in form:
        holes = form.count("%s")
        rounds = [rest[at : at + holes] for at in range(0, max(len(rest), 1), holes)]
        out = "".join(_fill(form, values) for values in rounds)
    await shell.streams.stdout.write(out.replace("%%", "%").encode())
    return 0


def _fill(form: str, values: list[str]) -> str:
    for value in [*values, *([""] * form.count("%s"))][: form.count("%s")]:
        head, _, tail = form.partition("%s")
        form = head + value.replace("%s", "%\0s") + tail
    return form.replace("%\0s", "%s")


async def _cat(shell: FakeShell, arguments: list[str]) -> int:
    code = 0
    for name in arguments or ["-"]:
        if name == "-":
            await _pump(shell, shell.level)
            continue
        try:
            data = shell.files.read(shell.path(name), user=shell.user)
        except OSError as error:
            await shell.complain(f"cat: {name}: {error.strerror}")
            code = 1
            continue
        await shell.streams.stdout.write(data)
    return code


async def _pump(shell: FakeShell, level: Level) -> None:
    while True:
        if not level.data:
            level.data = await shell.streams.stdin.read()
            if not level.data:
                return
        await shell.gate.passage()
        piece = level.data[:4096]
        await shell.streams.stdout.write(piece)
        level.data = level.data[len(piece) :]


async def _sleep(shell: FakeShell, arguments: list[str]) -> int:
    await shell.gate.sleep(float(arguments[0]))
    return 0


async def _pwd(shell: FakeShell, _arguments: list[str]) -> int:
    return await _echo(shell, [shell.cwd])


async def _cd(shell: FakeShell, arguments: list[str]) -> int:
    where = shell.files.resolve(shell.path(arguments[0] if arguments else shell.env["HOME"]))
    entry = shell.files.entry(where)
    if entry is None or entry.kind != "dir":
        await shell.complain(f"cd: {arguments[0]}: No such file or directory")
        return 2
    shell.cwd = where
    return 0


async def _export(shell: FakeShell, arguments: list[str]) -> int:
    for argument in arguments:
        name, equals, value = argument.partition("=")
        shell.env[name] = value if equals else shell.variables.get(name, "")
    return 0


async def _env(shell: FakeShell, _arguments: list[str]) -> int:
    for name, value in sorted(shell.env.items()):
        await _echo(shell, [f"{name}={value}"])
    return 0


async def _id(shell: FakeShell, arguments: list[str]) -> int:
    number = "0" if shell.user == "root" else shell.user if shell.user.isdigit() else "1000"
    answers = {"-u": number, "-un": shell.user}
    return await _echo(shell, [answers.get(arguments[0] if arguments else "", shell.user)])


async def _kill(shell: FakeShell, arguments: list[str]) -> int:
    chosen = signal_number(arguments[0]) if arguments[0].startswith("-") else 15
    if str(shell.group.pid) != arguments[-1]:
        await shell.complain(f"kill: ({arguments[-1]}) - No such process")
        return 1
    if chosen == 0:
        return 0
    raise FakeShellExit(128 + chosen)


async def _wait(shell: FakeShell, _arguments: list[str]) -> int:
    await shell.group.join()
    return 0


async def _mkdir(shell: FakeShell, arguments: list[str]) -> int:
    for name in arguments:
        if name != "-p":
            shell.files.mkdir(shell.path(name), user=shell.user, parents="-p" in arguments)
    return 0


async def _rm(shell: FakeShell, arguments: list[str]) -> int:
    options = "".join(word for word in arguments if word.startswith("-"))
    for name in (word for word in arguments if not word.startswith("-")):
        try:
            shell.files.remove(shell.path(name), user=shell.user, recursive="r" in options)
        except FileNotFoundError as error:
            if "f" not in options:
                await shell.complain(f"rm: {name}: {error.strerror}")
                return 1
    return 0


async def _touch(shell: FakeShell, arguments: list[str]) -> int:
    for name in arguments:
        shell.files.write(shell.path(name), b"", user=shell.user, append=True)
    return 0


async def _ln(shell: FakeShell, arguments: list[str]) -> int:
    if arguments[0] != "-s":
        await shell.complain("ln: the fake makes symbolic links only")
        return 1
    shell.files.link(arguments[1], shell.path(arguments[2]), user=shell.user)
    return 0


async def _mkfifo(shell: FakeShell, arguments: list[str]) -> int:
    for name in arguments:
        shell.files.fifo(shell.path(name), user=shell.user)
    return 0


async def _chmod(shell: FakeShell, arguments: list[str]) -> int:
    mode, *names = arguments
    for name in names:
        path = shell.path(name)
        entry = shell.files.entry(path)
        bits = (entry.mode | 0o111 if entry else 0o755) if mode == "+x" else int(mode, 8)
        shell.files.chmod(path, bits, user=shell.user)
    return 0


async def _ls(shell: FakeShell, arguments: list[str]) -> int:
    long = "-ld" in arguments or "-l" in arguments
    names = [word for word in arguments if not word.startswith("-")] or ["."]
    for name in names:
        entry = shell.files.entry(shell.path(name), follow=False)
        if entry is None:
            await shell.complain(f"ls: {name}: No such file or directory")
            return 2
        if long:
            kind = {"file": "-", "dir": "d", "link": "l", "fifo": "p"}[entry.kind]
            bits = "".join(
                letter if entry.mode >> (8 - at) & 1 else "-"
                for at, letter in enumerate("rwxrwxrwx")
            )
            line = f"{kind}{bits} 1 {entry.owner} {entry.owner} {len(entry.data)} Jan 1 1970 {name}"
            await _echo(shell, [line])
        elif entry.kind == "dir":
            for inner in shell.files.names(shell.path(name)):
                await _echo(shell, [inner])
        else:
            await _echo(shell, [name])
    return 0


async def _wc(shell: FakeShell, arguments: list[str]) -> int:
    level = shell.level
    while piece := await shell.streams.stdin.read():
        level.data += piece
    count = len(level.data) if "-c" in arguments else level.data.count(b"\n")
    return await _echo(shell, [str(count)])


async def _sha256sum(shell: FakeShell, arguments: list[str]) -> int:
    for name in arguments:
        data = shell.files.read(shell.path(name), user=shell.user)
        await _echo(shell, [f"{hashlib.sha256(data).hexdigest()}  {name}"])
    return 0


async def _test(shell: FakeShell, arguments: list[str]) -> int:
    words = [word for word in arguments if word != "]"]
    if words and words[0] == "!":
        return 0 if await _test(shell, words[1:]) else 1
    if len(words) == 3 and words[1] in {"=", "!=", "-eq", "-ne"}:
        same = words[0] == words[2]
        return 0 if same == (words[1] in {"=", "-eq"}) else 1
    if len(words) == 2 and words[0] in {"-n", "-z"}:
        return 0 if bool(words[1]) == (words[0] == "-n") else 1
    if len(words) == 2 and words[0].startswith("-"):
        return 0 if _file_test(shell, words[0], shell.path(words[1])) else 1
    return 0 if len(words) == 1 and words[0] else 1


def _file_test(shell: FakeShell, option: str, path: str) -> bool:
    if option in {"-h", "-L"}:
        raw = shell.files.entry(path, follow=False)
        return raw is not None and raw.kind == "link"
    entry = shell.files.entry(path)
    if entry is None:
        return False
    if option in _BITS:
        return shell.files.allowed(path, shell.user, _BITS[option])
    kinds = {"-f": "file", "-d": "dir", "-p": "fifo", "-e": entry.kind}
    return bool(entry.data) if option == "-s" else kinds.get(option) == entry.kind


async def _command(shell: FakeShell, arguments: list[str]) -> int:
    if arguments[:1] != ["-v"]:
        level = shell.level
        with level.down() as below:
            return await shell.run_words(arguments, below)
    if arguments[1] not in shell.programs:
        return 127
    return await _echo(shell, [arguments[1]])


async def _sh(shell: FakeShell, arguments: list[str]) -> int:
    level = shell.level
    options = [word for word in arguments if word.startswith("-")]
    rest = [word for word in arguments if not word.startswith("-")]
    if any("c" in option for option in options):
        return await shell.nested(rest[0], rest[1:], level)
    try:
        text = shell.files.read(shell.path(rest[0]), user=shell.user)
    except OSError as error:
        await shell.complain(f"sh: {rest[0]}: {error.strerror}")
        return 127
    return await shell.nested(text.decode("utf-8", "replace"), rest, level)


class FakeToolbox(dict[str, Program]):
    """Programs by name. A copy is the same object, because programs have no state."""

    def __reduce__(self) -> str:
        return "PROGRAMS"


PROGRAMS = FakeToolbox(
    {
        ":": _true,
        "true": _true,
        "false": _false,
        "exit": _exit,
        "echo": _echo,
        "printf": _printf,
        "cat": _cat,
        "sleep": _sleep,
        "pwd": _pwd,
        "cd": _cd,
        "export": _export,
        "env": _env,
        "id": _id,
        "kill": _kill,
        "wait": _wait,
        "mkdir": _mkdir,
        "rm": _rm,
        "touch": _touch,
        "ln": _ln,
        "mkfifo": _mkfifo,
        "chmod": _chmod,
        "ls": _ls,
        "wc": _wc,
        "sha256sum": _sha256sum,
        "test": _test,
        "[": _test,
        "command": _command,
        "sh": _sh,
        "bash": _sh,
    }
)
"""Every program, by name."""
