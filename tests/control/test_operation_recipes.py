"""Recipes for shared clusters name what there is: metrics, commands, options, files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from autotune.cli import app
from autotune.measurement.drift import Promise
from autotune.service.metrics import Metrics
from autotune.service.queue_metrics import QueueMetrics
from tests.control.replayed import Replayed

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "launchers" / "recipes"
COMPOSE = yaml.safe_load((RECIPES / "compose.yaml").read_text())["services"]
RULES = yaml.safe_load((RECIPES / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((RECIPES / "grafana.json").read_text())
CONTAINERFILE = (RECIPES / "Containerfile").read_text()
PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
JOB = 'instance="a"'


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def named(texts: list[str]) -> set[str]:
    return {name for text in texts for name in re.findall(r"\bautotune_\w+", text)}


@pytest.fixture
def port(played: Replayed) -> int:
    return QueueMetrics(played.repository, lambda: 0.0).serve(0)


def exposed(port: int) -> set[str]:
    """Names of the metrics that a server has, also of those without a value at present."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return set(re.findall(r"^# TYPE (\S+)", page.read().decode(), re.MULTILINE))


def test_alerts_and_dashboard_name_metrics_that_there_are(port: int) -> None:
    found = exposed(port)
    for unit in ("samples/s", "tokens/s", "steps/s"):
        found |= exposed(Metrics(Promise(1.0, 0.9, 1.1, 4), unit, "tiny").serve(0))
    variables = [variable.get("definition", "") for variable in DASHBOARD["templating"]["list"]]
    assert named([rule["expr"] for rule in RULES]) <= found
    assert named([*expressions(DASHBOARD["panels"]), *variables]) <= found


def promtool(folder: Path, *command: str, **files: Any) -> None:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    done = subprocess.run(
        ["promtool", *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stdout + done.stderr


@PROMTOOL
def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    found = expressions(DASHBOARD["panels"])
    rules = [{"record": f"panel_{n}", "expr": expr} for n, expr in enumerate(found)]
    groups = [{"name": "panels", "rules": rules}]
    promtool(tmp_path, "check", "rules", "rules.yaml", rules={"groups": groups})


@PROMTOOL
@pytest.mark.parametrize(
    ("series", "after", "alert"),
    [
        ({'up{job="autotune"}': "1 0x20"}, "6m", "AutotuneDaemonAway"),
        ({"autotune_daemon_silence_seconds": "0+60x20"}, "5m", "AutotuneDaemonSilent"),
        ({"autotune_daemon_silence_seconds": "2x20"}, "20m", ""),
        (
            {
                f'autotune_without_daemon_seconds{{instance="{one}",study="s"}}': "0+60x30"
                for one in "ab"
            },
            "16m",
            "AutotuneStudyWithoutDaemon",
        ),
        ({'autotune_without_daemon_seconds{study="s"}': "600 660 stale"}, "20m", ""),
        ({'autotune_failed{study="s"}': "1x9"}, "1m", "AutotuneStudyFailed"),
        (
            {
                'autotune_waiting{storage="a",study="s"}': "1x30",
                'autotune_progress_seconds{storage="b",study="s"}': "1700+60x30",
                'autotune_longest_silence_seconds{storage="b",study="s"}': "900x30",
            },
            "10m",
            "AutotuneNoProgress",
        ),
        (
            {
                'autotune_slots{study="s",kind="alive"}': "2x9",
                'autotune_slots{study="s",kind="planned"}': "3x9",
            },
            "4m",
            "AutotuneSlotsLost",
        ),
        (
            {
                'autotune_progress_seconds{instance="a",study="s"}': "1700+60x30",
                'autotune_progress_seconds{instance="b",study="s"}': "1700+60x30",
                'autotune_longest_silence_seconds{instance="a",study="s"}': "900x30",
                'autotune_waiting{instance="a",study="s"}': "0x30",
            },
            "10m",
            "AutotuneNoProgress",
        ),
        (
            {
                'autotune_progress_seconds{study="s"}': "1700+60x30",
                'autotune_longest_silence_seconds{study="s"}': "3600x30",
                'autotune_waiting{study="s"}': "0x30",
            },
            "20m",
            "",
        ),
        (
            {
                'autotune_progress_seconds{study="s"}': "1700+60x30",
                'autotune_longest_silence_seconds{study="s"}': "900x30",
                'autotune_waiting{study="s"}': "1x30",
            },
            "10m",
            "",
        ),
        (
            {
                f"autotune_job_drifted{{{JOB}}}": "1x20",
                f'autotune_job_info{{{JOB},study="s"}}': "1x20",
            },
            "11m",
            "AutotuneJobDrifted",
        ),
    ],
)
def test_alerts_fire_for_what_they_are_about(
    tmp_path: Path, series: dict[str, str], after: str, alert: str
) -> None:
    shutil.copy(RECIPES / "alerts.yaml", tmp_path)
    promtool(tmp_path, "check", "rules", "alerts.yaml")
    given = [{"series": name, "values": values} for name, values in series.items()]
    firing = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": after}
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    promtool(
        tmp_path,
        *("test", "rules", "cases.yaml"),
        cases={
            "rule_files": ["alerts.yaml"],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": given,
                    "promql_expr_test": [{**firing, "exp_samples": expected}],
                }
            ],
        },
    )


def test_panels_lie_side_by_side_in_rows() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in panels
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Queue",
        "Study: $study",
        "Jobs tuned by: $tuned",
    ]


def command_lines() -> list[list[str]]:
    """Return the commands of the services and of the image."""
    [own] = re.findall(r"^CMD (.+)$", CONTAINERFILE, re.MULTILINE)
    return [json.loads(own), *(one["command"] for one in COMPOSE.values() if "command" in one)]


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_commands_of_containers_are_ones_that_there_are(words: list[str]) -> None:
    program, name, *options = words
    assert program in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(options))  # raises where it does not take one


def test_a_container_is_healthy_while_its_daemon_is(port: int) -> None:
    kind, program, *words = COMPOSE["daemon"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python3")
    for at, status in ((port, 0), (1, 1)):  # nothing listens on port 1
        here = [word.replace(":9300/", f":{at}/") for word in words]
        done = subprocess.run([sys.executable, *here], capture_output=True, timeout=60, check=False)
        assert done.returncode == status


def test_metrics_and_pages_of_containers_are_reached_on_loopback_alone() -> None:
    assert COMPOSE["daemon"]["network_mode"] == COMPOSE["dashboard"]["network_mode"] == "host"
    assert COMPOSE["database"]["ports"] == ["127.0.0.1:5432:5432"]


def test_secrets_of_containers_come_from_outside() -> None:
    assert COMPOSE["database"]["environment"]["POSTGRES_PASSWORD"] == "${PASSWORD}"
    assert ":${PASSWORD:?" in COMPOSE["daemon"]["environment"]["AUTOTUNE_STORAGE"]
    assert not re.search(r"^(ENV|ARG) .*(PASSWORD|TOKEN|KEY)", CONTAINERFILE, re.MULTILINE)


def test_the_image_is_made_of_the_wheel_and_not_run_as_root(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stem = project["name"].replace("-", "_")
    assert f"COPY dist/{stem}-*.whl /tmp/wheels/" in CONTAINERFILE
    [extras] = re.findall(r"\.whl\)\[([\w,]+)\]", CONTAINERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    users = re.findall(r"^USER (\S+)", CONTAINERFILE, re.MULTILINE)
    assert users == ["${UID}"], "a number, by which Kubernetes sees that it is not root"


def test_steps_of_the_image_are_what_a_shell_takes(tmp_path: Path) -> None:
    """The commands themselves stand in: apt, pip and useradd would change this machine."""
    told = tmp_path / "told"
    for name in ("apt-get", "python3", "useradd", "rm"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nfor word in {name} "$@"; do echo "$word" >> {told}; done\n')
        program.chmod(0o755)
    steps = re.findall(r"^RUN ((?:.*\\\n)*.*)$", CONTAINERFILE, re.MULTILINE)
    for step in steps:
        subprocess.run(
            ["sh", "-ec", step],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "UID": "1"},
            check=True,
            timeout=60,
        )
    words = told.read_text().splitlines()
    assert words.count("apt-get") == 2
    assert "/tmp/wheels/torch_autotune-*.whl[nvidia]" in words
    assert shlex.join(words[words.index("useradd") :]).endswith("--uid 1 autotune")
