"""Trials without ranks: slots that answer from a recorded table or a function, in virtual time."""

from launchers.replay.answers import Answer, Behaviour, Launch, SpeedVariation
from launchers.replay.launcher import ENVIRONMENT, ReplayLauncher, ReplaySlot

__all__ = [
    "ENVIRONMENT",
    "Answer",
    "Behaviour",
    "Launch",
    "ReplayLauncher",
    "ReplaySlot",
    "SpeedVariation",
]
