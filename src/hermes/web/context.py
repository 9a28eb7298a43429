"""The handlers of the web app share this: the configuration, readers of the store, one writer.

A reader is used by one thread at a time and returned; a store that did not exist when a reader was opened is
opened again. The writer is opened when it is first needed, so that reading never takes the write lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.load import load
from hermes.config.paths import config_path, db_path, env_path
from hermes.store import sqlite
from hermes.store.browse.reader import BrowseReader
from hermes.training.monitor.incidents.alerts import AlertRule, parse_rule
from hermes.training.monitor.series import RunSeries
from hermes.training.monitor.sinks import METRICS
from hermes.web.caches import KeyedCache, RunCounts, TimedValue, modified
from hermes.web.jobs import Jobs
from hermes.web.live import LiveStreams
from hermes.web.rating.leases import ItemLeases
from hermes.web.rating.yields import YieldCounter
from hermes.web.runs.curves import MetricsCache

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.envs.cli.discover import Discovery
    from hermes.skills.catalogue import Catalogue
    from hermes.store import Writer
    from hermes.web.runs.listing import RunRow

_IDLE_READERS = 8
RUNS_PERIOD_S = 1.0
"""How old the list of runs may be that all open pages of it share."""


class WebContext:
    """Safe to use from any thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._idle: list[BrowseReader] = []
        self._idle_at_file = False
        self._writer: Writer | None = None
        self.metrics = MetricsCache()
        self.jobs = Jobs(config.home)
        self.run_counts = RunCounts()
        self._environments: KeyedCache[Discovery] = KeyedCache()
        self.skills: KeyedCache[Catalogue] = KeyedCache()
        self._rules: KeyedCache[tuple[AlertRule, ...]] = KeyedCache()
        self.leases = ItemLeases()
        self.yields = YieldCounter()
        self.streams = LiveStreams()
        self.live_runs: TimedValue[list[RunRow]] = TimedValue(RUNS_PERIOD_S)

    @property
    def home(self) -> Path:
        return self._config.home

    def config(self) -> Config:
        """As it is on disk now: a person may have edited it since the server started."""
        return load(environ={**self._config.environ, "HERMES_HOME": str(self.home)})

    def alert_rules(self) -> tuple[AlertRule, ...]:
        """Those of the settings as they are on disk now."""
        key = modified((config_path(self.home), env_path(self.home)))
        return self._rules.get(key, lambda: tuple(map(parse_rule, self.config().settings.rl.alerts)))

    def environments(self) -> Discovery:
        """The listed environments; their files are parsed again only when one changes."""
        from hermes.envs.cli.discover import environment_folders
        from hermes.rl.config.resolve import list_environments

        config = self.config()
        extra = [Path(folder).expanduser() for folder in config.settings.rl.environments]
        folders = environment_folders(self.home, extra)
        files = [
            path for folder in folders for path in ([folder] if folder.is_file() else folder.glob("**/*.py"))
        ]
        return self._environments.get(modified(files), lambda: list_environments(config))

    @contextmanager
    def series(self, folder: Path) -> Iterator[RunSeries]:
        """The metrics of the run in that folder."""
        with self.metrics.reading(folder / METRICS, self.alert_rules()) as series:
            yield series

    @contextmanager
    def reader(self) -> Iterator[BrowseReader]:
        path = db_path(self.home)
        at_file = path.exists()
        with self._lock:
            if at_file != self._idle_at_file:
                stale, self._idle, self._idle_at_file = self._idle, [], at_file
            else:
                stale = []
            reader = self._idle.pop() if self._idle else None
        for former in stale:
            former.close()
            self.run_counts.clear()
        reader = reader or BrowseReader(path)
        try:
            yield reader
        except (sqlite.dbapi().Error, UnicodeDecodeError) as error:
            reader.close()
            raise sqlite.store_error(path, error, "read") from error
        except BaseException:
            reader.close()
            raise
        with self._lock:
            if len(self._idle) < _IDLE_READERS and self._idle_at_file == at_file:
                self._idle.append(reader)
                return
        reader.close()

    def writer(self) -> Writer:
        """The one writer of this process; what it writes has been through the redactor."""
        from hermes.agent.build import open_writer

        with self._lock:
            if self._writer is None:
                self._writer = open_writer(self._config)
            return self._writer

    def close(self) -> None:
        self.jobs.close()
        with self._lock:
            for reader in self._idle:
                reader.close()
            self._idle.clear()
            if self._writer is not None:
                self._writer.close()
                self._writer = None
