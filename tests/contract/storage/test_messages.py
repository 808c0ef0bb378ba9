"""Messages and recommendations."""

from storage import Lease, MessageKind, Repository, StoredStudy
from tests.contract.storage.making import database_time, submit


class TestMessages:
    def test_they_come_in_order_and_only_once(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.messages.of(study.id) == []
        before = database_time(repository)
        for message in ("one", "zwei\nZeilen", "三"):
            repository.messages.say(lease, study.id, message)
            repository.messages.say(lease, other.id, "aside")
        found = repository.messages.of(study.id)
        assert [message.text for message in found] == ["one", "zwei\nZeilen", "三"]
        assert [message.number for message in found] == sorted({m.number for m in found})
        assert before <= found[0].at <= found[-1].at <= database_time(repository)
        assert repository.messages.of(study.id, found[0].number) == found[1:]
        assert repository.messages.of(study.id, found[-1].number) == []
        assert len(repository.messages.of(other.id)) == 3

    def test_their_kinds_are_told_apart(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.messages.say(lease, study.id, "Waiting: no kind")
        repository.messages.say(lease, study.id, "process 1", kind=MessageKind.WAITING)
        kinds = [message.kind for message in repository.messages.of(study.id)]
        assert kinds == [MessageKind.SAID, MessageKind.WAITING]

    def test_one_with_a_nul_byte_is_kept(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        repository.messages.say(lease, study.id, "before\0after")
        [found] = repository.messages.of(study.id)
        assert found.text.startswith("before")
        assert found.text.endswith("after")


class TestRecommendations:
    def test_the_newest_counts(
        self, repository: Repository, lease: Lease, study: StoredStudy
    ) -> None:
        other = submit(repository, "second")
        assert repository.recommendations.newest_of(study.id) is None
        repository.recommendations.record(lease, study.id, 7, {"knobs": {"micro_batch": 32}})
        repository.recommendations.record(
            lease, study.id, 2, {"knobs": {"micro_batch": 8}, "ü": [1.5, None]}
        )
        repository.recommendations.record(lease, other.id, 9, {"other": True})
        assert repository.recommendations.newest_of(study.id) == {
            "knobs": {"micro_batch": 8},
            "ü": [1.5, None],
        }
        assert repository.recommendations.newest_of(other.id) == {"other": True}
