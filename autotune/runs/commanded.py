"""From a configuration to the trial of a command, which starts its own ranks."""

import dataclasses
import os
from pathlib import Path

from autotune.config import StudySpec, commands, fields
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import Command, TrialRequest

_THREADS = "OMP_NUM_THREADS"


def request(asked: TrialRequest, spec: StudySpec, ranks: int) -> TrialRequest:
    """The same trial of the command of a study: one process that has the processors of all ranks.

    Args:
        asked: of ranks that would be started here.
        spec: over a command.
        ranks: of a trial.
    """
    workload = spec.workload
    assert workload.command is not None
    folder = str(TrialFiles(Path(asked.log_dir)).command().absolute())
    told = workload.throughput
    differing = {n: v for n, v in asked.knobs.items() if v != spec.full_baseline()[n]}
    given = fields.given(
        commands.argv(workload.command, asked.knobs, folder),
        spec.flags,
        {name: value for name, value in differing.items() if name in spec.flags},
        variables=asked.env,
        workdir=Path(asked.workdir),
        folder=TrialFiles(Path(asked.log_dir)).copies(),
        in_process=False,
    )
    # Agents have a value of their own.
    threads = {_THREADS: os.environ[_THREADS]} if _THREADS in os.environ else {}
    return dataclasses.replace(
        asked,
        world_size=1,
        cpus_per_rank=ranks * asked.cpus_per_rank,
        import_paths=(),
        copies=given.copies,
        env={**threads, **asked.env},
        command=Command(
            argv=given.arguments,
            folder=folder,
            json_lines=commands.filled((told and told.json_lines) or "", {"folder": folder}),
            pattern=(told and told.pattern) or "",
            tokens=spec.counts == "tokens",
        ),
    )
