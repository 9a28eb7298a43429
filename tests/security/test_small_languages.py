"""Random awk and sed programs: one that is accepted writes no file, whatever the real program makes of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.safety.programs.scripts import is_plain_awk, is_plain_sed

AWK_PARTS = st.sampled_from(
    [
        *(
            "{",
            "}",
            "(",
            ")",
            "print",
            "printf",
            "if",
            "1",
            "$1",
            "x",
            "/",
            "/a/",
            '/"/',
            '"',
            '"f"',
            "=",
            ">",
        ),
        *(">>", "|", '"touch g"', "system", "getline", ";", "\n", " ", "<", "+", "length", "[", "]", "/[/]/"),
        *(
            "BEGIN",
            "END",
            "#",
            "\\",
            ",",
            "~",
            "!",
            "&&",
            "else",
            "while",
            "++",
            '{print > "f"}',
            'print "x" > "f"',
        ),
    ]
)
SED_PARTS = st.sampled_from(
    [
        *(
            "s",
            "/",
            "a",
            "[",
            "]",
            "w f",
            "w",
            " ",
            "e",
            "touch g",
            "1",
            "$",
            ",",
            "!",
            "p",
            "d",
            ";",
            "\n",
            "\\",
        ),
        *("s/a/b/", "s/a/b/w f", "g", "r x", "/[/]/", "s/[/]/", "{", "}", "y", "#", "q", "i\\", "c"),
    ]
)


def _files_after(argv: list[str]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        source.write_text('a 1 "x"\nb/2\n')
        subprocess.run([*argv, "in"], cwd=folder, capture_output=True, timeout=10, check=False)
        return {path.name for path in Path(folder).iterdir()}


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(AWK_PARTS, min_size=2, max_size=14).map("".join))
def test_an_accepted_awk_program_writes_nothing(program: str) -> None:
    if is_plain_awk(program):
        for awk in filter(shutil.which, ("awk", "gawk", "mawk", "busybox")):
            argv = [awk, "awk", program] if awk == "busybox" else [awk, program]
            assert _files_after(argv) == {"in"}, program


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(SED_PARTS, min_size=1, max_size=10).map("".join))
def test_an_accepted_sed_script_writes_nothing(script: str) -> None:
    if is_plain_sed(script):
        assert _files_after(["sed", script]) == {"in"}, script


@pytest.mark.parametrize("program", ['{print > "f"}', 'BEGIN{print "x" > "f"}', '{print /"/ > "f"; x = /"/}'])
def test_the_probe_notices_a_program_that_writes(program: str) -> None:
    assert not is_plain_awk(program)
    assert _files_after(["awk", program]) == {"in", "f"}
