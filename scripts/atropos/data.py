"""Rows and files in the shape of those that environment files read, written for the comparison.

The rows under `*` have the columns that most files ask for, so that a file whose data set is not named can
still run.
"""

from __future__ import annotations

import evaluation_rows
import training_rows
from evaluation_rows import Row
from training_rows import local_files as local_files
from training_rows import usual


def tables() -> dict[str, list[Row]]:
    """Rows by the data set's name; `name#split` where its splits differ."""
    rows = {"*": [usual(index) for index in range(60)]}
    return rows | evaluation_rows.tables() | training_rows.tables()
