"""Commands that examine a machine, a job or a table without a study, and that print reference data."""

import dataclasses
import difflib
import json
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.shared_options import JsonOption, StorageOption, url_of
from autotune.errors import BadInput
from autotune.views.terminal import show as print  # output may hold control characters of trials


def doctor(
    study: Annotated[Path | None, typer.Argument(help="A study.yaml to check for.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: needs of a study, and sources of wrong figures.

    With a study its baseline is run for a few steps, and a script or a command once more for each
    knob that is searched, which takes minutes.
    """
    from autotune.config import load
    from autotune.standalone.doctor import examine

    spec = load(study) if study else None
    checks = []
    for check in examine(spec, url_of(storage, spec.storage if spec else None)):
        checks.append(check)
        if not as_json:
            print(f"{check.level:5} {check.name}: {check.text}")
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    raise typer.Exit(int(any(check.level == "fail" for check in checks)))


def diagnose(
    study: Annotated[Path, typer.Argument(help="The study.yaml whose baseline is looked at.")],
    as_json: JsonOption = False,
) -> None:
    """Profile the baseline: what limits it, and which knobs act on that."""
    from autotune.config import load
    from autotune.paths import StudyPaths
    from autotune.standalone.diagnosis import described
    from autotune.standalone.diagnosis import diagnose as examine

    spec = load(study)
    diagnosis = examine(spec, StudyPaths(Path.cwd(), spec.name).diagnosis, Path.cwd())
    if as_json:
        print(json.dumps(dataclasses.asdict(diagnosis), indent=2, default=str))
    else:
        print("\n".join(described(diagnosis)))


def record(
    study: Annotated[Path, typer.Argument(help="The study.yaml whose space is recorded.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="CSV file; a journal NAME.runs.csv beside it.")
    ] = Path("table.csv"),
    most: Annotated[
        int, typer.Option(help="Configurations; a larger space is sampled.", min=1)
    ] = 400,
    passes: Annotated[int, typer.Option(help="Runs of each configuration.", min=1)] = 1,
    refine: Annotated[
        int, typer.Option(help="More runs of the leading configurations.", min=0)
    ] = 12,
) -> None:
    """Measure every configuration of a space, for a replay table. Repeated, it continues."""
    from autotune.config import load
    from autotune.standalone.recording import record as record_table

    spec = load(study)
    try:
        record_table(
            spec, output, most=most, passes=passes, refine=refine, workdir=Path.cwd(), say=print
        )
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on.")
        raise typer.Exit(1) from None
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error}") from None
    print(output)


def simulate(
    study: Annotated[
        Path | None, typer.Argument(help="The study.yaml; else the table's own study.")
    ] = None,
    table: Annotated[Path, typer.Option(help="A table that `autotune record` has written.")] = Path(
        "table.csv"
    ),
    seed: Annotated[
        int | None, typer.Option(help="Of sampler and noise; else the study's.", min=0)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a study over a recorded table: number of trials, time, verdict."""
    from autotune.config import load
    from autotune.standalone.simulation import described
    from autotune.standalone.simulation import simulate as play

    found = play(table, load(study) if study else None, seed)
    if as_json:
        shown = {**dataclasses.asdict(found), "shortfall": found.shortfall}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(described(found)))


def knobs(
    name: Annotated[
        str | None, typer.Argument(help="A knob, to print all that is known of it.")
    ] = None,
) -> None:
    """Print the catalogue of knobs in Markdown, or one knob in full."""
    from autotune.views.catalogue import knob_lines, knobs_page
    from search_spaces import CATALOGUE

    if name is None:
        print(knobs_page({}), end="")
        return
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `autotune knobs` lists all"
        raise BadInput(f"there is no knob {name}{hint}")
    print("\n".join(knob_lines(CATALOGUE[name])))


def presets() -> None:
    """Print the named search spaces: the use of each, and its values per knob."""
    from autotune.views.catalogue import presets_listed

    print("\n".join(presets_listed()))


def schema() -> None:
    """Print the JSON Schema of study.yaml."""
    from autotune.config import json_schema

    print(json.dumps(json_schema(), indent=2))
