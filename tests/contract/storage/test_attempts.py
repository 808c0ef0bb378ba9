"""Attempts: counted, recorded exactly once, with all that a run may come up with."""

import math

import pytest
from sqlalchemy.exc import IntegrityError

from autotune.errors import StaleLease
from search_spaces import defaults
from storage import AttemptFeed, AttemptResult, Lease, Purpose, Repository, RunDigest, StoredStudy
from tests.contract.storage.making import at_once, block, claim, database_time, rows, submit


class TestAttempts:
    def test_a_begun_attempt_is_running(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        knobs = {"micro_batch": 8, "precision": "bf16", "compile": True, "x": 0.1, "none": None}
        before = database_time(repository)
        attempt = repository.attempts.begin(lease, study.id, 3, knobs)
        assert [attempt] == repository.attempts.of(study.id)
        assert (attempt.trial, attempt.purpose, attempt.round, attempt.attempt) == (
            3,
            "search",
            0,
            1,
        )
        # Knobs that are newer than the record were at their defaults.
        assert attempt.knobs == {**defaults(), **knobs}
        assert all(type(attempt.knobs[name]) is type(value) for name, value in knobs.items())
        assert attempt.running
        assert attempt.ended is None
        assert before <= attempt.started <= database_time(repository)
        assert repository.attempts.blocks(attempt.id) == []

    def test_attempts_are_counted_per_study_trial_and_round(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")

        def begin(study_id: int, trial: int, round_: int) -> int:
            purpose = Purpose.CONFIRM if round_ else Purpose.SEARCH
            begun = repository.attempts.begin(lease, study_id, trial, {}, purpose, round_=round_)
            return begun.attempt

        assert [begin(study.id, 0, 0) for _ in range(3)] == [1, 2, 3]
        assert begin(study.id, 1, 0) == 1
        assert begin(other.id, 0, 0) == 1
        assert [begin(study.id, 0, 1) for _ in range(2)] == [1, 2]
        assert begin(study.id, 0, 2) == 1
        assert begin(study.id, 0, 0) == 4
        purposes = [(a.purpose, a.round) for a in repository.attempts.of(study.id)]
        assert purposes == [
            *[("search", 0)] * 4,
            *[("confirm", 1)] * 2,
            ("confirm", 2),
            ("search", 0),
        ]

    def test_numbers_given_out_at_once_are_all_different(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        begun = at_once(lambda _: repository.attempts.begin(lease, study.id, 0, {}))
        assert sorted(attempt.attempt for attempt in begun) == list(range(1, 9))

    def test_a_result_is_kept_with_its_blocks(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        environment = repository.environments.record(lease, {"cpu": "x"})
        result = AttemptResult(
            state="COMPLETE",
            cause="ünïcode 🚀\n'quoted'; drop table autotune_attempt; --",
            log_tail="line\r\n\ttab \x1b[31mred\x1b[0m" * 500,
            throughput=1234.5678901234567,
            half_width=1 / 3,
            block_half_width=1 / 4,
            block_freedom=2.5,
            sigma_run=1 / 9,
            contended=True,
            steady=False,
            peak_bytes=2**43 + 1,
            wall_seconds=12.25,
        )
        blocks = [
            block(
                index,
                steps=7,
                samples=2**40 + index,
                tokens=2**53 + 1,
                seconds=0.1 + index,
                rank_seconds=[0.1, 1e-9, 2 / 3],
                wait_seconds=0.0,
                loss=-1e300,
                peak_bytes=2**41 + index,
                kept=index > 1,
            )
            for index in range(4)
        ]
        attempt = repository.attempts.begin(lease, study.id, 0, {"micro_batch": 1})
        other = repository.attempts.begin(lease, study.id, 1, {})
        digest = RunDigest(steps=7, foreign_cpu=1 / 7, clock_mhz=1410.0, step_correlation=-1 / 3)
        repository.attempts.finish(lease, attempt.id, result, blocks[::-1], environment, digest)

        found, untouched = repository.attempts.of(study.id)
        assert (found.result, found.digest) == (result, digest)
        assert not found.running
        assert found.knobs == {**defaults(), "micro_batch": 1}
        assert found.ended is not None
        assert found.started <= found.ended <= database_time(repository)
        assert repository.attempts.blocks(attempt.id) == blocks
        assert untouched.running
        assert repository.attempts.blocks(other.id) == []

    def test_a_result_without_a_figure_stays_without(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, attempt.id, AttemptResult("HANG"), [])
        [found] = repository.attempts.of(study.id)
        assert found.result == AttemptResult("HANG")

    def test_a_result_is_recorded_exactly_once(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, attempt.id, AttemptResult("CRASH"), [block(0)])
        before = rows(repository)
        with pytest.raises(StaleLease, match=str(attempt.id)):
            repository.attempts.finish(
                lease, attempt.id, AttemptResult("COMPLETE", throughput=9.0), [block(1)]
            )
        assert rows(repository) == before

    def test_an_attempt_that_was_never_begun_cannot_be_recorded(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        before = rows(repository)
        with pytest.raises(StaleLease):
            repository.attempts.finish(lease, 12345, AttemptResult("COMPLETE"), [])
        assert rows(repository) == before

    def test_of_many_who_record_at_once_one_does(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})

        def record(number: int) -> bool:
            try:
                repository.attempts.finish(
                    lease,
                    attempt.id,
                    AttemptResult("COMPLETE", throughput=float(number)),
                    [block(index=number)],
                )
            except StaleLease:
                return False
            return True

        outcomes = at_once(record)
        assert outcomes.count(True) == 1
        [found] = repository.attempts.of(study.id)
        assert found.result.throughput == outcomes.index(True)
        assert [b.index for b in repository.attempts.blocks(attempt.id)] == [outcomes.index(True)]

    def test_a_result_and_its_blocks_are_kept_together_or_not_at_all(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        before = rows(repository)
        with pytest.raises(IntegrityError):
            repository.attempts.finish(
                lease, attempt.id, AttemptResult("COMPLETE"), [block(0), block(1), block(1)]
            )
        assert rows(repository) == before
        repository.attempts.finish(lease, attempt.id, AttemptResult("COMPLETE"), [block(0)])

    @pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
    def test_a_block_whose_loss_is_no_number_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy, loss: float
    ) -> None:
        """Training that diverges is measured like any other; its blocks come to the records."""
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        result = AttemptResult("ERROR", "the loss is nan in block 0")
        repository.attempts.finish(lease, attempt.id, result, [block(0, loss=loss)])
        assert repository.attempts.of(study.id)[0].result == result
        [found] = repository.attempts.blocks(attempt.id)
        assert repr(found.loss) == repr(loss)

    def test_a_block_whose_time_is_no_number_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        strange = block(0, seconds=math.nan, rank_seconds=[math.nan, math.inf, 1.0])
        repository.attempts.finish(lease, attempt.id, AttemptResult("ERROR"), [strange])
        assert repository.attempts.of(study.id)[0].result.state == "ERROR"
        [found] = repository.attempts.blocks(attempt.id)
        assert math.isnan(found.seconds)

    @pytest.mark.parametrize("strange", ["\0", "\udc80", "\x01\x7f", "\ufffe"], ids=ascii)
    def test_whatever_a_rank_printed_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy, strange: str
    ) -> None:
        """A rank's last words come from the user's code; they may hold any byte."""
        attempt = repository.attempts.begin(lease, study.id, 0, {})
        result = AttemptResult(
            "CRASH", cause=f"before{strange}after", log_tail=f"first{strange}last"
        )
        repository.attempts.finish(lease, attempt.id, result, [block()])
        [found] = repository.attempts.of(study.id)
        assert found.result.state == "CRASH"
        assert found.result.cause.startswith("before")
        assert found.result.cause.endswith("after")
        assert found.result.log_tail.startswith("first")
        assert found.result.log_tail.endswith("last")


class TestFeed:
    def test_it_tells_what_a_whole_read_tells_at_every_step(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        feed = AttemptFeed(repository.attempts, study.id)
        other = submit(repository, "second")

        def same() -> bool:
            return feed.read() == repository.attempts.of(study.id)

        assert feed.read() == []
        first = repository.attempts.begin(lease, study.id, 0, {"micro_batch": 1})
        second = repository.attempts.begin(lease, study.id, 1, {"micro_batch": 2})
        repository.attempts.begin(lease, other.id, 0, {})
        assert same()
        repository.attempts.finish(lease, second.id, AttemptResult("COMPLETE"), [block()])
        third = repository.attempts.begin(lease, study.id, 2, {})
        assert same()
        repository.attempts.finish(lease, first.id, AttemptResult("OOM", cause="full"), [])
        repository.attempts.finish(lease, third.id, AttemptResult("HANG"), [])
        assert same()
        repository.attempts.begin(lease, study.id, 3, {})
        assert same()
        claim(repository, lease)  # gives up what runs
        assert same()
        assert [a.result.state for a in feed.read()] == ["OOM", "COMPLETE", "HANG", "ABANDONED"]

    def test_what_has_ended_is_not_read_again(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        feed = AttemptFeed(repository.attempts, study.id)
        ended = repository.attempts.begin(lease, study.id, 0, {})
        repository.attempts.finish(lease, ended.id, AttemptResult("COMPLETE"), [])
        repository.attempts.begin(lease, study.id, 1, {})
        before = feed.read()
        after = feed.read()
        assert [a is b for a, b in zip(before, after, strict=True)] == [True, False]

    def test_what_a_caller_does_with_the_list_is_its_own_affair(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        feed = AttemptFeed(repository.attempts, study.id)
        repository.attempts.begin(lease, study.id, 0, {})
        feed.read().clear()
        assert len(feed.read()) == 1
