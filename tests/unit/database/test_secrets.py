"""The secrets in a URL reach the server, and nobody else."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from autotune.errors import StudyNotFound
from storage import Repository
from tests.unit.database.opening import closed_port, opened, refusal

SECRET = "hunter2secret"


class TestSecrets:
    @pytest.fixture
    def secret_url(self, postgres_url: str) -> str:
        """A URL that works, with secrets wherever one may stand; the server asks for none."""
        url = make_url(postgres_url).set(password=SECRET)
        url = url.update_query_dict({"sslpassword": SECRET + "1", "sslkey": SECRET + "2"})
        return url.render_as_string(hide_password=False)

    def test_they_are_not_shown(self, secret_url: str) -> None:
        with opened(secret_url) as database:
            assert SECRET not in str(database)
            assert SECRET not in f"{database} {database!r}"
            assert make_url(secret_url).database in str(database)
            with pytest.raises(StudyNotFound) as caught:
                Repository(database).studies.named("typo")
            assert SECRET not in str(caught.value)

    def test_a_password_among_the_options_is_not_shown(self, postgres_url: str) -> None:
        url = make_url(postgres_url).update_query_dict({"password": SECRET})
        with opened(url.render_as_string(hide_password=False)) as database:
            assert SECRET not in str(database)
            assert SECRET not in repr(database)

    def test_they_reach_the_server_none_the_less(self, secret_url: str) -> None:
        with opened(secret_url) as database, database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.info.password == SECRET

    @pytest.mark.parametrize(
        "form",
        [
            "postgresql://user:{secret}@127.0.0.1:{port}/x",
            "postgresql://127.0.0.1:{port}/x?user=me&password={secret}",
            "postgresql://127.0.0.1:{port}/x?user=me&PASSWORD={secret}",
            "postgresql://user:a@{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a/{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a?{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a#{secret}@127.0.0.1:{port}/x",
            "postgresql://user:a:{secret}@127.0.0.1:{port}/x",
            "mysql://user:{secret}@127.0.0.1:{port}/x",
            "postgresqll://user:{secret}@127.0.0.1:{port}/x",
            "postgresql:/user:{secret}@127.0.0.1:{port}/x",
            "{secret}",
        ],
    )
    def test_errors_do_not_show_them(self, form: str) -> None:
        """Characters that should have been escaped in a password are a common mistake."""
        message = refusal(form.format(secret=SECRET, port=closed_port()))
        assert SECRET not in message

    def test_errors_are_told_as_they_are_where_an_option_is_no_secret(self) -> None:
        port = closed_port()
        options = f"connect_timeout=1&application_name=port&sslpassword={SECRET}"
        message = refusal(f"postgresql://user@127.0.0.1:{port}/x?{options}")
        assert f'connection to server at "127.0.0.1", port {port} failed' in message
        assert SECRET not in message

    def test_tracebacks_do_not_show_what_a_statement_writes(self, storage_url: str) -> None:
        with opened(storage_url) as database:
            for engine in (database.engine, database.optuna().engine):
                with pytest.raises(DBAPIError) as caught, engine.begin() as connection:
                    connection.execute(text("insert into none_such values (:a)"), {"a": SECRET})
                assert SECRET not in str(caught.value)
            database.optuna().engine.dispose()

    def test_the_command_does_not_show_them(self, tmp_path: Path) -> None:
        url = f"postgresql://user:{SECRET}@127.0.0.1:{closed_port()}/x?sslpassword={SECRET}"
        found = subprocess.run(
            [sys.executable, "-P", "-m", "autotune", "list"],
            cwd=tmp_path,
            env={**os.environ, "AUTOTUNE_STORAGE": url},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert found.returncode == 1
        assert found.stderr.startswith("error: storage postgresql")
        assert "Traceback" not in found.stderr
        assert SECRET not in found.stdout + found.stderr
