"""The process mode: groups written to a file, several in the making at once, and carried on where it stopped.

While a run is unfinished a journal lies beside its output: which items are done, and how long the file was
after each. The same command then goes on from there: the torn end of the file is cut off, and the items that
are done are skipped, in the order in which get_next_item gives them. A finished run leaves no journal, and
the next one writes a new file. If settings that shape the groups have changed, it starts anew as well. A run
that fails before its first group leaves no file.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hermes.envs.config import fingerprint
from hermes.envs.failures import MAX_TRIES, EnvironmentRunError, GroupFailure
from hermes.envs.groups import GroupWriter, existing
from hermes.envs.modes import metrics
from hermes.envs.modes.group_worker import all_or_error, finish, hand_over, make_group, next_item, prepare
from hermes.envs.modes.viewer import generate_html
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_HOPELESS_IN_A_ROW = 16
"""Groups that failed one after another, after which the run ends."""
_FRUITLESS_IN_A_ROW = 256
"""The same for groups that were made, and left out for what the policy did."""


async def run(env: BaseEnv) -> None:
    """Writes n_groups_to_process groups, or as many as there are items for."""
    if env.jsonl_writer is None:
        raise ConfigError("process has nowhere to write.", "Set --env.data_path_to_save_groups.")
    env.process_mode = True
    env.config.group_size = env.group_size_to_process
    journal: ProcessJournal | None = None
    try:
        await prepare(env)
        metrics.start_wandb(env)
        models = [getattr(getattr(server, "config", None), "model_name", "") for server in env.server.servers]
        journal = ProcessJournal.open(env.jsonl_writer, fingerprint(env.config, type(env).__name__, *models))
        await _ProcessRun(env, journal).all()
        journal.finish()
    except BaseException:
        if journal is not None and not journal.done:
            journal.discard()
        raise
    finally:
        if journal is not None:
            journal.close()
        env.jsonl_writer.close()
        await finish(env)
    logger.info("%s, in %s", env.tally.describe(), env.jsonl_writer.path)
    if env.jsonl_writer.path.exists():
        logger.info("to look at them: %s", generate_html(env.jsonl_writer.path))


class _ProcessRun:
    """Workers that share a counter of items and stop together."""

    def __init__(self, env: BaseEnv, journal: ProcessJournal) -> None:
        self._env = env
        self._journal = journal
        self._taken = 0
        self._owed = env.n_groups_to_process - len(journal.done)
        self._in_the_making = 0
        self._fruitless = 0
        self._taking = asyncio.Lock()
        env.curr_step = len(journal.done)

    async def all(self) -> None:
        workers = max(1, min(self._env.max_num_workers, self._owed))
        await all_or_error([self._work() for _ in range(workers)])

    async def _work(self) -> None:
        while (taken := await self._take()) is not None:
            ordinal, item = taken
            try:
                if (lines := await self._make(item)) is not None:
                    self._owed -= 1
                    self._fruitless = 0
                    self._env.curr_step += 1
                    self._journal.write(ordinal, lines)
                    await self._env.wandb_log()
                else:
                    self._fruitless += 1
            finally:
                self._in_the_making -= 1
            self._raise_if_hopeless()

    async def _take(self) -> tuple[int, Any] | None:
        """The next item that is not done; None if enough are in the making, or there are no more."""
        async with self._taking:
            while self._in_the_making < self._owed:
                item = await next_item(self._env)
                if item is None:
                    logger.info("the environment has no more items")
                    self._owed = 0
                    return None
                self._taken += 1
                if self._taken not in self._journal.done:
                    self._in_the_making += 1
                    return self._taken, item
            return None

    async def _make(self, item: Any) -> list[bytes] | None:
        """The groups of an item as lines; None if there are none."""
        env = self._env
        assert env.jsonl_writer is not None, "checked at the start"
        for tries in range(MAX_TRIES):
            made = await make_group(env, item)
            if not isinstance(made, GroupFailure):
                with env.jsonl_writer.hold() as lines:
                    failure = await hand_over(
                        env, made, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False
                    )
                if failure:
                    env.tally.drop(failure)
                return lines or None
            if not made.infrastructure or tries + 1 == MAX_TRIES:
                env.tally.drop(made)
                return None
            env.tally.retry(made)
        raise AssertionError("the last try returns")

    def _raise_if_hopeless(self) -> None:
        tally = self._env.tally
        if tally.in_a_row >= _HOPELESS_IN_A_ROW or self._fruitless >= _FRUITLESS_IN_A_ROW:
            assert tally.last is not None, "something was given up"
            raise EnvironmentRunError(
                f"{max(tally.in_a_row, self._fruitless)} groups in a row came to nothing "
                f"({tally.last.reason}): {tally.last.text}",
                "The log has the details; the same command carries on.",
            )


class ProcessJournal:
    """Which items of a run are written."""

    def __init__(self, path: Path, writer: GroupWriter, done: set[int], file: TextIO) -> None:
        self.path, self.done = path, done
        self._writer, self._file = writer, file

    @classmethod
    def open(cls, writer: GroupWriter, fingerprint: str) -> ProcessJournal:
        """The journal of an unfinished run of the same settings, or a new one."""
        for output in reversed(existing(writer.path)):
            path = journal_path(output)
            header, done, at_bytes = read_journal(path)
            if header == fingerprint and output.stat().st_size >= at_bytes:
                writer.carry_on(output, at_bytes)
                logger.info("carrying on with %s: %d items are done", output, len(done))
                return cls(path, writer, done, path.open("a", encoding="utf-8"))
        writer.open()
        path = journal_path(writer.path)
        file = path.open("w", encoding="utf-8")
        file.write(json.dumps({"settings": fingerprint}) + "\n")
        file.flush()
        return cls(path, writer, set(), file)

    def write(self, ordinal: int, lines: list[bytes]) -> None:
        """The groups of an item; a kill in between leaves them out of the file's counted part."""
        self._writer.append(lines)
        self.done.add(ordinal)
        self._file.write(json.dumps({"item": ordinal, "bytes": self._writer.tell()}) + "\n")
        self._file.flush()

    def discard(self) -> None:
        """Removes the journal and the empty output of a run that ended before its first group."""
        self.path.unlink()
        self._writer.path.unlink()

    def finish(self) -> None:
        self._file.close()
        self.path.unlink()

    def close(self) -> None:
        self._file.close()


def journal_path(output: Path) -> Path:
    return output.with_suffix(".progress.jsonl")


def read_journal(path: Path) -> tuple[str | None, set[int], int]:
    """Its settings, the items done, and the length of the output after the last; a torn line ends it."""
    header, done, at_bytes = None, set(), 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None, set(), 0
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "settings" in entry:
            header = entry["settings"]
        else:
            done.add(entry["item"])
            at_bytes = entry["bytes"]
    return header, done, at_bytes
