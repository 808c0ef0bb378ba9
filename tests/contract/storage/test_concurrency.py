"""Many who read and write at once."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from storage import AttemptResult, Lease, Repository, StoredStudy
from tests.contract.storage.making import at_once, block, rows

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from storage import Database, Lease, Repository
url, cluster, epoch, token, study, who = sys.argv[1:]
lease = Lease(cluster, int(epoch), token=token)
repository = Repository(Database(url))
print("ready", flush=True)
sys.stdin.readline()
for number in range(15):
    repository.messages.say(lease, int(study), f"{who} {number}")
    repository.attempts.begin(lease, int(study), 0, {"who": who})
"""


@contextlib.contextmanager
def writing(
    url: str, lease: Lease, study: StoredStudy, who: int
) -> Iterator[subprocess.Popen[str]]:
    """A process that writes once it has read a line; it is killed at the end if it is still there."""
    given = map(str, (lease.epoch, lease.token, study.id, who))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, url, lease.key, *given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class TestConcurrency:
    @pytest.mark.long
    def test_threads_that_write_at_once_lose_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        def write(who: int) -> None:
            for number in range(12):
                repository.messages.say(lease, study.id, f"{who} {number}")
                repository.attempts.begin(lease, study.id, number % 3, {"who": who})

        at_once(write)
        found = [message.text for message in repository.messages.of(study.id)]
        assert sorted(found) == sorted(f"{w} {n}" for w in range(8) for n in range(12))
        for who in range(8):  # each in the order in which it was said
            said = [line for line in found if line.startswith(f"{who} ")]
            assert said == [f"{who} {number}" for number in range(12)]
        attempts = repository.attempts.of(study.id)
        for trial in range(3):
            numbers = [a.attempt for a in attempts if a.trial == trial]
            assert numbers == list(range(1, 33))

    @pytest.mark.long
    def test_processes_that_write_at_once_lose_nothing(
        self, repository: Repository, lease: Lease, study: StoredStudy, url: str
    ) -> None:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(writing(url, lease, study, who)) for who in range(4)]
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            for writer in writers:
                writer.communicate(timeout=180)
        assert [writer.returncode for writer in writers] == [0] * 4
        found = [message.text for message in repository.messages.of(study.id)]
        assert sorted(found) == sorted(f"{w} {n}" for w in range(4) for n in range(15))
        numbers = [attempt.attempt for attempt in repository.attempts.of(study.id)]
        assert numbers == list(range(1, 61))

    @pytest.mark.long
    @pytest.mark.fault(10)
    def test_readers_see_whole_results_while_they_are_written(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        blocks = [block(index) for index in range(5)]
        done = threading.Event()

        def read() -> int:
            looks = 0
            while not done.is_set() or looks == 0:
                for attempt in repository.attempts.of(study.id)[-3:]:
                    if not attempt.running:
                        assert attempt.result.throughput == 2.0
                        assert repository.attempts.blocks(attempt.id) == blocks
                looks += 1
            return looks

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for trial in range(40):
                    attempt = repository.attempts.begin(lease, study.id, trial, {})
                    result = AttemptResult("COMPLETE", throughput=2.0)
                    repository.attempts.finish(lease, attempt.id, result, blocks)
            finally:
                done.set()
            assert all(reader.result(30) for reader in readers)

    def test_a_reader_that_takes_its_time_stops_nobody(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        count = text("select count(*) from autotune_message")
        with repository.database.engine.connect() as reader:
            assert reader.scalar(count) == 0
            repository.messages.say(lease, study.id, "meanwhile")  # raises if it waits in vain
        with repository.database.engine.connect() as reader:
            assert reader.scalar(count) == 1

    def test_a_writer_waits_for_another_that_takes_its_time(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            with repository.database.writing() as slow:
                slow.execute(text("update autotune_lease set host = 'slow'"))
                waiting = pool.submit(repository.messages.say, lease, study.id, "at last")
                time.sleep(1.0)
                assert not waiting.done()
            waiting.result(30)
        assert [message.text for message in repository.messages.of(study.id)] == ["at last"]

    def test_a_failed_transaction_leaves_nothing_and_blocks_nobody(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        before = rows(repository)
        with pytest.raises(ZeroDivisionError), repository.database.writing() as connection:
            connection.execute(text("delete from autotune_study"))
            _ = 1 / 0
        assert rows(repository) == before
        repository.messages.say(lease, study.id, "goes on")
