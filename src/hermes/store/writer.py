"""The only way into the database: append a trajectory's parts, each acknowledged once it is on disk.

Promises. A future that resolved means the row survives kill -9 and power loss. Rows are never
updated: a trajectory is a header, then steps, then one outcome, and verdicts are appended beside
it; only facts of the memory can be removed. What is written has been through the redactor. A
trajectory whose recording process died is given the outcome 'cut' by the next writer that opens the
database. A damaged file is refused before anything is written to it.

One thread owns the connection and commits whatever is queued in one transaction (group commit), so
many concurrent rollouts share one disk flush. An operation that fails (an unknown trajectory, say)
fails alone; a transaction that fails (a full disk) fails everything in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from hermes.core import Fact, Header, JSONObject, Message, Outcome, Rating, Reward, Step, clock
from hermes.errors import StoreError
from hermes.store import facts, metrics, migrations, sqlite
from hermes.store.group_commit import ClosedError, GroupCommit
from hermes.store.rating import queues
from hermes.store.rating.queues import ItemRow, TakenItem, TakeRequest
from hermes.store.record import Record, insert
from hermes.store.rows import Rows

Redact = Callable[[str], str]
Operation = Callable[[Rows], None]


def no_redaction(text: str) -> str:
    return text


class Writer:
    """Appends to one database. Safe to call from any thread; use as a context manager."""

    def __init__(self, path: Path, redact: Redact = no_redaction) -> None:
        self._path = path
        with sqlite.translated_errors(path, "write to"):
            sqlite.make_folder(path)
            with sqlite.write_lock(path):
                if path.exists():
                    sqlite.refuse_damaged(path)
                else:
                    _create(path)
                self._connection = sqlite.connect_writer(path)
                migrations.migrate(self._connection, path)
                self._rows = Rows(self._connection, redact)
                self._rows.mark_cut(clock.now_ms())
        self._group: GroupCommit[Operation] = GroupCommit("hermes-store", self._commit)

    def begin(self, header: Header) -> Future[None]:
        """Opens a trajectory, owned by this process."""
        return self._submit(lambda rows: rows.insert_trajectory(header))

    def append(
        self,
        trajectory_id: str,
        step: Step,
        *,
        context: Sequence[Message] | None = None,
        tools: Sequence[JSONObject] = (),
    ) -> Future[None]:
        """Adds one step; `context` and `tools` are exactly what a MODEL step's call saw."""
        return self._submit(lambda rows: rows.insert_step(trajectory_id, step, context, tools))

    def finish(self, trajectory_id: str, outcome: Outcome) -> Future[None]:
        """Ends a trajectory. Ending it twice is an error: the first outcome stands."""
        return self._submit(lambda rows: rows.insert_outcome(trajectory_id, outcome, clock.now_ms()))

    def restore(self, record: Record) -> Future[None]:
        """A whole record from another store, all of it or nothing; StoreError if its id is taken."""
        return self._submit(lambda rows: insert(rows, record, clock.now_ms()))

    def add_reward(self, reward: Reward) -> Future[None]:
        return self._submit(lambda rows: rows.insert_reward(reward))

    def add_rating(self, rating: Rating) -> Future[None]:
        """Appends the event, once however often it is sent; UsageError if it names what does not exist."""
        return self._submit(lambda rows: rows.insert_rating(rating, checked=True))

    def create_queue(self, name: str, settings: str, items: Sequence[ItemRow]) -> int:
        """Makes the queue if it is new and appends the items that it lacks; the number of them."""
        now_ms, added = clock.now_ms(), []

        def operation(rows: Rows) -> None:
            queues.create(rows.connection, name, settings, now_ms)
            added.append(queues.add_items(rows.connection, name, items))

        self._submit(operation).result()
        return added[-1]  # of the attempt that was committed

    def delete_queue(self, name: str) -> None:
        """Deletes a queue; its ratings stay. UsageError if there is none of this name."""
        self._submit(lambda rows: queues.delete(rows.connection, name)).result()

    def take_item(self, request: TakeRequest) -> TakenItem | None:
        """Leases the next item of a queue to a rater; no other rater gets it until the lease ends."""
        taken: list[TakenItem | None] = []
        self._submit(lambda rows: taken.append(queues.take(rows.connection, request))).result()
        return taken[-1]

    def release_item(self, queue: str, item: str, rater: str, *, skip: bool = False) -> Future[None]:
        """Ends the rater's lease. `skip`: they do not get the item again."""
        at_ms = clock.now_ms()
        if skip:
            return self._submit(lambda rows: queues.skip(rows.connection, queue, item, rater, at_ms))
        return self._submit(lambda rows: queues.release(rows.connection, queue, item, rater))

    def add_metrics(self, run_id: str, step: int, values: Mapping[str, float]) -> Future[None]:
        """The numbers of one step of a training run; what the step already has stays as it is."""
        at_ms = clock.now_ms()
        return self._submit(lambda rows: metrics.insert(rows.connection, run_id, step, values, at_ms))

    def rewind_metrics(self, run_id: str, step: int) -> Future[None]:
        """Deletes the metrics of later steps: the run was resumed from this one."""
        return self._submit(lambda rows: metrics.delete_after(rows.connection, run_id, step))

    def add_fact(self, fact: Fact, max_facts: int) -> Future[None]:
        """Remembers a fact; UsageError if it is there already, or if there are `max_facts`."""
        return self._submit(lambda rows: rows.insert_fact(fact, max_facts))

    def remove_fact(self, fact_id: str) -> Future[None]:
        return self._submit(lambda rows: facts.delete(rows.connection, fact_id))

    def close(self) -> None:
        """Commits what is queued, then closes. Idempotent."""
        if self._group.close():
            with sqlite.write_lock(self._path):  # closing the last connection checkpoints
                self._connection.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _submit(self, operation: Operation) -> Future[None]:
        try:
            return self._group.submit(operation)
        except ClosedError:
            raise StoreError(f"the store {self._path} is closed") from None

    def _commit(self, batch: list[tuple[Operation, Future[None]]]) -> None:
        """Runs the batch in one transaction; a failed operation is undone and reported by itself.

        All run without savepoints first, at each of which SQLite would write the text index; if one fails,
        everything is rolled back and run again with them.
        """
        operations = [operation for operation, _ in batch]
        try:
            with sqlite.write_lock(self._path):
                try:
                    failures = self._run(operations)
                except Exception:  # noqa: BLE001 - the second run reports it
                    self._roll_back()
                    failures = self._run(operations, savepoints=True)
        except sqlite.errors() as error:
            self._roll_back()
            for _, future in batch:
                future.set_exception(sqlite.store_error(self._path, error, "write to"))
            return
        for position, (_, future) in enumerate(batch):
            if position in failures:
                future.set_exception(failures[position])
            else:
                future.set_result(None)

    def _run(self, operations: Sequence[Operation], *, savepoints: bool = False) -> dict[int, Exception]:
        """All of them in one transaction; the failures by position."""
        failures: dict[int, Exception] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        self._rows.begin_transaction()
        for position, operation in enumerate(operations):
            if not savepoints:
                operation(self._rows)
            elif (failure := self._attempt(operation)) is not None:
                failures[position] = failure
        self._connection.execute("COMMIT")
        return failures

    def _attempt(self, operation: Operation) -> Exception | None:
        self._connection.execute("SAVEPOINT operation")
        try:
            operation(self._rows)
        except Exception as error:
            if not self._connection.in_transaction:
                raise  # SQLite has rolled everything back: the disk is full or broken
            self._connection.execute("ROLLBACK TO operation")
            self._rows.forget()
            return error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("RELEASE operation")
        return None

    def _roll_back(self) -> None:
        self._rows.forget()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _create(path: Path) -> None:
    """Under its name a store has a schema from the start, so that an empty file is known to be damaged."""
    draft = path.with_name(f"{path.name}.new")
    sqlite.remove(draft)
    sqlite.create_private(draft)
    connection = sqlite.connect_writer(draft)
    try:
        migrations.migrate(connection, None)
    finally:
        connection.close()
    draft.rename(path)
