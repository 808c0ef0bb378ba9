"""Launchers of ranks that trials can follow; each command is parsed by the launcher's own parser."""

import contextlib
import io
import logging
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import BadInput
from autotune.standalone.launched import Launched, by_torchrun
from autotune.worker.protocol import DEEPSPEED, PYTHON, TORCH_LAUNCH, TORCHRUN

RankLauncher = Callable[[Sequence[str]], Launched]
_MATPLOTLIB = "MPLCONFIGDIR"
"""Variable that names the folder of matplotlib's caches."""
_OTHER_PROCESSES = ("no_python", "run_path", "virtual_local_rank", "numa_binding")
"""Options of torchrun that make the ranks' processes differ from those of trials."""


def launched_by(
    launcher: RankLauncher, words: Sequence[str], variables: Mapping[str, str]
) -> Launched:
    """Return what a launcher makes of its arguments.

    Args:
        launcher: one of those below.
        variables: that the command sets for it; launchers read some, and keep them.

    Raises:
        BadInput: it refuses them, or trials cannot follow it.
    """
    with _environment(variables):
        return launcher(words)


def of_torchrun(words: Sequence[str]) -> Launched:
    """Return what torchrun makes of its arguments."""
    from torch.distributed.run import get_args_parser

    return _by_torchrun(_parsed("torchrun", get_args_parser().parse_args, words), TORCHRUN)


def of_torch_launch(words: Sequence[str]) -> Launched:
    """Return what `python -m torch.distributed.launch` makes of its arguments."""
    from torch.distributed.launch import parse_args

    args = _parsed("torch.distributed.launch", parse_args, words)
    return _by_torchrun(args, TORCHRUN if args.use_env else TORCH_LAUNCH)


def _by_torchrun(args: Namespace, launch: str) -> Launched:
    if odd := [name for name in _OTHER_PROCESSES if getattr(args, name, None)]:
        raise _unlike("torchrun", [f"--{name.replace('_', '-')}" for name in odd])
    nodes = int(str(args.nnodes).rpartition(":")[2])
    ranks = _ranks(str(args.nproc_per_node))
    return Launched(
        args.training_script,
        tuple(args.training_script_args),
        bool(args.module),
        None if ranks is None else nodes * ranks,
        launch=launch,
        nodes=nodes,
    )


def _ranks(text: str) -> int | None:
    """Return torchrun's number of ranks; None: one per device."""
    import torch
    from torch.distributed.run import determine_local_world_size

    if text == "gpu" or (text == "auto" and torch.cuda.is_available()):
        return None
    try:
        return int(determine_local_world_size(text))
    except ValueError as error:
        raise BadInput(f"torchrun does not take that: {error}") from None


def of_accelerate(words: Sequence[str]) -> Launched:
    """Return what `accelerate launch` makes of its arguments and of its configuration file."""
    if not words or words[0] != "launch":
        raise BadInput("of accelerate only `accelerate launch` runs a script")
    return of_accelerate_launch(words[1:])


def of_accelerate_launch(words: Sequence[str]) -> Launched:
    """Return what `accelerate-launch` makes of its arguments."""
    try:
        from accelerate.commands import launch
        from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env
    except ImportError:
        raise _not_installed("accelerate") from None
    args = _parsed("accelerate launch", launch.launch_command_parser().parse_args, words)
    if more := [*_more_than_ddp(args, _accelerate_file(args.config_file))]:
        raise _unlike("accelerate launch", more)
    try:
        with _quiet():
            args, _, _ = launch._validate_launch_command(args)
            if more := [*_more_than_ddp(args, {})]:  # what the file adds
                raise _unlike("accelerate launch", more)
            several = bool(args.multi_gpu and not args.cpu)
            env = (
                prepare_multi_gpu_env(args) if several else prepare_simple_launcher_cmd_env(args)[1]
            )
    except (ValueError, RuntimeError, AssertionError, OSError) as error:
        raise BadInput(f"accelerate launch does not take that: {error}") from None
    return Launched(
        args.training_script,
        tuple(args.training_script_args),
        bool(args.module),
        int(args.num_processes) if several else 1,
        {name: value for name, value in env.items() if os.environ.get(name) != value},
        launch=TORCHRUN if several else PYTHON,
        nodes=int(args.num_machines or 1) if several else 1,
    )


def _accelerate_file(named: str | None) -> dict[str, Any]:
    """Return the configuration that the launcher reads; empty if there is none.

    It is the file that is named, or that of `accelerate config`.
    """
    from accelerate.commands.config.config_args import default_config_file

    path = Path(named or default_config_file)
    if not named and not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"accelerate launch reads {path}, which cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _more_than_ddp(args: Namespace, file: Mapping[str, Any]) -> Iterator[str]:
    """Yield options of accelerate that need other processes than those of torchrun or python."""
    for name in ("use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "no_python"):
        if getattr(args, name, False):
            yield f"--{name}"
    if getattr(args, "mpirun_hostfile", None):
        yield "--mpirun_hostfile"
    kind = str(file.get("distributed_type", "NO")).upper()
    if kind not in ("NO", "MULTI_CPU") and not kind.startswith("MULTI_"):
        yield f"distributed_type: {kind}"
    if str(file.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        yield f"compute_environment: {file['compute_environment']}"


def of_deepspeed(words: Sequence[str]) -> Launched:
    """Return what deepspeed makes of its arguments."""
    try:
        from deepspeed.launcher.runner import parse_args
    except ImportError:
        raise _not_installed("deepspeed") from None
    args = _parsed("deepspeed", parse_args, words)
    odd = ("no_python", "bind_cores_to_rank", "elastic_training", "autotuning")
    if more := [f"--{name}" for name in odd if getattr(args, name, None)]:
        raise _unlike("deepspeed", more)
    nodes, workers = _of_hostfile(args) or _of_this_host(args)
    launched = Launched(
        args.user_script,
        tuple(args.user_args),
        bool(args.module),
        workers,
        launch=DEEPSPEED,
        nodes=nodes,
    )
    if args.no_local_rank:
        instead = by_torchrun(launched.words, str(launched.workers_per_node or "gpu"))
        raise BadInput(
            "deepspeed is told --no_local_rank, and trials give the script --local_rank as deepspeed "
            f"does by itself: leave it out if the script takes that, or give `{instead}`"
        )
    return launched


def _of_hostfile(args: Namespace) -> tuple[int, int] | None:
    """Return the nodes and ranks of deepspeed's file of hosts; None where there is none.

    Raises:
        BadInput: deepspeed refuses it, or the hosts differ.
    """
    from deepspeed.launcher import runner

    try:
        with _quiet():
            if not (slots := runner.fetch_hostfile(args.hostfile)):
                return None
            hosts = runner.parse_inclusion_exclusion(slots, args.include, args.exclude)
    except (OSError, ValueError) as error:
        raise BadInput(f"deepspeed does not take {args.hostfile}: {error}") from None
    few = [*hosts.values()][: args.num_nodes if args.num_nodes > 0 else None]
    each = {args.num_gpus if args.num_gpus > 0 else len(devices) for devices in few}
    if len(each) != 1:
        numbers = ", ".join(map(str, sorted(each))) or "no"
        raise BadInput(
            f"deepspeed starts {numbers} ranks on the hosts of {args.hostfile}, and trials have the "
            "same number on each: give --num_nodes and --num_gpus"
        )
    return len(few), len(few) * each.pop()


def _of_this_host(args: Namespace) -> tuple[int, int | None]:
    """Return the nodes and ranks without a file of hosts; no ranks: one per device."""
    from deepspeed.accelerator import get_accelerator

    nodes = max(1, args.num_nodes)
    if args.include or args.exclude:
        return nodes, _included(args.include, args.exclude)
    ranks = args.num_gpus if args.num_gpus > 0 else get_accelerator().device_count() or None
    return nodes, nodes * ranks if ranks else None


def _included(include: str, exclude: str) -> int:
    """Return the ranks of `--include host:0,1`."""
    _, named, slots = include.partition(":")
    if exclude or not named or "@" in include:
        given = f"--exclude {exclude}" if exclude else f"--include {include}"
        raise BadInput(
            f"deepspeed is told {given}: how many ranks that makes is not known here; name the devices "
            "of one host (--include localhost:0,1), or give --num_gpus"
        )
    return len(slots.split(","))


def of_fabric(words: Sequence[str]) -> Launched:
    """Return what `fabric run` makes of its arguments: it sets variables and calls torchrun."""
    if not words or words[0] != "run":
        raise BadInput("of fabric only `fabric run` runs a script")
    try:
        from click import ClickException

        with _without_font_cache():
            from lightning.fabric import cli
            from lightning.fabric.utilities.distributed import _suggested_max_num_threads
    except ImportError:
        raise _not_installed("fabric (pip install lightning)") from None
    try:
        with _quiet():
            params = cli._main.commands["run"].make_context("fabric run", [*words[1:]]).params
            args = Namespace(**params)
            env = _set_by(lambda: cli._set_env_variables(args))
            ranks = (
                1
                if args.strategy == "dp"
                else cli._get_num_processes(args.accelerator, args.devices)
            )
            threads = str(_suggested_max_num_threads())
    except (ClickException, ValueError, RuntimeError) as error:
        raise BadInput(f"fabric run does not take that: {error}") from None
    if "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = threads
    return Launched(
        args.script,
        tuple(args.script_args),
        False,
        ranks * args.num_nodes,
        env,
        launch=TORCHRUN,
        nodes=args.num_nodes,
    )


@contextlib.contextmanager
def _without_font_cache() -> Iterator[None]:
    """Let matplotlib, which lightning imports, write its font cache into a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        _environment({_MATPLOTLIB: folder}),
    ):
        yield


def _set_by(action: Callable[[], object]) -> dict[str, str]:
    """Return the variables that an action sets in this process, and restore the environment."""
    with _environment({}):
        before = dict(os.environ)
        action()
        return {name: text for name, text in os.environ.items() if before.get(name) != text}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and restore its environment afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _unlike(launcher: str, options: Sequence[str]) -> BadInput:
    return BadInput(
        f"{launcher} is told {', '.join(options)}, by its arguments or its configuration file: trials "
        "start ranks as torchrun does without it, and would measure another job; a study cannot take "
        "that over from there"
    )


def _not_installed(launcher: str) -> BadInput:
    return BadInput(f"{launcher} is not installed here, so that its arguments are not known")


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Suppress output and warnings of a launcher; yield the output."""
    output = io.StringIO()
    off = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            yield output
    finally:
        logging.disable(off)


def _parsed(
    launcher: str, parse: Callable[[list[str]], Namespace], words: Sequence[str]
) -> Namespace:
    with _quiet() as output:
        try:
            return parse(list(words))
        except SystemExit:
            last = output.getvalue().strip().splitlines()
            raise BadInput(f"{launcher} does not take that: {last[-1] if last else ''}") from None


LAUNCHERS: dict[str, RankLauncher] = {
    "torchrun": of_torchrun,
    "accelerate": of_accelerate,
    "accelerate-launch": of_accelerate_launch,
    "deepspeed": of_deepspeed,
    "fabric": of_fabric,
}
MODULES: dict[str, RankLauncher] = {
    "torch.distributed.run": of_torchrun,
    "torch.distributed.launch": of_torch_launch,
    "accelerate.commands.launch": of_accelerate_launch,
    "accelerate.commands.accelerate_cli": of_accelerate,
    "deepspeed.launcher.runner": of_deepspeed,
}
"""Launchers by the module behind `python -m`."""
