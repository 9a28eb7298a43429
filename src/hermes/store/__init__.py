"""The only package that opens SQLite: append with `Writer`, read with `Reader`."""

from hermes.store.query import Filter
from hermes.store.reader import Reader
from hermes.store.record import ModelInput, Record, RefusedError
from hermes.store.summary import SearchHit, Summary
from hermes.store.writer import Writer

__all__ = ["Filter", "ModelInput", "Reader", "Record", "RefusedError", "SearchHit", "Summary", "Writer"]
