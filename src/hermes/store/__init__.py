"""The only package that opens SQLite: append with `Writer`, read with `Reader`."""

from hermes.store.query import Filter
from hermes.store.reader import Reader
from hermes.store.record import Record, RefusedError, Seen
from hermes.store.summary import SearchHit, Summary
from hermes.store.writer import Writer

__all__ = ["Filter", "Reader", "Record", "RefusedError", "SearchHit", "Seen", "Summary", "Writer"]
