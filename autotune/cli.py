"""The commands. Each one reads its arguments, calls one thing, prints what came of it."""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune import __version__
from autotune.errors import AutotuneError, BadInput
from autotune.views.terminal import PlainFormatter, hand_over
from autotune.views.terminal import show as print  # trials have a say in most of what is printed

if TYPE_CHECKING:  # imported where they are used: SQLAlchemy and Optuna take a second
    from autotune.export.best import BestConfig
    from storage import Repository, StoredStudy

_OF_SOME_COMMANDS = {"pandas": "pandas", "optuna_dashboard": "optuna-dashboard"}
"""Module -> package that studies do not need, but a command does."""
DEFAULT_STORAGE = "sqlite:///autotune.db"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Finds, with measured proof, the training configuration with the highest throughput.",
)

StudyArgument = Annotated[str, typer.Argument(help="Name of a study, or its study.yaml.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Storage URL; else that of study.yaml, $AUTOTUNE_STORAGE, sqlite:///autotune.db."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run() -> None:
    """Run the command line; errors of ours are shown without a traceback."""
    try:
        app()
    except AutotuneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in _OF_SOME_COMMANDS:
            raise
        package = _OF_SOME_COMMANDS[error.name]
        print(
            f"error: this needs {package}, which is not installed: pip install {package}",
            file=sys.stderr,
        )
        sys.exit(BadInput.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(context_settings={"ignore_unknown_options": True})
def init(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY.yaml] [-- COMMAND]",
            help="File to write (study.yaml), and your own launch command.",
        ),
    ] = None,
) -> None:
    """Write a commented study.yaml to start from: of your launch command after `--`, which is run for a
    few steps and looked at; else an example, and one of a workload of your own."""
    from autotune.standalone.starter import write_of_command, write_study, write_workload

    path, command = _path_and_command(words or [])
    if command:
        print(f"{path} written: {write_of_command(path, command, _tell)}")
        print(f"next: autotune doctor {path}, or at once: autotune start {path}")
        return
    write_study(path)
    print(f"{path} written; edit it, then: autotune start {path}")
    if workload := write_workload(path.parent):
        print(f"{workload} written: put your own model there; `workload: {workload.stem}:build`")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _path_and_command(words: list[str]) -> tuple[Path, list[str]]:
    """A study file comes first, if it is there; whatever follows is a command. A single word is a file,
    whatever its name, unless it is a script."""
    is_file = len(words) == 1 and not words[0].endswith(".py")
    if words and (is_file or Path(words[0]).suffix in (".yaml", ".yml")):
        return Path(words[0]), words[1:]
    return Path("study.yaml"), words


@app.command(context_settings={"ignore_unknown_options": True})
def start(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[STUDY.yaml] [-- COMMAND]",
            help="The study.yaml; with your own launch command it is written first.",
        ),
    ],
    storage: StorageOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in this process, without a daemon.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a study, or go on with it. Ctrl-C only stops following; the study runs on."""
    from autotune.spec import load
    from autotune.spec.document import read

    study, command = _path_and_command(words)
    if command:
        from autotune.standalone.starter import write_of_command

        print(f"{study} written: {write_of_command(study, command, _tell)}", flush=True)
    spec = load(study)
    # Imported once the file is known to be right: with it come Optuna and SQLAlchemy.
    from autotune.service.submission import refuse_elsewhere, submit

    url = _url(storage, spec.storage)
    try:
        repository = _open(url)
    except BadInput as error:
        if storage is not None or spec.storage is None:
            raise
        raise BadInput(f"{read(study).where(('storage',))}: storage: {error}") from None
    if not foreground:
        refuse_elsewhere(repository, spec.name)
    submitted = submit(repository, spec, Path.cwd(), study)
    _attend(repository, submitted.name, detach, foreground, as_json)


@app.command()
def resume(
    study: StudyArgument,
    storage: StorageOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in this process, without a daemon.")
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Move it to this machine from the one it was on.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study that was stopped or has failed, with its stored settings."""
    from autotune.service.submission import go_on, move_here, refuse_elsewhere

    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    if here:
        move_here(repository, name)
    if not foreground:
        refuse_elsewhere(repository, name)
    go_on(repository, name)
    _attend(repository, name, detach, foreground, as_json)


@app.command()
def stop(study: StudyArgument, storage: StorageOption = None) -> None:
    """Stop a study; its running trial is given up, everything recorded stays."""
    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    if repository.studies.named(name).state.ended:
        print(f"{name} is not running ({repository.studies.named(name).state}).")
        return
    repository.studies.request_stop(name)
    ended = repository.studies.named(name).state.ended
    print(
        f"{name} {'is stopped' if ended else 'stops within seconds'}; autotune resume {name} goes on."
    )


@app.command()
def delete(study: StudyArgument, storage: StorageOption = None) -> None:
    """Delete a study that has ended: what is recorded of it, its trials, its logs. best.yaml stays."""
    from autotune.service import cleaning

    url, name = _locate(study, storage)
    gone = cleaning.delete(_open(url, existing=True), name)
    print(f"{name} is deleted{''.join(f', with {folder}' for folder in gone)}.")


@app.command()
def clean(storage: StorageOption = None) -> None:
    """Remove logs and compiled code of studies that have ended or are deleted, and copies of settings
    files that no job has any more; records stay."""
    from autotune.service import cleaning

    gone = cleaning.clean(_open(_url(storage), existing=True), Path.cwd())
    print("\n".join(map(str, gone)) or "There is nothing to remove.")


@app.command()
def watch(study: StudyArgument, storage: StorageOption = None) -> None:
    """Follow a study that a daemon runs."""
    from autotune.service.follow import conclusion, exit_code, follow

    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    study_now = repository.studies.named(name)
    ended = _interruptible(repository, name, lambda: follow(repository, study_now))
    print(conclusion(repository, ended, _export_path(ended)))
    raise typer.Exit(exit_code(ended))


@app.command()
def status(
    study: StudyArgument, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Where a study stands."""
    from autotune.views.overview import describe, status_of

    url, name = _locate(study, storage)
    standing = status_of(_open(url, existing=True), name)
    print(json.dumps(standing, indent=2) if as_json else describe(standing))


@app.command("list")
def list_(storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """All studies in the storage."""
    from autotune.views.overview import status_of, table

    repository = _open(_url(storage), existing=True)
    rows = [status_of(repository, study.name) for study in repository.studies.all()]
    print(json.dumps(rows, indent=2) if as_json else table(rows))


@app.command()
def logs(
    study: StudyArgument,
    trial: Annotated[int | None, typer.Option(help="What the ranks of this trial printed.")] = None,
    storage: StorageOption = None,
) -> None:
    """What a study's daemon had to say, or what a trial printed."""
    from autotune.views.logs import study_log, trial_log

    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    lines = study_log(repository, name) if trial is None else trial_log(repository, name, trial)
    for line in lines:
        print(line)


@app.command()
def export(
    study: Annotated[str, typer.Argument(help="Name of a study, its study.yaml, or a best.yaml.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File; else of a study as it says; all else is printed."
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="yaml, json, env, argv, hf-trainer, accelerate, lightning, deepspeed, hydra or "
            "torchtitan.",
        ),
    ] = "yaml",
    trials: Annotated[
        Path | None,
        typer.Option(help="Write all attempts as CSV there instead; -: print them."),
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Write what a study recommends, or has in hand by now, as best.yaml or in the terms of another
    tool; or all attempts as CSV."""
    from autotune.export import best, formats, offering, writing
    from autotune.views.in_hand import in_hand

    formats.known(form)
    if trials and form != "yaml":
        raise BadInput(f"--trials writes CSV, not {form}; leave one of the two out")
    if study.endswith((".yaml", ".yml")) and best.is_best(study):
        if trials:
            raise BadInput(f"{study} holds no attempts; give the name of the study")
        _hand_over(_best_in(Path(study), best.read), form, output)
        return
    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    stored = repository.studies.named(name)
    if trials:
        _write_attempts(repository, name, trials)
        return
    answer = in_hand(repository, stored)
    if form != "yaml":
        _hand_over(best.of(offering.offered(repository, stored, answer)), form, output)
        return
    target = output or _export_path(stored)
    if output is None and (refused := writing.not_ours(target)):
        raise BadInput(refused)
    if offering.export(repository, stored, answer, target):
        print(answer.sentence, file=sys.stderr)
    print(target)


def _write_attempts(repository: "Repository", name: str, target: Path) -> None:
    from autotune.views.frame import attempts_frame

    frame = attempts_frame(repository, name)
    if str(target) == "-":
        hand_over(frame.to_csv(index=False))
        return
    try:
        frame.to_csv(target, index=False)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error}") from None
    print(target)


def _hand_over(best: "BestConfig", form: str, target: Path | None) -> None:
    """Print or write a recommendation in a format; what that cannot say goes to standard error."""
    from autotune.export.formats import FORMATS, remarks
    from autotune.export.writing import write_text

    said = FORMATS[form](best)
    if best.provisional:
        print(best.provenance["verdict"], file=sys.stderr)
    for line in remarks(form, said):
        print(line, file=sys.stderr)
    if target is None:
        hand_over(said.text)
        return
    try:
        write_text(target, said.text)
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    print(target)


def _best_in(path: Path, read: Callable[[Path], "BestConfig"]) -> "BestConfig":
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}") from None


@app.command("run", context_settings={"ignore_unknown_options": True})
def run_job(
    best: Annotated[
        Path, typer.Argument(help="The best.yaml of a study over a script or command.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="Your launch command, after `--`; a study over a command has it already."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Say when the job is slower than was measured.")
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(help="For --watch, on loopback; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    queue_on_drift: Annotated[
        bool,
        typer.Option("--queue-on-drift", help="Tune again if the job is slower as it ends."),
    ] = False,
    storage: StorageOption = None,
) -> None:
    """Run your own job with the recommended configuration."""
    from autotune.export.best import load

    config = _best_in(best, load)
    if not watch and (metrics_port or queue_on_drift):
        raise BadInput("--metrics-port and --queue-on-drift go with --watch")
    watcher: contextlib.AbstractContextManager[dict[str, str]] = contextlib.nullcontext({})
    if watch:
        watcher = _watched(config, metrics_port, queue_on_drift, storage)
    with watcher as variables:
        _become(config, command, variables)


def _become(best: "BestConfig", command: list[str] | None, variables: dict[str, str]) -> NoReturn:
    """Have the job take the place of this program, with these variables besides its own."""
    # Imported once a watcher was forked: they bring libraries that start threads.
    from autotune.export.command import recommended
    from autotune.export.job import Job, tuned

    job = tuned(best, command, os.environ) if command else Job(recommended(best), {}, ())
    for difference in job.differences:
        print(f"autotune: {difference}; what was measured may not hold", file=sys.stderr)
    environment = {**os.environ, **job.environment, **variables}
    try:
        os.execvpe(_found(job.command[0]), list(job.command), environment)
    except OSError as error:
        raise BadInput(f"{job.command[0]} cannot be run: {error.strerror}") from None


@contextlib.contextmanager
def _watched(
    best: "BestConfig", port: int, queue: bool, storage: str | None
) -> Iterator[dict[str, str]]:
    """Have this process watched; by what variable of the environment its ranks know."""
    from autotune.service.beside import watched
    from autotune.service.wishes import Wishes
    from autotune.trial.inject.pace import ADDRESS

    if best.script is None or "command" in best.script:
        raise BadInput("--watch sees the optimizer steps of a script, and best.yaml is of none")
    if queue:  # the study is there
        _open(_url(storage), existing=True).studies.named(best.provenance["study"])
    with watched(best, Wishes(port, _url(storage) if queue else None)) as address:
        yield {ADDRESS: address}


def _found(program: str) -> str:
    """A program of the user's: on the path, else beside this interpreter, as torchrun is."""
    beside = Path(sys.executable).parent / program  # which leaves an absolute path as it is
    return str(beside) if shutil.which(program) is None and beside.is_file() else program


@app.command()
def report(
    study: StudyArgument,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute the figures again from the timed blocks.")
    ] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """The verdict in full, or before there is one what the study has in hand, and what supports it."""
    from autotune.views import paper
    from autotune.views.in_hand import in_hand
    from autotune.views.recompute import recomputed_verdict
    from storage import Attempts

    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    stored = repository.studies.named(name)
    verdict = recomputed_verdict(repository, name) if recompute else in_hand(repository, stored)
    if as_json:
        attempts = Attempts(repository.attempts.of(stored.id), {})
        ran = paper.how_it_ran(repository, attempts, verdict.trial)
        shown = {**verdict.as_dict(), "running": ran and dataclasses.asdict(ran)}
        print(json.dumps(shown, indent=2))
    else:
        print(paper.report(repository, name, verdict))


@app.command()
def dashboard(
    study: StudyArgument,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8080,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    storage: StorageOption = None,
) -> None:
    """Open the study in optuna-dashboard, on loopback only, for whoever has the address it prints."""
    from autotune.paths import dashboard_link
    from autotune.views.dashboard import opened, serve

    url, name = _locate(study, storage)
    repository = _open(url, existing=True)
    repository.studies.named(name)
    with contextlib.ExitStack() as until_it_ends:

        def ready(address: str) -> None:
            told = f"{name}: {address}  (Ctrl-C ends it; it can delete studies, so keep it to yourself)"
            print(told, flush=True)
            if browser:
                until_it_ends.enter_context(opened(address, dashboard_link(Path.cwd())))

        serve(repository.database, name, port, ready)


@app.command()
def doctor(
    study: Annotated[Path | None, typer.Argument(help="A study.yaml to check for.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: what a study needs, and what would make its figures wrong."""
    from autotune.spec import load
    from autotune.standalone.doctor import examine

    spec = load(study) if study else None
    checks = []
    for check in examine(spec, _url(storage, spec.storage if spec else None)):
        checks.append(check)
        if not as_json:
            print(f"{check.level:5} {check.name}: {check.text}")
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    raise typer.Exit(int(any(check.level == "fail" for check in checks)))


@app.command()
def diagnose(
    study: Annotated[Path, typer.Argument(help="The study.yaml whose baseline is looked at.")],
    as_json: JsonOption = False,
) -> None:
    """Profile the baseline: what holds it back, and which knobs answer that."""
    from autotune.paths import StudyPaths
    from autotune.spec import load
    from autotune.standalone.diagnosis import described
    from autotune.standalone.diagnosis import diagnose as examine

    spec = load(study)
    diagnosis = examine(spec, StudyPaths(Path.cwd(), spec.name).diagnosis, Path.cwd())
    if as_json:
        print(json.dumps(dataclasses.asdict(diagnosis), indent=2, default=str))
    else:
        print("\n".join(described(diagnosis)))


@app.command()
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
    """Measure every configuration of a space, for a replay table. Again: go on where it stopped."""
    from autotune.spec import load
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


@app.command()
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
    """Run a study over a recorded table: how many trials, how long, which verdict."""
    from autotune.spec import load
    from autotune.standalone.simulation import described
    from autotune.standalone.simulation import simulate as play

    found = play(table, load(study) if study else None, seed)
    if as_json:
        shown = {**dataclasses.asdict(found), "shortfall": found.shortfall}
        print(json.dumps(shown, indent=2))
    else:
        print("\n".join(described(found)))


@app.command()
def knobs() -> None:
    """Print the catalogue of knobs, in Markdown."""
    from autotune.views.catalogue import knobs_page

    print(knobs_page({}), end="")


@app.command()
def presets() -> None:
    """Print the search spaces that have a name: what each is for, and its values per knob."""
    from autotune.views.presets import presets_listed

    print("\n".join(presets_listed()))


@app.command()
def schema() -> None:
    """Print the JSON Schema of study.yaml."""
    from autotune.spec import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command()
def daemon(
    cluster: Annotated[
        str | None, typer.Option(help="Where: host:NAME or ray:ADDRESS; this machine.")
    ] = None,
    idle_exit: Annotated[
        float | None, typer.Option(help="Leave after so many seconds without a study.")
    ] = None,
    storage: StorageOption = None,
    storage_on_stdin: Annotated[
        bool, typer.Option("--storage-on-stdin", help="Read the storage URL as a line of input.")
    ] = False,
) -> None:
    """Run what you queue with this Python and these devices. `start` starts one by itself."""
    from autotune.service.daemon import Daemon, this_cluster
    from autotune.service.queues import owned

    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    url = sys.stdin.readline().strip() if storage_on_stdin else _url(storage)
    running = Daemon(_open(url), owned(cluster) if cluster else this_cluster())
    _on_signals(running.shut_down)
    running.serve(idle_seconds=idle_exit)


def _attend(
    repository: "Repository", name: str, detach: bool, foreground: bool, as_json: bool
) -> None:
    """See that a submitted study runs, and follow it."""
    from autotune.service.follow import conclusion, exit_code, follow
    from autotune.service.submission import Keeper
    from autotune.views.overview import status_of

    study = repository.studies.named(name)
    # The daemon works in the study's folder: a relative path must not be taken from there.
    absolute = repository.database.url.render_as_string(hide_password=False)
    keep_alive = _run_here(repository, study) if foreground else Keeper(repository, study, absolute)
    if not study.state.ended:
        keep_alive()
    if detach:
        print(
            f"{name} is {repository.studies.named(name).state}; autotune watch {name} follows it."
        )
        return
    # What a script reads is the JSON alone; people still see the rest.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        ended = _interruptible(repository, name, lambda: follow(repository, study, keep_alive))
        print(conclusion(repository, ended, _export_path(ended)))
    if as_json:
        print(json.dumps(status_of(repository, name), indent=2))
    raise typer.Exit(exit_code(ended))


def _run_here(repository: "Repository", study: "StoredStudy") -> Callable[[], None]:
    """Run the study in a thread of this process; returns a check that it is run."""
    from autotune.service.daemon import Daemon
    from autotune.service.submission import Here

    running = Daemon(repository, study.cluster)
    _on_signals(running.stop)
    return Here(repository, study, running)


def _interruptible(
    repository: "Repository", name: str, action: Callable[[], "StoredStudy"]
) -> "StoredStudy":
    from autotune.service.follow import detached

    try:
        return action()
    except KeyboardInterrupt:
        print(detached(repository, name))
        raise typer.Exit(0) from None


def _on_signals(leave: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave())


def _open(url: str, *, existing: bool = False) -> "Repository":
    """The repository behind a URL; with `existing`, a SQLite file that is not there is an error."""
    from storage import Database, Repository
    from storage.database import parse

    parsed = parse(url)
    if (
        existing
        and parsed.get_backend_name() == "sqlite"
        and not Path(parsed.database or "").exists()
    ):
        raise BadInput(
            f"there is no {parsed.database}; go to the folder where the study was started, or "
            "give its study.yaml or --storage"
        )
    return Repository(Database(url))


def _url(*given: str | None) -> str:
    named = (url for url in given if url is not None)
    return next(named, os.environ.get("AUTOTUNE_STORAGE") or DEFAULT_STORAGE)


def _locate(study: str, storage: str | None) -> tuple[str, str]:
    """(storage URL, study name) for a name or a study.yaml."""
    if study.endswith((".yaml", ".yml")):
        from autotune.spec import identified

        name, named = identified(Path(study))
        return _url(storage, named), name
    return _url(storage), study


def _export_path(study: "StoredStudy") -> Path:
    return Path(study.workdir, study.spec["export"])
