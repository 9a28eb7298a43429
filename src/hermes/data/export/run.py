"""Writing trajectories as training data: whole or not at all, the same bytes every time.

Rows stream from the store through selection, redaction and a format into their files, which appear once
everything is on disk; the manifest follows, with the hashes of the files. What is
left out is counted with its reason and listed beside the data, never dropped silently.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hermes.core import JSONObject
from hermes.data.example import Example, UnfitError, all_thinking, load
from hermes.data.export import manifest
from hermes.data.export.select import EVERYTHING, LeftOut, TrajectorySelection, select
from hermes.data.export.sink import RowSink, WrittenFile, check_target, encode, open_sink
from hermes.data.export.split import NO_GROUPS, Side, TaskGroups, side_of, store_groups
from hermes.data.formats import sharegpt
from hermes.data.formats.base import Format, Thinking, ToolCallStyle, Unit
from hermes.data.lines import encode_row
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.preference.rows import RowSource
from hermes.data.redaction.redact import RedactionLevel, Scrubber
from hermes.disk.drafts import sweep
from hermes.disk.files import replacing
from hermes.safety.redact import Redactor
from hermes.store import Reader

_NO_SECRETS = Redactor({})


@dataclass(frozen=True)
class ExportPlan:
    """One export."""

    form: Format
    output: Path
    selection: TrajectorySelection = EVERYTHING
    calls: ToolCallStyle = ToolCallStyle.STRUCTURED
    level: RedactionLevel = RedactionLevel.SHAPES
    eval_share: float | None = None
    """None: one file. Else two, with .train and .eval before the ending."""
    origins: Sequence[PreferenceSource] = tuple(PreferenceSource)
    """For formats of pairs: the kinds of evidence that count, in order of precedence."""
    min_margin: float = 0.0
    thinking: Thinking = Thinking.SEEN

    def prepare(self, example: Example, scrubber: Scrubber) -> Example:
        """The example as a format is given it: without secrets, and with the wanted thinking."""
        clean = scrubber.example(example)
        if self.thinking is Thinking.SEEN:
            return clean
        return replace(clean, unseen=all_thinking(clean) if self.thinking is Thinking.NONE else frozenset())


@dataclass(frozen=True)
class ExportReport:
    rows: int
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → number of trajectories (or pairs) that matched the filter but were not written."""
    files: tuple[Path, ...] = ()
    """Data files, then the manifest, then the list of what was left out, if any was."""
    facts: JSONObject = field(default_factory=dict)
    """As in the manifest."""
    groups: TaskGroups | None = None
    """By which the rows were split; None: they were not."""


class _Row(NamedTuple):
    row: JSONObject
    side: Side


def export(reader: Reader, plan: ExportPlan, redactor: Redactor = _NO_SECRETS) -> ExportReport:
    """Writes the files of the plan and their manifest. `redactor`: the secrets to look for."""
    check_target(plan.output, plan.form)
    left_out = LeftOut()
    scrubber = Scrubber(redactor, plan.level)
    groups = NO_GROUPS if plan.eval_share is None else store_groups(reader)
    with ExitStack() as stack:
        sinks = {side: stack.enter_context(open_sink(path, plan.form)) for side, path in _targets(plan)}
        for row, side in _rows(reader, plan, left_out, scrubber, groups):
            (sinks.get(side) or sinks[Side.TRAIN]).add(encode(row, plan.form))
    written = [(side, _written_file(sink)) for side, sink in sinks.items()]
    facts = _facts(reader, plan, written, left_out, scrubber, groups)
    paths = [file.path for _, file in written]
    paths += _write_beside(plan.output, facts, left_out)
    rows = sum(file.rows for _, file in written)
    split_by = None if plan.eval_share is None else groups
    return ExportReport(rows, left_out.reasons, tuple(paths), facts, split_by)


def preview(
    reader: Reader, plan: ExportPlan, limit: int, redactor: Redactor = _NO_SECRETS
) -> tuple[list[JSONObject], Counter[str]]:
    """The first rows of an export, and what was left out on the way to them; nothing is written."""
    left_out, scrubber = LeftOut(), Scrubber(redactor, plan.level)
    rows = [row for row, _ in islice(_rows(reader, plan, left_out, scrubber, NO_GROUPS), limit)]
    return rows, left_out.reasons


def export_conversation(reader: Reader, trajectory_id: str, output: Path) -> None:
    """One trajectory as one row, finished or not, because it was requested by its id."""
    example = replace(load(reader, reader.get(trajectory_id)), unseen=frozenset())
    (row,) = sharegpt.FORMAT.write(example, ToolCallStyle.STRUCTURED)
    with replacing(output) as file:
        file.write(encode_row(row).line + "\n")


def _rows(
    reader: Reader, plan: ExportPlan, left_out: LeftOut, scrubber: Scrubber, groups: TaskGroups
) -> Iterator[_Row]:
    make = _pair_rows if plan.form.unit is Unit.PAIR else _example_rows
    return make(reader, plan, left_out, scrubber, groups)


def _example_rows(
    reader: Reader, plan: ExportPlan, left_out: LeftOut, scrubber: Scrubber, groups: TaskGroups
) -> Iterator[_Row]:
    whole = plan.form.whole
    for example in select(reader, plan.selection, left_out, whole=whole):
        try:
            clean = example if whole else plan.prepare(example, scrubber)
            rows = list(plan.form.write(clean, plan.calls))
        except UnfitError as error:
            left_out.add(example.id, plan.form.name, str(error))
            continue
        side = side_of(groups.key(example.task), plan.eval_share or 0.0)
        yield from (_Row(scrubber.record(row) if whole else row, side) for row in rows)


def _pair_rows(
    reader: Reader, plan: ExportPlan, left_out: LeftOut, scrubber: Scrubber, groups: TaskGroups
) -> Iterator[_Row]:
    """Reads the verdicts on all trajectories first, then the trajectories of each pair."""
    source = RowSource(
        reader,
        plan.selection,
        plan.origins,
        plan.min_margin,
        as_seen=False,
        clean=lambda example: plan.prepare(example, scrubber),
        left_out=left_out,
        groups=groups,
        rule=plan.form.name,
    )
    for pair in source.pairs():
        side = side_of(pair.task, plan.eval_share or 0.0)
        try:
            rows = list(plan.form.write(pair, plan.calls))
        except UnfitError as error:
            left_out.add(f"{pair.chosen_id} > {pair.rejected_id}", plan.form.name, str(error))
            continue
        yield from (_Row(row, side) for row in rows)


def _targets(plan: ExportPlan) -> list[tuple[Side, Path]]:
    if plan.eval_share is None:
        return [(Side.TRAIN, plan.output)]
    name = manifest.stem(plan.output)
    return [(side, plan.output.with_name(f"{name}.{side.value}{plan.output.suffix}")) for side in Side]


def _written_file(sink: RowSink) -> WrittenFile:
    assert sink.written is not None
    return sink.written


def _facts(
    reader: Reader,
    plan: ExportPlan,
    written: Sequence[tuple[Side, WrittenFile]],
    left_out: LeftOut,
    scrubber: Scrubber,
    groups: TaskGroups,
) -> JSONObject:
    form, selection, report = plan.form, plan.selection, scrubber.report
    style = {"calls": plan.calls.value, "thinking": plan.thinking.value}
    facts: JSONObject = {
        "format": {"name": form.name, "version": form.version, **style},
        "rows": sum(file.rows for _, file in written),
        "files": [_file_facts(plan, side, file) for side, file in written],
        "filters": {
            "stages": manifest.funnel(reader, selection.filters),
            "where": [condition.text for condition in selection.where],
            "rules": [{"rule": rule.name, **rule.settings()} for rule in selection.rules],
            "only_completed": selection.only_completed,
            "compressed": selection.compressed,
        },
        "left_out": dict(sorted(left_out.reasons.items())),
        "redaction": {
            "level": plan.level.value,
            "trajectories": report.examples,
            "hits": dict(sorted(report.hits.items())),
        },
        "keeps": list(form.keeps),
        "loses": list(form.loses),
    }
    if plan.eval_share is not None:
        facts["split"] = {"eval_share": plan.eval_share, "by": "hash of the task's group", **groups.facts()}
    if form.unit is Unit.PAIR:
        facts["pairs"] = {"origins": [o.value for o in plan.origins], "min_margin": plan.min_margin}
    return facts


def _file_facts(plan: ExportPlan, side: Side, file: WrittenFile) -> JSONObject:
    split = {} if plan.eval_share is None else {"split": side.value}
    return {"name": file.path.name, "rows": file.rows, "bytes": file.bytes, "sha256": file.sha256, **split}


def _write_beside(output: Path, facts: JSONObject, left_out: LeftOut) -> list[Path]:
    removed = manifest.removed_path_for(output)
    paths = [manifest.path_for(output)]
    for beside in (removed, *paths):
        sweep(beside)
    if left_out.removals:
        encode_line = json.JSONEncoder(ensure_ascii=False).encode
        with replacing(removed) as file:
            file.writelines(f"{encode_line(removal.to_json())}\n" for removal in left_out.removals)
        paths.append(removed)
    else:
        removed.unlink(missing_ok=True)
    manifest.write(paths[0], facts)
    return paths
