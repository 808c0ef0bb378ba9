"""PostgreSQL behind a network that swallows everything for a minute: no answer, and no refusal."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


@pytest.mark.slow
@pytest.mark.fault(11)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a network of its own")
def test_a_study_waits_for_a_server_that_does_not_answer(tmp_path: Path, postgres_url: str) -> None:
    url = make_url(postgres_url)
    server = Path(str(url.query["host"]), ".s.PGSQL.5432")
    given = [str(tmp_path), str(server), str(url.database), str(SECONDS)]
    began = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "tests.faults.black_hole", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lasted = time.monotonic() - began
    assert found.returncode == 0, found.stdout + found.stderr
    said = found.stdout.splitlines()
    assert said[-1] == "complete, lost and duplicated: 0 0"
    assert any(line.startswith("waiting: ") for line in said)
    assert "waiting no more: it works again" in said
    assert "Traceback" not in found.stderr
    assert lasted > SECONDS, "it could not have ended sooner"
