"""The dashboard as a person meets it: a real browser on the real server, after a replayed study."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.worker.protocol import Outcome
from launchers.replay.behaviours import noisy
from storage import Database, StoredAttempt
from tests.control.replayed import PLAIN, Replayed
from tests.support import steering
from tests.support.behaviours import where
from tests.support.browsing import open_browser
from tests.support.postgres import bring_back, own_server
from tests.support.steering import autotune
from tests.support.waiting import wait_for

STUDY = "tiny.study-1"
READY = re.compile(
    r"(?P<study>\S+): (?P<page>http://127\.0\.0\.1:\d+/report)\?token=\S+ .*\n"
    r".*: (?P<address>http://127\.0\.0\.1:\d+/dashboard/studies/\d+)(?P<token>\?token=\S+) "
)


@dataclass(frozen=True)
class Done:
    """A folder in which a study has been run to its verdict."""

    folder: Path
    status: dict[str, Any]
    attempts: list[StoredAttempt]

    def of_search(self, trial: int) -> StoredAttempt:
        own = (a for a in self.attempts if a.trial == trial and a.purpose == "search")
        return next(attempt for attempt in own if attempt.recorded)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("dashboard")
    database = Database(f"sqlite:///{folder}/autotune.db")
    played = Replayed(folder, database, STUDY)
    # Larger batches pay, but those of more than four samples fail: one trial has a cause to show.
    behaviour = where(
        where(noisy(PLAIN, run=0.005, block=0.01), lambda _: True, peak_bytes=2**28),
        lambda launch: launch.knobs["micro_batch"] > 4,
        outcome=Outcome.ERROR,
        cause="rank 0: ValueError: planted error",
    )
    played.on(behaviour).run(
        search_space={"micro_batch": [1, 4, 8]},
        baseline={"micro_batch": 1},
        budget={"trials": 3},
    )
    status = json.loads(autotune("status", STUDY, "--json", cwd=folder, check=True).stdout)
    assert (status["state"], status["daemon"]) == ("DONE", None)
    attempts = played.attempts()
    database.engine.dispose()
    return Done(folder, status, attempts)


@dataclass(frozen=True)
class Server:
    """A dashboard; its address is that of the study in optuna-dashboard, without the token, and the link
    is with it; the page is ours, with the token."""

    process: subprocess.Popen[str]
    address: str
    link: str
    page: str

    @property
    def port(self) -> int:
        return int(self.address.split("/")[2].split(":")[1])

    def interrupt(self) -> tuple[int, str]:
        """Its exit code and what it printed as errors, after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=180)
        return self.process.returncode, errors


@contextlib.contextmanager
def dashboard(folder: Path, *arguments: str, browser: str = "") -> Iterator[Server]:
    command = [sys.executable, "-P", "-m", "autotune", "dashboard", STUDY]
    process = subprocess.Popen(
        [*command, *arguments, *([] if browser else ["--no-browser"])],
        cwd=folder,
        env={**os.environ, "BROWSER": browser},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline() + process.stdout.readline()
        found = READY.match(line)
        assert found, line + process.communicate()[1]
        assert found["study"] == STUDY
        link, ours = (found[name] + found["token"] for name in ("address", "page"))
        yield Server(process, found["address"], link, ours)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(done: Done) -> Iterator[Server]:
    with dashboard(done.folder, "--port", "0") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def stranger(browser: Any) -> Iterator[Any]:
    """A page of a browser that has never been at the dashboard."""
    opened = browser.new_page(viewport={"width": 1400, "height": 1800})
    opened.set_default_timeout(180_000)
    yield opened
    opened.close()


@pytest.fixture
def page(stranger: Any, server: Server) -> Any:
    """A page of a browser in which somebody has opened the link of the dashboard."""
    return enter(stranger, server)


def enter(page: Any, server: Server) -> Any:
    """Open the link; the page then shows the study, at an address that tells nobody the token."""
    page.goto(server.link)
    page.wait_for_url(server.address)
    return page


def words(page: Any) -> str:
    """What the page shows, its white space evened out."""
    return " ".join(page.inner_text("body").split())


def wait_for_words(page: Any, *expected: str) -> str:
    """The page's text as soon as all of these are in it."""
    deadline = time.monotonic() + 180
    while True:
        shown = words(page)
        missing = [text for text in expected if " ".join(text.split()) not in shown]
        if not missing:
            return shown
        assert time.monotonic() < deadline, f"{missing} not in: {shown}"
        page.wait_for_timeout(100)


class TestPages:
    @pytest.mark.long
    def test_page_of_the_study_comes_first_with_optunas_one_link_away(
        self, server: Server, stranger: Any, done: Done
    ) -> None:
        stranger.goto(server.page)
        stranger.wait_for_url(server.page.partition("?")[0])
        assert STUDY in wait_for_words(stranger, "How far to trust it", "The search")
        stranger.get_by_text("all trials in optuna-dashboard").click()
        stranger.wait_for_url(server.address)
        wait_for_words(stranger, "throughput over yours")

    def test_the_study_is_listed(self, server: Server, page: Any, tmp_path: Path) -> None:
        page.goto(server.address.rsplit("/", 2)[0])
        wait_for_words(page, STUDY)
        page.screenshot(path=tmp_path / "studies.png")

    @pytest.mark.errand
    def test_the_study_is_shown_with_its_objective(
        self, server: Server, page: Any, done: Done, tmp_path: Path
    ) -> None:
        page.goto(server.address)
        searched = [a for a in done.attempts if a.purpose == "search" and a.result.throughput]
        best = max(searched, key=lambda a: a.result.throughput or 0.0)
        wait_for_words(
            page,
            f"{STUDY} (id=",
            "throughput over yours",
            f"Best Trial (number={best.trial})",
            f"recommended trial {done.status['verdict']['trial']}: ",
            "throughput confirmed: ",
            f"trial {best.trial}: seen once, the luckiest of 2 trials",
        )
        page.screenshot(path=tmp_path / "study.png", full_page=True)

    def test_its_note_is_the_verdict(
        self, server: Server, page: Any, done: Done, tmp_path: Path
    ) -> None:
        page.goto(f"{server.address}/note")
        shown = wait_for_words(
            page,
            "Verdict",
            done.status["verdict"]["sentence"].replace("`", ""),  # Markdown
        )
        page.screenshot(path=tmp_path / "note.png", full_page=True)
        chosen = done.status["verdict"]["knobs"]["micro_batch"]
        assert f"micro_batch: {chosen}" in shown
        assert "fsdp_prefetch" not in shown, "it does not belong to the job"
        for finalist in done.status["verdict"]["finalists"]:
            ratio = finalist["ratio_to_recommended"]
            low = math.floor(ratio["low"] * 1000) / 1000
            high = math.ceil(ratio["high"] * 1000) / 1000
            assert f"{ratio['value']:.3f} ({low:.3f} to {high:.3f})" in shown

    @pytest.mark.errand
    def test_every_trial_is_listed_with_its_end(
        self, server: Server, page: Any, done: Done, tmp_path: Path
    ) -> None:
        page.goto(f"{server.address}/trials")
        count = done.status["trials"]
        assert count == 3
        shown = wait_for_words(page, f"{count} Trials")
        page.screenshot(path=tmp_path / "trials.png", full_page=True)
        listed = re.findall(r"Trial (\d) (Complete|Fail|Running|Waiting|Pruned)", shown)
        ends = {"COMPLETE": "Complete", "PRUNED": "Pruned", "ERROR": "Fail"}
        assert listed == [(str(n), ends[done.of_search(n).result.state]) for n in range(count)]

    @pytest.mark.errand
    def test_a_trial_shows_its_throughput_and_memory(
        self, server: Server, page: Any, done: Done, tmp_path: Path
    ) -> None:
        attempt = done.of_search(0)
        result = attempt.result
        assert result.state == "COMPLETE"
        assert result.throughput is not None
        assert result.half_width is not None
        page.goto(f"{server.address}/trials?numbers=0")
        shown = wait_for_words(page, "Trial 0", "rate, as measured: ", "peak memory of a rank: ")
        page.screenshot(path=tmp_path / "trial.png", full_page=True)
        rate = re.search(r"rate, as measured: ([\d,.]+) samples/s", shown)
        assert rate, shown
        assert number(rate[1]) == pytest.approx(result.rate, rel=0.01)
        memory = re.search(r"peak memory of a rank: ([\d,.]+) MiB", shown)
        assert memory, shown
        assert number(memory[1]) == pytest.approx(result.peak_bytes / 2**20, rel=0.01)
        assert "micro_batch: 1" in shown

    @pytest.mark.errand
    def test_a_trial_that_failed_shows_why(
        self, server: Server, page: Any, done: Done, tmp_path: Path
    ) -> None:
        failed = next(a for a in done.attempts if a.knobs["micro_batch"] == 8)
        page.goto(f"{server.address}/trials?numbers={failed.trial}")
        shown = wait_for_words(page, f"Trial {failed.trial}", "cause: ")
        page.screenshot(path=tmp_path / "failed.png", full_page=True)
        assert "ERROR" in shown
        assert "cause: rank 0: ValueError: planted error" in shown
        assert "as measured:" not in shown

    @pytest.mark.errand
    def test_configurations_keep_their_lines(self, server: Server, page: Any) -> None:
        """One knob to a line, not run together into a paragraph."""
        for address in (f"{server.address}/note", f"{server.address}/trials?numbers=0"):
            page.goto(address)
            wait_for_words(page, "micro_batch: ")
            lines = [line.strip() for line in page.inner_text("body").splitlines()]
            assert [line for line in lines if re.fullmatch(r"micro_batch: \d+", line)]

    @pytest.mark.long
    def test_nothing_comes_from_elsewhere(self, server: Server, page: Any) -> None:
        """A cluster's login node may have no way to the internet."""
        elsewhere: list[str] = []
        errors: list[str] = []

        def look(request: Any) -> None:
            if not request.url.startswith((f"http://127.0.0.1:{server.port}/", "data:", "blob:")):
                elsewhere.append(request.url)

        page.on("request", look)
        page.on("pageerror", lambda error: errors.append(str(error)))
        for address in (server.address, f"{server.address}/note", f"{server.address}/trials"):
            page.goto(address)
            wait_for_words(page, STUDY)
            page.wait_for_timeout(500)
        assert elsewhere == []
        assert errors == []


def number(text: str) -> float:
    return float(text.replace(",", ""))


class TestServer:
    def test_it_listens_on_loopback_only(self, server: Server) -> None:
        process = psutil.Process(server.process.pid)
        listening = [
            connection.laddr
            for each in (process, *process.children(recursive=True))
            for connection in each.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", server.port)]

    def test_its_answers_are_those_of_the_study(self, server: Server) -> None:
        with ask(server.link) as first:
            cookie = first.headers["Set-Cookie"].partition(";")[0]
        with ask(api(server), Cookie=cookie) as answer:
            found = json.load(answer)
        assert found["name"] == STUDY
        assert len(found["trials"]) == 3

    @pytest.mark.long
    @pytest.mark.parametrize(
        "after",
        [0.0, pytest.param(1.0, marks=pytest.mark.errand)],
        ids=["at once", "later"],
    )
    def test_it_ends_on_ctrl_c(self, done: Done, after: float) -> None:
        with dashboard(done.folder, "--port", "0") as server:
            time.sleep(after)
            code, errors = server.interrupt()
        assert code == 0
        assert "Traceback" not in errors

    @pytest.mark.errand
    def test_it_ends_on_ctrl_c_while_a_page_is_open(self, done: Done, stranger: Any) -> None:
        with dashboard(done.folder, "--port", "0") as server:
            wait_for_words(enter(stranger, server), STUDY)
            idle = socket.create_connection(("127.0.0.1", server.port))
            with idle:  # as a browser keeps one in reserve
                code, errors = server.interrupt()
        assert code == 0
        assert "Traceback" not in errors

    @pytest.mark.long
    def test_a_given_port_is_used(self, done: Done) -> None:
        port = free_port()
        with dashboard(done.folder, "--port", str(port)) as server:
            assert server.port == port

    def test_a_taken_port_is_refused(self, done: Done) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            found = steering.ask(
                "dashboard", STUDY, "--port", str(port), "--no-browser", cwd=done.folder
            )
        assert_refused(found, str(port), "--port")

    @pytest.mark.long
    def test_a_port_of_another_dashboard_is_refused(self, done: Done, server: Server) -> None:
        options = ("--port", str(server.port), "--no-browser")
        found = autotune("dashboard", STUDY, *options, cwd=done.folder)
        assert_refused(found, str(server.port), "--port")

    def test_a_study_that_is_not_there_is_refused(self, done: Done) -> None:
        found = steering.ask("dashboard", "typo", "--port", "0", "--no-browser", cwd=done.folder)
        assert_refused(found, "typo", STUDY)

    @pytest.mark.long
    def test_a_storage_that_is_away_and_a_study_that_is_deleted_are_told(
        self, tmp_path: Path
    ) -> None:
        with own_server() as postgres:
            url = postgres.get_uri()
            played = Replayed(tmp_path, Database(url), STUDY)
            played.run(budget={"trials": 2})
            with dashboard(tmp_path, "--port", "0", "--storage", url) as running:
                with ask(running.page) as first:
                    cookie = first.headers["Set-Cookie"].partition(";")[0]
                address = running.page.partition("?")[0]
                postgres.stop()
                assert told(address, cookie)[0] == 503
                assert 'http-equiv="refresh"' in told(address, cookie)[1]
                bring_back(postgres)
                wait_for(lambda: told(address, cookie)[0] == 200, "the page is back")
                played.repository.studies.delete(STUDY)
                status, text = told(address, cookie)
            assert (status, STUDY in text, "refresh" in text) == (404, True, False)
            played.repository.database.engine.dispose()

    @pytest.mark.long
    def test_looking_changes_nothing(self, done: Done, server: Server) -> None:
        now = json.loads(autotune("status", STUDY, "--json", cwd=done.folder, check=True).stdout)
        assert now == done.status


@pytest.mark.fault(30)
class TestStrangers:
    def test_a_browser_without_the_link_is_told_what_to_do(
        self, server: Server, stranger: Any
    ) -> None:
        answer = stranger.goto(server.address)
        assert answer.status == 403
        assert STUDY not in wait_for_words(stranger, "Open the whole link", "?token=")

    @pytest.mark.long
    def test_scripts_and_other_sites_never_see_the_cookie(
        self, server: Server, stranger: Any
    ) -> None:
        enter(stranger, server)
        [cookie] = stranger.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert stranger.evaluate("document.cookie") == ""

    @pytest.mark.long
    def test_a_link_on_a_page_of_somebody_else_leads_there_too(
        self, server: Server, stranger: Any, tmp_path: Path
    ) -> None:
        """So does the file by which the command opens a browser."""
        link = tmp_path / "link.html"
        link.write_text(f'<meta http-equiv="refresh" content="0; url={server.link}">')
        stranger.goto(link.as_uri())
        stranger.wait_for_url(server.address)
        wait_for_words(stranger, STUDY)

    @pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
    def test_without_the_cookie_nothing_is_answered(self, server: Server, method: str) -> None:
        assert refusal(api(server), method) == 403
        assert refusal(f"{api(server)}?token=guessed", method) == 403
        assert refusal(api(server), method, Cookie="autotune-0=guessed; a b") == 403

    def test_a_name_that_is_made_to_lead_here_is_refused(self, server: Server) -> None:
        """Such as a web page gives itself: DNS rebinding."""
        query = server.link.partition("?")[2]
        for host in (
            "evil.example",
            f"evil.example:{server.port}",
            "127.0.0.1.evil.example",
            "[",
            "",
        ):
            assert refusal(f"{api(server)}?{query}", Host=host) == 403, host

    def test_a_page_of_another_port_cannot_ask_for_changes(self, server: Server) -> None:
        """A browser takes it for the same site, and sends the cookie along."""
        with ask(server.link) as first:
            cookie = first.headers["Set-Cookie"].partition(";")[0]
        other = "http://127.0.0.1:1"
        assert refusal(api(server), "DELETE", Cookie=cookie, Origin=other) == 403
        assert refusal(api(server), "DELETE", Cookie=cookie, Origin="null") == 403

    def test_a_port_that_was_forwarded_is_answered(self, server: Server) -> None:
        with ask(server.link, Host="localhost:9999") as answer:
            assert answer.status == 200

    @pytest.mark.long
    def test_the_arguments_of_the_browser_do_not_tell_the_token(
        self, done: Done, tmp_path: Path
    ) -> None:
        told = tmp_path / "told"
        script = tmp_path / "browser"
        script.write_text(f'#!/bin/sh\necho "$1" > {told}.new; mv {told}.new {told}\n')
        script.chmod(0o755)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        storage = f"sqlite:///{done.folder}/autotune.db"
        where = ("--port", "0", "--storage", storage)
        with dashboard(elsewhere, *where, browser=str(script)) as server:
            shown = wait_for(lambda: told.exists() and told.read_text().strip(), "it is opened")
            link = Path(urllib.request.url2pathname(shown.removeprefix("file://")))
            assert server.page in link.read_text()
            assert link.stat().st_mode & 0o777 == 0o600
            server.interrupt()
        assert not list(elsewhere.iterdir())


def api(server: Server) -> str:
    number = server.address.rsplit("/", 1)[1]
    return f"http://127.0.0.1:{server.port}/api/studies/{number}"


def ask(address: str, method: str = "GET", **headers: str) -> Any:
    request = urllib.request.Request(address, method=method, headers=headers)
    return urllib.request.urlopen(request, timeout=180)


def told(address: str, cookie: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    try:
        with ask(address, Cookie=cookie) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def refusal(address: str, method: str = "GET", **headers: str) -> int:
    """The status with which a request is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(address, method, **headers)
    assert STUDY not in refused.value.read().decode()
    return refused.value.code


def assert_refused(found: subprocess.CompletedProcess[str], *told: str) -> None:
    assert found.returncode == 2
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    lines = found.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    for text in told:
        assert text in lines[-1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
