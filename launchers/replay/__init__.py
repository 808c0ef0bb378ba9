"""Trials without ranks: slots that answer from a recorded table or a function, in virtual time."""

from launchers.replay.answers import Answer, Behaviour, Launch
from launchers.replay.launcher import ENVIRONMENT, ReplayLauncher, ReplaySlot
from launchers.replay.speed import SpeedVariation

__all__ = [
    "ENVIRONMENT",
    "Answer",
    "Behaviour",
    "Launch",
    "ReplayLauncher",
    "ReplaySlot",
    "SpeedVariation",
]
