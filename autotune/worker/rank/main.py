"""One rank of a trial, in a process of its own that was forked with torch already imported."""

import contextlib
import datetime
import faulthandler
import io
import os
import random
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from autotune.worker import failure, imports, interpreter, proc, processes, workload
from autotune.worker.effects import precision, process
from autotune.worker.files import TrialFiles
from autotune.worker.inject import spawning
from autotune.worker.observers import memory, reserve
from autotune.worker.observers.progress import Progress
from autotune.worker.protocol import (
    PLAIN,
    SPAWN,
    Placement,
    TrialRequest,
    WorkloadBuilt,
)
from autotune.worker.rank import execution, profiling, rendezvous, script_process, warm_worker
from autotune.worker.rank.command_run import CommandRun
from autotune.worker.rank.context import ALONE, OwnTurns, RankContext, TakenTurns, Turns
from autotune.worker.rank.line import RankLine
from autotune.worker.rank.loop import TrainingLoop, of_longest
from autotune.worker.rank.norms import UpdateNorms
from autotune.worker.rank.quiet import plain_autocast
from autotune.worker.rank.script_run import ScriptRun
from autotune.worker.rank.surveying import SurveyRun
from autotune.worker.rank.training import no_span, run_blocks
from autotune.worker.rank.trajectory import run_trajectory
from autotune.worker.rank_devices import device_of
from autotune.worker.sandbox import uploads

_AGENT_IS_GONE = 86
_RUNNING = (
    *(__file__, execution.__file__, script_process.__file__),
    *("<frozen runpy>", runpy.__file__, "<frozen importlib._bootstrap_external>"),
)
"""Files of frames above a script in its traceback."""
_COLLECTIVE_TIMEOUT = datetime.timedelta(days=1)  # the agent judges hangs, by progress


def main(
    request: TrialRequest, placement: Placement, local_rank: int, connection: Connection
) -> NoReturn:
    """Train, report to the agent, and exit without tearing anything down."""
    # As under torchrun. Where Linux shares out the processors by session, ranks in that of the agent
    # would have one share together, and be slower than the job is.
    os.setsid()
    rank = os.getpid()
    processes.end_first_without_memory()
    files = TrialFiles(Path(request.log_dir))
    _redirect_output(files.log(placement.first_rank + local_rank))
    turns = TakenTurns(connection)
    threading.Thread(target=turns.listen, args=(_die_with_agent,), daemon=True).start()
    progress = Progress(files.progress(placement.first_rank))
    line = RankLine(connection, placement.first_rank + local_rank, progress.counter(local_rank))
    try:
        _train(request, placement, local_rank, line, turns)
    except BaseException as error:
        at = time.time()
        with contextlib.suppress(Exception):  # of an object that a script has put for the stream
            traceback.print_exception(error.with_traceback(_of_user(error, request)))
        if os.getpid() != rank:
            execution.flush_output()
            os._exit(1)  # a script has forked this process: it does not speak for the rank
        line.leave(failure.outcome_of_error(error), _describe(error), at=at)
    line.leave(None, "finished")


def _of_user(error: BaseException, request: TrialRequest) -> TracebackType | None:
    """Return the traceback without the frames that started the script."""
    place = error.__traceback__
    while request.script and place and place.tb_frame.f_code.co_filename in _RUNNING:
        place = place.tb_next
    return place or error.__traceback__


def _train(
    request: TrialRequest,
    placement: Placement,
    local_rank: int,
    line: RankLine,
    turns: TakenTurns,
) -> None:
    context = _context(request, placement, local_rank, turns)
    if request.command or request.script:
        execution.open_terminal()
    if request.command:
        _run_command(request, line)
    _prepare_process(request, placement, context)
    reserve.watch()
    if request.script:
        _run_script(request, placement, context, line)
    _join_group(request, placement, context)
    built = _build(request, placement, context, line)
    span = profiling.span if request.profile else no_span
    loop = TrainingLoop(built, request, context, line.progressed, span)
    report = line.report
    if request.stays:
        warm_worker.serve(loop, request, context, turns, report, _print_to)
    elif request.profile:
        subject = profiling.LoopSubject(loop, request.replicas)
        loop.take(profiling.run_profile(subject, request, context, report))
    elif request.trajectory:
        with plain_autocast(request.device) if request.autocast else nullcontext():
            loop.take(run_trajectory(loop, UpdateNorms(loop), request, context, report))
    else:
        loop.take(run_blocks(loop, request, context, report))
    dist.barrier()


def _context(
    request: TrialRequest, placement: Placement, local_rank: int, turns: TakenTurns
) -> RankContext:
    ranks = placement.local_world_size
    devices = _devices(request, local_rank, ranks)
    return RankContext(
        rank=placement.first_rank + local_rank,
        local_rank=local_rank,
        world_size=request.world_size,
        devices=devices,
        first_on_device=local_rank == 0 or devices != _devices(request, local_rank - 1, ranks),
        alone=request.alone
        if not request.devices_per_rank
        else ranks * request.devices_per_rank >= 1,
        turns=_turns(request, turns),
    )


def _turns(request: TrialRequest, taken: TakenTurns) -> Turns:
    if request.interleaved:
        return taken
    return OwnTurns(taken) if request.stays else ALONE


def _run_command(request: TrialRequest, line: RankLine) -> NoReturn:
    """Run a command.

    It uses the devices with ranks of its own, so this process does not touch them.
    """
    os.chdir(request.workdir)
    interpreter.restore()
    assert request.command is not None
    CommandRun(request, request.command, line).run()


def _run_script(
    request: TrialRequest, placement: Placement, context: RankContext, line: RankLine
) -> NoReturn:
    """Run a script with observers in place, and exit with its end."""
    assert request.script is not None
    uploads.begin()
    store, extra = _store(request, placement), dict[str, str]()
    if request.script.launch not in PLAIN:
        extra = rendezvous.variables(placement, context, store)
        os.environ.update(extra)
    if request.script.launch == SPAWN:
        spawning.join_spawned(context.local_rank, context.world_size, PrefixStore("groups", store))
    if request.script.survey:
        SurveyRun(request, context, line, store).run()
    built = _announcement(request, placement, context, line, extra)
    ScriptRun(request, context, line, PrefixStore("blocks", store), built).run()


def _build(
    request: TrialRequest, placement: Placement, context: RankContext, line: RankLine
) -> workload.Workload:
    announce = _announcement(request, placement, context, line)
    built = workload.build(request.factory, request.args, context.device, request.import_paths)
    if request.strict_fp32:
        precision.check_strict()
    announce()
    return of_longest(built, request) if request.longest else built


def _announcement(
    request: TrialRequest,
    placement: Placement,
    context: RankContext,
    line: RankLine,
    extra: Iterable[str] = (),
) -> Callable[[], None]:
    """Return a function that reports the workload as built.

    The report has the time since this call, and the modules imported meanwhile.

    Args:
        placement: of this node's ranks.
        extra: variables of the environment that this rank alone has, besides the usual ones.
    """
    brought, started = imports.ImportRecord(), time.perf_counter()

    def announce() -> None:
        seconds = time.perf_counter() - started
        if context.local_rank == 0:
            usual = {*process.VARIABLES, *execution.INTERFACES}
            own = {*environment(request, placement, context), *usual, *extra}
            preload = brought.preload(request, own)
            line.report(WorkloadBuilt(request.trial, placement.node, seconds, preload))

    return announce


def environment(
    request: TrialRequest, placement: Placement, context: RankContext
) -> dict[str, str]:
    """Return the variables of a rank beyond those of its agent."""
    own = processes.study_variables(request.env)
    # Settings of the allocator in the agent's environment must not be lost.
    allocator = process.allocator_variables({**os.environ, **own})
    of_launcher = _of_script if request.script else _of_workload
    return {
        **of_launcher(request, placement, context),
        **process.environment(request.knobs),
        **(uploads.OFFLINE if request.script else {}),
        **own,
        **(allocator if request.knobs["expandable_segments"] else {}),
    }


def _of_workload(
    request: TrialRequest, placement: Placement, context: RankContext
) -> dict[str, str]:
    threads = process.threads(request.knobs, request.cpus_per_rank, request.replicas)
    return {
        "RANK": str(context.rank),
        "LOCAL_RANK": str(context.local_rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        process.THREADS: str(threads),
        **execution.interfaces(placement),
    }


def _of_script(request: TrialRequest, placement: Placement, context: RankContext) -> dict[str, str]:
    assert request.script is not None
    ranks, variables = placement.local_world_size, {**os.environ, **request.env}
    by_launcher = execution.launcher_threads(request.script, ranks, variables)
    threads = request.knobs["cpu_threads"] or by_launcher
    return {
        **execution.launcher_variables(request.script, placement, context),
        **({process.THREADS: str(threads)} if threads else {}),
    }


def _devices(request: TrialRequest, local_rank: int, ranks: int) -> tuple[torch.device, ...]:
    if request.device == "cpu":
        return (torch.device("cpu"),)
    first = device_of(local_rank, ranks, request.devices_per_rank)
    return tuple(torch.device("cuda", first + replica) for replica in range(request.replicas))


def _prepare_process(request: TrialRequest, placement: Placement, context: RankContext) -> None:
    if request.script:
        interpreter.restore()
        execution.forget_tasks(request.script)
    before = os.environ.get(process.THREADS)
    os.environ.update(environment(request, placement, context))
    os.chdir(request.workdir)
    sys.path[:0] = [path for path in request.import_paths if path not in sys.path]
    # The launcher's number of threads is in force for a script, unless the environment changes it.
    if not request.script or os.environ.get(process.THREADS) != before:
        process.limit_threads(process.threads_of(os.environ))
    process.compile_workers(request.knobs, placement.local_world_size)
    if context.device.type == "cuda":
        _prepare_device(request, context)
    process.own_share(request.knobs, context.local_rank, placement.local_world_size)
    for device in context.devices:
        if not _begins_cuda(request, context):
            memory.reset_peak(device)
        if request.memory_per_rank is not None:
            alone = request.has_devices_alone
            memory.limit(device, request.memory_per_rank, alone=alone)
    random.seed(request.seed)
    # The same on every rank: ranks must build the same model. Data differ by the sampler.
    torch.manual_seed(request.seed)


def _prepare_device(request: TrialRequest, context: RankContext) -> None:
    process.allocator(request.knobs)
    if not _begins_cuda(request, context):
        torch.cuda.set_device(context.device)
    process.near_device(request.knobs, context.device)


def _begins_cuda(request: TrialRequest, context: RankContext) -> bool:
    """Return whether the script itself initialises CUDA, as where python starts it."""
    plain = request.script is not None and request.script.launch in PLAIN
    return plain and context.device.type == "cuda"


def _join_group(request: TrialRequest, placement: Placement, context: RankContext) -> None:
    whole_devices = context.device.type == "cuda" and request.devices_per_rank >= 1
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if whole_devices else "gloo",
        store=_store(request, placement),
        rank=context.rank,
        world_size=context.world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )


def _store(request: TrialRequest, placement: Placement) -> PrefixStore:
    """Return the part of the agent's store that belongs to this launch."""
    shared = TCPStore(
        placement.store_host,
        placement.store_port,
        is_master=False,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=request.timeouts.startup),
    )
    return PrefixStore(f"{request.trial}/{placement.secret}", shared)


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _redirect_output(log: Path) -> None:
    _print_to(log)
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(line_buffering=True)  # a rank is killed: nothing flushes for it
    faulthandler.enable()
    faulthandler.register(processes.DUMP_SIGNAL, all_threads=True)


def _die_with_agent() -> None:
    for pid in processes.descendants(os.getpid()):
        proc.kill(pid)
    os.killpg(0, signal.SIGKILL)
    os._exit(_AGENT_IS_GONE)


def _describe(error: BaseException) -> str:
    text, place = failure.message_of(error), failure.location_of(error)
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{named} ({place})" if place else named
