"""Replacement and unified diffs: exact, all or nothing, with errors that help."""

from __future__ import annotations

import difflib
import random

import pytest

from hermes.errors import ToolError
from hermes.tools.files.patch import apply_diff, replace_exact

TEXT = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 2\n"


def test_one_occurrence_is_replaced_and_its_line_reported() -> None:
    changed = replace_exact(TEXT, "x + 2", "x - 2", replace_all=False)
    assert changed.text == TEXT.replace("x + 2", "x - 2")
    assert changed.lines == (6,)


def test_every_occurrence_is_replaced_on_request() -> None:
    changed = replace_exact("a b a b a", "a", "aa", replace_all=True)
    assert (changed.text, changed.lines) == ("aa b aa b aa", (1, 1, 1))


def test_text_that_is_not_unique_is_refused_with_its_lines() -> None:
    with pytest.raises(ToolError, match=r"occurs 2 times, at lines 2, 6"):
        replace_exact(TEXT, "    return x + ", "", replace_all=False)


@pytest.mark.parametrize(("old", "new", "reason"), [("", "x", "empty"), ("x", "x", "the same")])
def test_a_replacement_without_meaning_is_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        replace_exact(TEXT, old, new, replace_all=False)


def test_text_that_differs_only_in_white_space_is_pointed_out() -> None:
    with pytest.raises(ToolError, match=r"line 1 differs only in white space:\n +1\tdef f\(x\):"):
        replace_exact(TEXT, "def f(x):\n\treturn x + 1", "", replace_all=False)


def test_missing_text_is_answered_with_the_nearest_lines() -> None:
    with pytest.raises(ToolError, match=r"nearest lines are:(.|\n)* +5\tdef g\(x\):"):
        replace_exact(TEXT, "def gg(x):", "", replace_all=False)


def test_missing_text_with_nothing_like_it_is_said_plainly() -> None:
    with pytest.raises(ToolError, match=r"does not occur in the file$"):
        replace_exact(TEXT, "class Completely: different", "", replace_all=False)


def test_a_very_long_text_is_not_searched_for_similar_lines() -> None:
    with pytest.raises(ToolError, match=r"does not occur in the file$"):
        replace_exact("def f(x):\n" * 6_000, "def ff(x):", "", replace_all=False)


def test_hunks_are_applied_in_order() -> None:
    diff = (
        "@@ -1,2 +1,2 @@\n def f(x):\n-    return x + 1\n+    return x\n"
        "@@ -5,2 +5,3 @@\n def g(x):\n+    x *= 2\n     return x + 2\n"
    )
    changed = apply_diff(TEXT, diff)
    assert changed.text == "def f(x):\n    return x\n\n\ndef g(x):\n    x *= 2\n    return x + 2\n"
    assert changed.lines == (1, 5)


def test_wrong_line_numbers_do_not_matter_where_the_lines_are_unique() -> None:
    diff = "--- a/f.py\n+++ b/f.py\n@@ -40,7 +90 @@ def g\n def g(x):\n-    return x + 2\n+    return 0\n"
    assert apply_diff(TEXT, diff).text.endswith("def g(x):\n    return 0\n")


def test_a_header_without_numbers_is_enough() -> None:
    assert apply_diff("a\nb\n", "@@\n-b\n+c\n").text == "a\nc\n"


def test_a_line_number_beyond_all_bounds_is_no_number() -> None:
    assert apply_diff("a\nb\n", f"@@ -{'9' * 5000} +1 @@\n-b\n+c\n").text == "a\nc\n"


def test_a_hunk_that_fits_twice_goes_where_its_header_says() -> None:
    assert apply_diff("a\nx\na\nx\n", "@@ -3,2 +3 @@\n a\n-x\n").text == "a\nx\na\n"


def test_a_hunk_that_fits_twice_without_saying_where_is_refused() -> None:
    with pytest.raises(ToolError, match=r"hunk 1 fits at several lines \(1, 3\)"):
        apply_diff("a\nx\na\nx\n", "@@\n a\n-x\n")


def test_one_hunk_that_does_not_fit_stops_all_of_them() -> None:
    with pytest.raises(ToolError, match="hunk 2 does not fit the file; the nearest lines"):
        apply_diff(TEXT, "@@ -1 +1 @@\n-def f(x):\n+def h(x):\n@@ -5 +5 @@\n-def gg(x):\n+def k(x):\n")


def test_a_hunk_may_not_go_back_before_the_previous_one() -> None:
    with pytest.raises(ToolError, match="hunk 2 does not fit"):
        apply_diff("a\nb\n", "@@\n-b\n+c\n@@\n-a\n+d\n")


def test_pure_insertions_need_a_line_number() -> None:
    assert apply_diff("a\nb\n", "@@ -1,0 +2,1 @@\n+new\n").text == "a\nnew\nb\n"
    assert apply_diff("", "@@ -0,0 +1,2 @@\n+a\n+b\n").text == "a\nb\n"
    with pytest.raises(ToolError, match="does not say where"):
        apply_diff("a\n", "@@\n+new\n")
    with pytest.raises(ToolError, match="does not say where"):
        apply_diff("a\n", "@@ -9,0 +9,1 @@\n+new\n")


def test_the_end_of_the_file_keeps_or_changes_its_newline_as_the_diff_says() -> None:
    assert apply_diff("a\nb", "@@ -2 +2 @@\n-b\n+c\n").text == "a\nc"
    no_newline = "\\ No newline at end of file\n"
    assert apply_diff("a\nb", f"@@ -2 +2 @@\n-b\n{no_newline}+c\n").text == "a\nc\n"
    assert apply_diff("a\nb\n", f"@@ -2 +2 @@\n-b\n+c\n{no_newline}").text == "a\nc"
    assert apply_diff("a\nb", f"@@ -2 +2 @@\n-b\n{no_newline}+c\n{no_newline}").text == "a\nc"


def test_removing_every_line_leaves_an_empty_file() -> None:
    assert apply_diff("a\n", "@@ -1 +0,0 @@\n-a\n").text == ""


def test_blank_context_lines_may_have_lost_their_space() -> None:
    assert apply_diff("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n\n").text == "a\n\nc\n"


def test_lines_that_look_like_file_headers_are_lines_inside_a_hunk() -> None:
    text = "a\n-- option\nb\n"
    assert apply_diff(text, "@@ -1,3 +1,3 @@\n a\n--- option\n+++ option\n b\n").text == "a\n++ option\nb\n"


@pytest.mark.parametrize(
    ("diff", "reason"),
    [
        ("", "changes nothing"),
        ("just text", "changes nothing"),
        ("@@ -1 +1 @@\n a\n", "changes nothing"),
        ("@@ -1 +1 @@\n-a\n*** what\n", "line 3 of the diff begins with none"),
        ("--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n--- c\n+++ d\n@@ -1 +1 @@\n-a\n+b\n", "several files"),
        ("@@ -1 +1 @@\n\\ No newline at end of file\n", "changes nothing"),
    ],
)
def test_a_malformed_diff_is_refused_with_the_reason(diff: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        apply_diff("a\n", diff)


def test_every_real_diff_gives_the_new_text() -> None:
    draw = random.Random(3)
    for _ in range(300):
        old = [draw.choice(["a", "b", "", "  c", "-- d", "++ e", "@@ f"]) for _ in range(draw.randint(0, 30))]
        new = [line for line in old if draw.random() > 0.2]
        for _ in range(draw.randint(0, 4)):
            new.insert(draw.randint(0, len(new)), draw.choice(["x", "", "--- y", "@@"]))
        if old == new:
            continue
        diff = "\n".join(difflib.unified_diff(old, new, "old", "new", lineterm="", n=draw.randint(0, 3)))
        before = "".join(f"{line}\n" for line in old)
        assert apply_diff(before, diff).text == "".join(f"{line}\n" for line in new)
