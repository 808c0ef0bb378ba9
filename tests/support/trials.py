"""Trials to ask for: the one builder of requests that all tests share."""

import uuid
from pathlib import Path
from typing import Any, TypeVar

import search_spaces
from autotune.worker.node.agent_process import AgentProcess
from autotune.worker.protocol import BlockPlan, Message, Timeouts, TrialRequest, from_line

Heard = TypeVar("Heard", bound=Message)
PATIENT = Timeouts(startup=60, step=60)
ENDLESS = 1_000_000
"""Blocks that no test waits for."""


def knobs(**changes: Any) -> dict[str, Any]:
    """The defaults of the catalogue, two samples a step; keyword arguments replace values."""
    return {**search_spaces.defaults(), "micro_batch": 2, "log_interval": 1, **changes}


def trial(folder: Path, factory: str = "tiny:build", **changes: Any) -> TrialRequest:
    """Four blocks of milliseconds on two CPU ranks, whose modules and logs are in the folder.

    Keyword arguments replace fields of the request.
    """
    name = uuid.uuid4().hex
    fields: dict[str, Any] = {
        "trial": name,
        "factory": factory,
        "args": {},
        "knobs": knobs(),
        "world_size": 2,
        "seed": 7,
        "device": "cpu",
        "blocks": BlockPlan(seconds=0.01, min_steps=2, max_blocks=4),
        "timeouts": PATIENT,
        "workdir": str(folder),
        "import_paths": (str(folder),),
        "log_dir": str(folder / "logs" / name),
    }
    return TrialRequest(**{**fields, **changes})


def of_one_rank(chosen: dict[str, Any], **changes: Any) -> TrialRequest:
    """What a single rank in this process is asked: nothing that a launcher would need."""
    fields: dict[str, Any] = {"world_size": 1, "seed": 3, "device": "cpu"}
    return TrialRequest("t", "m:f", {}, chosen, **{**fields, **changes})


def heard(agent: AgentProcess, kind: type[Heard]) -> Heard:
    """The next message of this kind from an agent."""
    while not isinstance(message := from_line(agent.read()), kind):
        pass
    return message
