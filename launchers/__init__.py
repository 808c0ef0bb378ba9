"""Launchers: the places where ranks run.

The section of a study's launcher opens it. Ray is imported by its driver's process only.
"""

from launchers.base import (
    Launcher,
    LauncherSection,
    Resources,
    Slot,
    SoloSchedule,
    TrialWatch,
    TurnSchedule,
)
from launchers.reservation import NO_HOLDER, Busy, DeviceHolder, refuse
from launchers.sections import section_of
from launchers.session import untimed_steps
from launchers.shares import Tenant
from launchers.site import Site

__all__ = [
    "NO_HOLDER",
    "Busy",
    "Launcher",
    "LauncherSection",
    "Resources",
    "DeviceHolder",
    "Site",
    "Slot",
    "SoloSchedule",
    "Tenant",
    "TrialWatch",
    "TurnSchedule",
    "refuse",
    "section_of",
    "untimed_steps",
]
