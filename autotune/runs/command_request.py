"""Request of a trial of a command, which starts its own ranks."""

import dataclasses
from pathlib import Path

from autotune.config import StudySpec, commands, fields
from autotune.worker.files import TrialFiles
from autotune.worker.protocol import Command, TrialRequest


def build(asked: TrialRequest, spec: StudySpec, ranks: int) -> TrialRequest:
    """Return the request of a study's command: one process with the processors of all ranks.

    Args:
        asked: request for ranks that would be started here.
        spec: settings of a study of a command.
        ranks: number of ranks of a trial.
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
    return dataclasses.replace(
        asked,
        world_size=1,
        cpus_per_rank=ranks * asked.cpus_per_rank,
        import_paths=(),
        copies=given.copies,
        command=Command(
            argv=given.arguments,
            folder=folder,
            json_lines=commands.filled((told and told.json_lines) or "", {"folder": folder}),
            pattern=(told and told.pattern) or "",
            tokens=spec.counts == "tokens",
        ),
    )
