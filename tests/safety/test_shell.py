"""Commands are taken apart as a shell would, or not at all."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.safety.shell import split


def argvs(command: str) -> list[list[str | None]] | None:
    parts = split(command)
    return None if parts is None else [list(part.argv) for part in parts]


@pytest.mark.parametrize(
    "command, expected",
    [
        ("ls -la src", [["ls", "-la", "src"]]),
        ("a;b&&c||d|e&f\ng", [[name] for name in "abcdefg"]),
        ("echo 'a;b' \"c&&d\" e\\|f", [["echo", "a;b", "c&&d", "e|f"]]),
        ("echo 'it'\\''s'\"!\"", [["echo", "it's!"]]),
        ('echo "a\\"b\\$c\\d"', [["echo", 'a"b$c\\d']]),
        ("echo a # b; rm c\nls", [["echo", "a"], ["ls"]]),
        ("echo a#b", [["echo", "a#b"]]),
        ("echo a \\\n b", [["echo", "a", "b"]]),
        ("ec\\\nho a", [["echo", "a"]]),
        ("(a; b) | c", [["a"], ["b"], [], ["c"]]),
        ("echo $(rm x) done", [["rm", "x"], ["echo", None, "done"]]),
        ('echo "$(a "$(b)")"', [["b"], ["a", None], ["echo", None]]),
        ("echo $HOME ${HOME} $1 $?", [["echo", None, None, None, None]]),
        ("echo {a,b} x", [["echo", None, "x"]]),
        ("$cmd x", [[None, "x"]]),
        ("[ -f x ]", [["[", "-f", "x", "]"]]),
        ("", []),
        ("  \n # only a comment", []),
    ],
)
def test_simple_commands_are_found(command: str, expected: list[list[str | None]]) -> None:
    assert argvs(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        *(
            "if a; then b; fi",
            "for x in a; do b; done",
            "while a; do b; done",
            "case x in x) y;; esac",
            "f() { a; }",
        ),
        *(
            "function f { a; }",
            "{ a; }",
            "! a",
            "time a",
            "coproc a",
            "[[ a ]]",
            "((1))",
            "until a; do b; done",
        ),
        *("cat <<EOF\nx\nEOF", "cat <<< x", "cat <(ls)", "a >(b)", "cat <> x", "cat <\\\n<EOF"),
        *(
            "echo `a`",
            'echo "`a`"',
            "echo $((x+1))",
            "echo $((a[$(b)]))",
            "echo $[1]",
            "echo ${x:=a}",
            "echo ${x@P}",
            "echo $'a'",
            'echo $"a"',
        ),
        *(
            "echo 'a",
            'echo "a',
            "echo a\\",
            "a;;b",
            "a && && b",
            "&& a",
            "| a",
            "a | & b",
            "(a",
            "a)",
            "(a) b",
            "a (b)",
        ),
        *("x=(a b)", "a |& b", "echo !(x)", "echo a(b)", "echo \0", "> ", "a >", "a > ;"),
    ],
)
def test_what_is_not_understood_is_said_so(command: str) -> None:
    assert split(command) is None


def test_where_sh_and_bash_differ_neither_reading_is_taken() -> None:
    assert split("ls &>/dev/null rm x") is None  # in sh this runs rm
    assert argvs("ls &>/dev/null; pwd") == [["ls"], ["pwd"]]


def test_a_comment_does_not_go_on_after_a_backslash() -> None:
    assert argvs("ls # harmless \\\nrm -rf x") == [["ls"], ["rm", "-rf", "x"]]


def test_deep_nesting_is_not_understood_rather_than_a_crash() -> None:
    assert split("echo " + "$(" * 5000 + ")" * 5000) is None


@pytest.mark.parametrize(
    "command, writes",
    [
        *(
            (f"echo a {sink}", False)
            for sink in (">/dev/null", "2> /dev/null", "2>&1", ">&2", "&>/dev/null", "2>&-")
        ),
        *(
            (f"echo a {sink}", True)
            for sink in (">f", ">>f", "2>f", "&>f", ">|f", ">&f", "> $x", ">/dev/null2")
        ),
        *((f"echo a {sink}", True) for sink in (">/dev/sda", "> '/dev/null '", "&>>f", "3>f", ">$(x)")),
        ("(a) > f", True),
        ("> f", True),
        ("cat < f", False),
    ],
)
def test_redirections_that_can_write_are_marked(command: str, writes: bool) -> None:
    parts = split(command)
    assert parts is not None
    assert any(part.writes for part in parts) is writes


def test_files_that_are_read_and_variables_that_are_set_are_marked() -> None:
    parts = split("A=1 B+=2 cat x < in 0< $y")
    assert parts is not None
    assert parts[0].argv == ("cat", "x")
    assert parts[0].assigns
    assert parts[0].reads == ("in", None)
    assert [part.assigns for part in split("PATH=.; ls") or []] == [True, False]


PIECES = [
    "'",
    '"',
    "\\",
    "$",
    "`",
    "#",
    ";",
    "&",
    "|",
    "\n",
    " ",
    "a",
    "-x",
    "*",
    "(",
    ")",
    "{",
    "}",
    "<",
    ">",
    "=",
    "~",
    "!",
    "[",
    "é",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_splitting_raises_nothing_on_any_text(command: str) -> None:
    split(command)


SHELLS = [path for path in (shutil.which("dash"), shutil.which("bash")) if path]
QUOTING = ["'", '"', "\\", "\n", " ", "a", "b", "-c", "#", "é", "\\\n", "  ", "''"]


def test_static_words_are_what_the_shells_make_of_them() -> None:
    """Whatever is taken apart as one command with known words must reach a program as just those words."""
    checked = 0
    for seed in range(400):
        pieces = [(seed * 7919 + i * i * 31 + i * seed) % len(QUOTING) for i in range(1 + seed % 9)]
        command = "printf '%s\\0' " + "".join(QUOTING[piece] for piece in pieces)
        parts = split(command)
        if parts is None or len(parts) != 1 or None in parts[0].argv or len(parts[0].argv) < 3:
            continue
        checked += 1
        for shell in SHELLS:
            ran = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)
            assert ran.stdout.split("\0")[:-1] == list(parts[0].argv[2:]), command
    assert checked > 80
