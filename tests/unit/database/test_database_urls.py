"""What the URL of a database may be."""

from pathlib import Path

import pytest
from sqlalchemy import inspect as inspected

from autotune.errors import BadInput
from storage import Repository, TrialLedger
from storage.urls import parse
from tests.unit.database.opening import closed_port, opened, raw, refusal

SECRET = "hunter2secret"


class TestUrl:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            " ",
            "autotune.db",
            "/data/autotune.db",
            "sqlite:autotune.db",
            "sqlite:/data/autotune.db",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "mysql://user@host/database",
            "mysql+pymysql://user@host/database",
            "redis://localhost",
            "journal:///autotune.log",
            "postgres+nonsense://host/database",
            "postgresql+nonsense://host/database",
            "sqlite+nonsense:///autotune.db",
        ],
    )
    def test_what_cannot_be_used_is_refused_with_an_example(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        message = refusal(url, BadInput)
        assert "storage" in message or "sqlite:///" in message
        assert "\n" not in message
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("driver", ["psycopg2", "asyncpg", "pg8000"])
    def test_a_driver_that_is_not_installed_is_no_traceback(self, driver: str) -> None:
        """Many have a URL with psycopg2 in it from another program."""
        message = refusal(f"postgresql+{driver}://user:{SECRET}@127.0.0.1:{closed_port()}/x")
        assert SECRET not in message

    def test_a_sqlite_driver_that_is_not_installed_is_no_traceback(self, tmp_path: Path) -> None:
        refusal(f"sqlite+aiosqlite:///{tmp_path}/x.db")

    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://user:{SECRET}@host:port/database",
            f"postgresql://user:{SECRET}@one:5432,two:5432/database",
            f"postgresql://user:{SECRET}@127.0.0.1:99999/database",
            f"postgresql://user:{SECRET}@127.0.0.1:-1/database",
            f"postgresql://user:{SECRET}@127.0.0.1:1/database?nonsense=1",
            f"postgresql://user:{SECRET}@127.0.0.1:1/database?sslmode=nonsense",
            f"postgresql://127.0.0.1:1/database?user=me&password={SECRET}&nonsense=1",
        ],
        ids=range(7),
    )
    def test_a_broken_postgresql_url_is_no_traceback(self, url: str) -> None:
        message = refusal(url)
        assert SECRET not in message
        assert "\n" not in message

    def test_a_broken_option_of_sqlite_is_no_traceback(self, tmp_path: Path) -> None:
        assert "timeout" in refusal(f"sqlite:///{tmp_path}/x.db?timeout=soon")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        message = refusal(f"sqlite:///{tmp_path}/no/such/x.db", BadInput)
        assert f"{tmp_path}/no/such" in message
        assert not (tmp_path / "no").exists()

    def test_a_file_in_the_place_of_the_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert f"{tmp_path}/file" in refusal(f"sqlite:///{tmp_path}/file/x.db", BadInput)

    def test_a_relative_file_keeps_its_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The daemon has its own working directory."""
        monkeypatch.chdir(tmp_path)
        assert parse("sqlite:///x.db").database == f"{tmp_path}/x.db"
        assert parse(str(parse("sqlite:///x.db"))) == parse("sqlite:///x.db")

    def test_a_home_folder_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert parse("sqlite:///~/x.db").database == f"{tmp_path}/x.db"

    @pytest.mark.parametrize("name", ["a b", "50% a", "a%41", "what?", "a#b", "a&b=c", "ünïcode"])
    def test_a_folder_of_any_name_holds_all_tables_in_one_file(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with opened("sqlite:///x.db") as database:
            Repository(database).studies.submit("first", "c", {}, "/w")
            TrialLedger(database, "first")
        assert {path.name.split("-")[0] for path in folder.iterdir()} == {"x.db", "x.db.lock"}
        assert [path.name for path in tmp_path.iterdir()] == [name]
        with raw(f"sqlite:///{folder}/x.db".replace("%", "%25").replace("?", "%3F")) as engine:
            assert {"studies", "autotune_study"} <= set(inspected(engine).get_table_names())

    @pytest.mark.parametrize(
        "url", ["postgresql://h/d", "postgres://h/d", "postgresql+psycopg://h/d"]
    )
    def test_postgresql_has_the_driver_that_is_installed(self, url: str) -> None:
        assert parse(url).drivername == "postgresql+psycopg"
