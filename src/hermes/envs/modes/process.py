"""The process mode: groups are written to a file, and an interrupted run can be resumed.

A journal beside the output of an unfinished run records which items are complete, and the length of the file
after each. The same command resumes the run: the torn end of the file is cut off, and complete items are
skipped, in the order in which get_next_item returns them. A complete run leaves no journal, and the next run
writes a new file, as does a run with other settings. A run that fails before its first group leaves no file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from hermes.disk.appendlog import AppendLog, read_lines
from hermes.envs.concurrency import gather_or_cancel
from hermes.envs.config import fingerprint
from hermes.envs.failures import FAILED, MAX_TRIES, NOTHING_WRITTEN, GroupFailure
from hermes.envs.groups import GroupWriter, encode_line, existing_outputs
from hermes.envs.modes.runner import EnvRunner
from hermes.errors import ConfigError

logger = logging.getLogger(__name__)
_FIRST_REPORT_S, _REPORT_EVERY_S = 2.0, 10.0

_MOST_WITHOUT_GROUPS = 256
"""Items in a row that may yield nothing before the run ends."""


async def run(runner: EnvRunner) -> None:
    """Writes total_steps groups, or as many as there are items for."""
    env, writer = runner.env, runner.writer
    if writer is None:
        raise ConfigError("process has no output file.", "Set --env.data_path_to_save_groups.")
    runner.process_mode = True
    journal: ProcessJournal | None = None
    try:
        await runner.prepare()
        runner.start_wandb()
        models = [getattr(getattr(server, "config", None), "model_name", "") for server in env.server.servers]
        journal = ProcessJournal.open(writer, fingerprint(env.config, type(env).__name__, *models))
        await ProcessMode(runner, journal).run()
        journal.finish()
    except BaseException:
        if journal is not None and not journal.done:
            journal.discard()
        raise
    finally:
        if journal is not None:
            journal.close()
        writer.close()
        await runner.finish()
    logger.info("%s, in %s", runner.tally.describe(), writer.path)
    if writer.path.exists():
        logger.info("to view them, open %s", generate_html(writer.path))


class ProcessMode:
    """Workers that take items from one counter and stop together."""

    def __init__(self, runner: EnvRunner, journal: ProcessJournal) -> None:
        self._runner = runner
        self._journal = journal
        self._ordinal = 0
        """Items taken from the environment so far."""
        self._missing = runner.config.total_steps - len(journal.done)
        """Items still to be written."""
        self._in_progress = 0
        self._item_lock = asyncio.Lock()
        self._delivery = ItemDelivery(runner)
        runner.curr_step = len(journal.done)

    async def run(self) -> None:
        workers = max(1, min(self._runner.max_workers, self._missing))
        reporter = asyncio.create_task(self._report(len(self._journal.done)))
        try:
            await gather_or_cancel([self._work() for _ in range(workers)])
        finally:
            reporter.cancel()

    async def _report(self, before: int) -> None:
        """Logs groups, rate and time left: after two seconds, then every ten."""
        started_s, pause_s = time.monotonic(), _FIRST_REPORT_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = _REPORT_EVERY_S
            step, total = self._runner.curr_step, self._runner.config.total_steps
            rate = (step - before) / (time.monotonic() - started_s)
            left = f", {rate:.2g}/s, about {(total - step) / rate:.0f} s left" if rate else ""
            logger.info("%d of %d groups written%s", step, total, left)

    async def _work(self) -> None:
        while (numbered_item := await self._take_item()) is not None:
            ordinal, item = numbered_item
            try:
                if lines := await self._run_item(item):
                    self._missing -= 1
                    self._runner.curr_step += 1
                    self._journal.write(ordinal, lines)
                    await self._runner.env.wandb_log()
                else:
                    self._runner.tally.stall.record_useless(NOTHING_WRITTEN)
            finally:
                self._in_progress -= 1
            self._runner.tally.check_stall(
                {FAILED: self._runner.config.max_failed_groups, NOTHING_WRITTEN: _MOST_WITHOUT_GROUPS},
                "The log has the details; the same command resumes the run.",
            )

    async def _take_item(self) -> tuple[int, Any] | None:
        """The next item that is not complete; None if enough are in progress, or there are no more."""
        async with self._item_lock:
            while self._in_progress < self._missing:
                item = await self._runner.next_item()
                if item is None:
                    logger.info("the environment has no more items")
                    self._missing = 0
                    return None
                self._ordinal += 1
                if self._ordinal not in self._journal.done:
                    self._in_progress += 1
                    return self._ordinal, item
            return None

    async def _run_item(self, item: Any) -> list[bytes]:
        """The accepted groups of an item as lines."""
        tally = self._runner.tally
        for tries in range(1, MAX_TRIES + 1):
            group = await self._runner.collect_group(item)
            if not isinstance(group, GroupFailure):
                lines, failure = await self._delivery.deliver(group, item)
                if failure is not None:
                    tally.drop(failure)
                return lines
            if not group.infrastructure or tries == MAX_TRIES:
                tally.drop(group)
                return []
            tally.retry(group)
        raise AssertionError("the last attempt returns")


class ItemDelivery:
    """Delivers one item at a time, so that the groups that are kept meanwhile are that item's.

    Delivery goes through the author's `handle_send_to_api`, which need not pass the item on. A group that is
    kept after its delivery has ended, by a task that the author did not await, counts as the next item's.
    """

    def __init__(self, runner: EnvRunner) -> None:
        self._runner = runner
        self._lock = asyncio.Lock()
        self._lines: list[bytes] = []
        runner.sink = self

    def write(self, group: Mapping[str, Any]) -> None:
        self._lines.append(encode_line(group))

    async def deliver(self, group: Any, item: Any) -> tuple[list[bytes], GroupFailure | None]:
        """The accepted groups of the item as lines, which the caller writes; the failure if there was one."""
        async with self._lock:
            failure = await self._runner.deliver(
                group, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False
            )
            lines, self._lines = self._lines, []
        return lines, failure


class ProcessJournal:
    """Records which items of a run are written."""

    def __init__(self, path: Path, writer: GroupWriter, done: set[int]) -> None:
        self.path, self.done = path, done
        self._writer = writer
        self._log = AppendLog(path, fsync=False)

    @classmethod
    def open(cls, writer: GroupWriter, fingerprint: str) -> ProcessJournal:
        """The journal of an unfinished run with the same settings, or a new one."""
        for output in reversed(existing_outputs(writer.path)):
            path = journal_path(output)
            header, done, at_bytes = read_journal(path)
            if header == fingerprint and output.stat().st_size >= at_bytes:
                writer.resume(output, at_bytes)
                logger.info("resuming %s: %d items are complete", output, len(done))
                return cls(path, writer, done)
        writer.open()
        path = journal_path(writer.path)
        path.unlink(missing_ok=True)
        journal = cls(path, writer, set())
        journal._log.append([json.dumps({"settings": fingerprint})])
        return journal

    def write(self, ordinal: int, lines: list[bytes]) -> None:
        """Appends the groups of an item. If the process is killed in between, resuming cuts them off."""
        self._writer.append(lines)
        self.done.add(ordinal)
        self._log.append([json.dumps({"item": ordinal, "bytes": self._writer.tell()})])

    def discard(self) -> None:
        """Removes the journal and the empty output of a run that ended before its first group."""
        self.path.unlink()
        self._writer.path.unlink()

    def finish(self) -> None:
        self._log.close()
        self.path.unlink()

    def close(self) -> None:
        self._log.close()


def journal_path(output: Path) -> Path:
    return output.with_suffix(".progress.jsonl")


def read_journal(path: Path) -> tuple[str | None, set[int], int]:
    """Its settings, the complete items, and the output's length after the last; a torn line is skipped."""
    header, done, at_bytes = None, set(), 0
    if not path.exists():
        return None, set(), 0
    for line in read_lines(path):
        entry = json.loads(line)
        if "settings" in entry:
            header = entry["settings"]
        else:
            done.add(entry["item"])
            at_bytes = entry["bytes"]
    return header, done, at_bytes


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; }}
details {{ border: 1px solid #ccc; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; font-variant-numeric: tabular-nums; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .8rem;
  font: 13px/1.45 ui-monospace, monospace; }}
.role {{ color: #666; font-size: 13px; }} .good {{ color: #17692c; }} .bad {{ color: #a11a1a; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #ddd; }}
details {{ border-color: #444; }}
.role {{ color: #999; }} .good {{ color: #6fce8a; }} .bad {{ color: #f08a8a; }} }}
</style></head><body><h1>{title}</h1>
"""


def generate_html(input_path: str | Path, output_path: str | Path | None = None) -> Path:
    """Writes the page, to <stem>.html beside the file by default. The file is read line by line."""
    source = Path(input_path)
    target = Path(output_path) if output_path else source.with_suffix(".html")
    part = target.with_name(f".{target.name}.part")
    part.touch(mode=0o600)
    part.chmod(0o600)
    with part.open("w", encoding="utf-8") as page:
        page.write(_HEAD.format(title=escape(source.name)))
        for number, group in enumerate(_groups(source), 1):
            page.write(group_html(group, number))
        page.write("</body></html>\n")
    part.replace(target)
    return target


def _groups(source: Path) -> Iterator[dict[str, Any]]:
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def group_html(group: dict[str, Any], number: int) -> str:
    scores = group.get("scores") or []
    conversations = group.get("messages") or []
    listing = ", ".join(map(_score_html, scores))
    parts = [f"<details><summary>Group {number}: {len(scores)} answers, scores {listing}</summary>\n"]
    for index, conversation in enumerate(conversations):
        score = _score_html(scores[index]) if index < len(scores) else "none"
        parts.append(f"<details><summary>Answer {index + 1}, score {score}</summary>\n")
        parts += [_message_html(message) for message in _turns(conversation)]
        parts.append("</details>\n")
    return "".join([*parts, "</details>\n"])


def _turns(conversation: Any) -> list[dict[str, Any]]:
    if isinstance(conversation, str):
        return [{"role": "text", "content": conversation}]
    return [
        turn if isinstance(turn, dict) else {"role": "text", "content": turn} for turn in conversation or ()
    ]


def _message_html(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
    if calls := message.get("tool_calls"):
        content_text = "" if content is None else f"{text}\n"
        text = content_text + json.dumps(calls, indent=1, ensure_ascii=False)
    return f'<div class="role">{escape(str(message.get("role", "")))}</div><pre>{escape(text)}</pre>\n'


def _score_html(value: Any) -> str:
    kind = "" if not isinstance(value, int | float) else "good" if value > 0 else "bad"
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return f'<span class="{kind}">{escape(text)}</span>'
