"""The hint for a mistyped name: one wording for every command, field and file."""

from __future__ import annotations

from hermes.core.names import counted, did_you_mean, nearest


def test_names_that_resemble_a_mistyped_one_are_named_nearest_first() -> None:
    names = ("terminal", "files", "web", "termination")
    assert nearest("terminl", names) == ["terminal", "termination"]
    assert did_you_mean(nearest("terminl", names), "never") == "did you mean terminal or termination?"


def test_a_name_that_resembles_none_gets_the_other_hint() -> None:
    assert did_you_mean(nearest("xyz", ("terminal",)), "one of: terminal") == "one of: terminal"
    assert did_you_mean([]) == ""


def test_one_thing_is_counted_in_the_singular() -> None:
    assert [counted(number, "trajectories") for number in (0, 1, 2)] == [
        "0 trajectories",
        "1 trajectory",
        "2 trajectories",
    ]
    assert counted(1, "rows") == "1 row"
