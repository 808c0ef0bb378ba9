"""Commands that print or write results of a study."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.shared_options import (
    JsonOption,
    StorageOption,
    StudyArgument,
    export_path,
    open_study,
    written_best,
)
from autotune.errors import BadInput
from autotune.views.terminal import hand_over
from autotune.views.terminal import show as print  # output may hold control characters of trials

if TYPE_CHECKING:  # imported where they are used: SQLAlchemy and Optuna take a second
    from autotune.analysis.verdict import Verdict
    from autotune.export.best import BestConfig
    from storage import Repository, StoredStudy

STANDARD_OUTPUT = Path("-")
"""Path that stands for standard output."""
_TABLE_ENDINGS = (".csv", ".parquet")
_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="File; - prints it. Default: a study's YAML goes to the `export` file that study.yaml "
        "names; anything else is printed.",
    ),
]
_FormOption = Annotated[
    str,
    typer.Option(
        "--format",
        help="yaml, json, env, argv, hf-trainer, accelerate, lightning, deepspeed, hydra or "
        "torchtitan.",
    ),
]


def report(
    study: StudyArgument,
    file: Annotated[
        Path | None, typer.Argument(help="With --html: the file of the page, or - to print it.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute the figures again from the timed blocks.")
    ] = False,
    as_page: Annotated[
        bool, typer.Option("--html", help="Write one self-contained page: FILE, or NAME.html.")
    ] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the verdict in full, or the provisional one, and its evidence."""
    from autotune.views.figures import figures_of
    from autotune.views.markdown_report import report_of
    from autotune.views.page import page
    from autotune.views.recompute import recomputed_verdict

    if file and not as_page:
        raise BadInput(f"{file} is the file of a page: add --html")
    repository, name = open_study(study, storage, reading=True)
    stored = repository.studies.named(name)
    recomputed = recomputed_verdict(repository, name) if recompute else None
    figures = figures_of(repository, stored, recomputed)
    if as_page:
        _write_page(page(figures, exported=written_best(stored)), file or Path(f"{name}.html"))
    elif as_json:
        print(json.dumps(figures.as_dict(), indent=2))
    else:
        print(report_of(figures))


def _write_page(text: str, target: Path) -> None:
    """Print a page, or write it where no other file is."""
    from autotune.export.writing import refuse_foreign
    from autotune.views.page import PAGE_BEGINNING

    if target != STANDARD_OUTPUT:
        refuse_foreign(target, "page", (PAGE_BEGINNING.encode(),))
    _put(text, target)


def _put(text: str, target: Path) -> None:
    """Print a text, or write it to a file and print the path."""
    from autotune.export.writing import write_text

    if target == STANDARD_OUTPUT:
        hand_over(text)
        return
    try:
        write_text(target, text)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    print(target)


def compare(
    first: Annotated[str, typer.Argument(help="Name of a study, or its study.yaml.")],
    second: Annotated[str, typer.Argument(help="Another one, as from after an upgrade.")],
    storage: StorageOption = None,
    second_storage: Annotated[
        str | None, typer.Option(help="Storage URL of the second study, where it is another one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two studies: machines, settings, and which parts of the first verdict still hold."""
    from autotune.views.comparison import comparison, comparison_text
    from autotune.views.figures import figures_of
    from autotune.views.study_figures import as_json as plain_data

    both = []
    for study, given in ((first, storage), (second, second_storage or storage)):
        repository, name = open_study(study, given, reading=True)
        figures = figures_of(repository, repository.studies.named(name))
        if all(trial.rate is None for trial in figures.trials):
            raise BadInput(f"{name} has measured nothing to compare; see autotune status {name}")
        both.append(figures)
    found = comparison(both[0], both[1])
    print(json.dumps(plain_data(found), indent=2) if as_json else comparison_text(found))


def export(
    study: Annotated[str, typer.Argument(help="Name of a study, its study.yaml, or a best.yaml.")],
    output: _OutputOption = None,
    form: _FormOption = "yaml",
    trials: Annotated[
        Path | None,
        typer.Option(
            help="Write all attempts there instead: *.csv, or *.parquet as Parquet; -: print them."
        ),
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option(
            help="Log the study as a run of mlflow, or of wandb (offline, below ./wandb), instead."
        ),
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Write the recommendation of a study, or its provisional answer, as best.yaml or for another tool.

    With --trials, write all attempts as a table instead; with --tracker, the study as a run.
    """
    from autotune.export import best

    is_best = study.endswith((".yaml", ".yml")) and best.is_best(study)
    given = {"--trials": trials, "--tracker": tracker, "--output": output}
    options = [option for option, value in given.items() if value]
    _check_export(study if is_best else None, form, options)
    if is_best:
        _hand_over(best_in(Path(study), best.read), form, output)
        return
    repository, name = open_study(study, storage, reading=True)
    stored = repository.studies.named(name)
    if trials:
        _write_attempts(repository, name, trials)
    elif tracker:
        _log_run(repository, stored, tracker)
    else:
        _export_answer(repository, stored, form, output)


def _log_run(repository: "Repository", stored: "StoredStudy", tracker: str) -> None:
    """Log a study as a run of an experiment tracker, and print where it is."""
    from autotune.views.figures import figures_of
    from autotune.views.trackers import TRACKERS

    if tracker not in TRACKERS:
        raise BadInput(f"--tracker {tracker}: {' or '.join(TRACKERS)}")
    print(TRACKERS[tracker](figures_of(repository, stored)))


def _check_export(best: str | None, form: str, options: list[str]) -> None:
    """Refuse what cannot be exported, before anything is read."""
    from autotune.export import formats

    formats.known(form)
    if options in ([], ["--output"]):
        return
    instead = options[0]
    if len(options) > 1:
        raise BadInput(f"{instead} does not go with {options[1]}; leave one of the two out")
    if form != "yaml":
        raise BadInput(f"{instead} does not write {form}; leave one of the two out")
    if best is not None:
        raise BadInput(f"{best} holds no attempts; give the name of the study")


def _export_answer(
    repository: "Repository", stored: "StoredStudy", form: str, output: Path | None
) -> None:
    """Write the answer of a study: as best.yaml at its place, or printed or written in a format."""
    from autotune.export import best, publish, writing
    from autotune.views.recompute import current_verdict
    from autotune.views.verdict_text import text_of

    answer = current_verdict(repository, stored)
    text = text_of(answer)
    if form != "yaml" or output == STANDARD_OUTPUT:
        _hand_over(best.of(publish.current_content(repository, stored, answer, text)), form, output)
        return
    target = output or export_path(stored)
    if output is None:
        _check_replaced(target, stored.name, answer)
    else:
        writing.refuse_replacing(output)
    if publish.export(repository, stored, answer, text, target):
        print(text, file=sys.stderr)
    print(target)


def _check_replaced(target: Path, study: str, answer: "Verdict") -> None:
    """Refuse to replace another's file, or what another study has found by what is no gain."""
    from autotune.export import writing
    from autotune.study.context import BASELINE

    if answer.trial is None:
        return  # there is nothing to write, and `publish.export` says why
    if refused := writing.not_ours(target):
        raise BadInput(refused)
    if not answer.provisional and answer.trial != BASELINE:
        return
    if writing.is_of_another(target, study):
        why = "is provisional" if answer.provisional else "recommends no change"
        raise BadInput(
            f"{target} belongs to another study, and the answer of {study} {why}: name another file "
            "by --output, or this one to replace it"
        )


def _write_attempts(repository: "Repository", name: str, target: Path) -> None:
    """Print all attempts as CSV, or write them in the format of a file's ending."""
    from autotune.export.writing import refuse_foreign, write_bytes
    from autotune.views.frame import CSV_BEGINNING, as_parquet, attempts_frame, is_parquet_table

    if target != STANDARD_OUTPUT:
        if target.suffix not in _TABLE_ENDINGS:
            raise BadInput(f"--trials {target}: write to *.csv, *.parquet, or - to print")
        if target.suffix != ".parquet" or not is_parquet_table(target):
            refuse_foreign(target, "table of attempts", (CSV_BEGINNING,))
    frame = attempts_frame(repository, name)
    if target == STANDARD_OUTPUT:
        hand_over(frame.to_csv(index=False))
        return
    is_parquet = target.suffix == ".parquet"
    content = as_parquet(frame) if is_parquet else frame.to_csv(index=False).encode()
    try:
        write_bytes(target, content)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    print(target)


def _hand_over(best: "BestConfig", form: str, target: Path | None) -> None:
    """Print or write a recommendation in a format; settings that it lacks go to standard error."""
    from autotune.export.formats import FORMATS, remarks
    from autotune.export.writing import note, refuse_replacing

    rendered = FORMATS[form](best)
    target = target or STANDARD_OUTPUT
    if target != STANDARD_OUTPUT:
        refuse_replacing(target, rendered.text)
    if best.provisional:
        print(best.provenance["verdict"], file=sys.stderr)
    for line in remarks(form, rendered):
        print(line, file=sys.stderr)
    _put(rendered.text, target)
    if target != STANDARD_OUTPUT:
        note(target, rendered.text)


def best_in(path: Path, read: Callable[[Path], "BestConfig"]) -> "BestConfig":
    """Return the configuration in a best.yaml.

    Raises:
        BadInput: it cannot be read, or is no best.yaml.
    """
    try:
        return read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # its text names the file
        raise BadInput(str(error)) from None


def dashboard(
    study: StudyArgument,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8080,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    storage: StorageOption = None,
) -> None:
    """Open the page of a study, with optuna-dashboard one link away; on loopback, with a token."""
    from autotune.paths import dashboard_link
    from autotune.views.dashboard import Addresses, opened, serve

    repository, name = open_study(study, storage)
    repository.studies.named(name)
    with contextlib.ExitStack() as until_it_ends:

        def ready(addresses: Addresses) -> None:
            print(f"{name}: {addresses.page}  (Ctrl-C ends it)", flush=True)
            told = "it can delete studies, so keep it to yourself"
            print(f"  all trials in optuna-dashboard: {addresses.trials}  ({told})", flush=True)
            if browser:
                until_it_ends.enter_context(opened(addresses.page, dashboard_link(Path.cwd())))

        serve(repository.database, name, port, ready, written_best)
