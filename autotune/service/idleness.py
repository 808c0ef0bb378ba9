"""Launchers that wait until other processes leave this machine's devices idle.

Studies of autotune wait for each other in any case, see launchers.reservation. Here any other program
is waited for, before a study begins on this machine. A shared cluster keeps account of its devices.
"""

import subprocess
import time
from pathlib import Path

from autotune.config import StudySpec
from autotune.errors import LauncherError, NotHere
from autotune.runs.study_setup import OpenLauncher
from launchers import Busy, Launcher, DeviceHolder, Tenant, layout

_STAT = Path("/proc/stat")
_IDLE_FIELDS = slice(3, 5)
"""idle and iowait of a processor in /proc/stat; see proc_stat(5)."""
_SAMPLE_SECONDS = 2.0
_POLL_SECONDS = 5.0
_LOADED = 0.2
"""Share of the processors' time that is taken by others at least, to count as load: a desktop and
its services stay below."""
_SMI_SECONDS = 30.0


def when_idle(open_launcher: OpenLauncher) -> OpenLauncher:
    """Return a function that opens a launcher once other processes leave the devices idle."""

    def opened(spec: StudySpec, folder: Path, busy: Busy, tenant: Tenant) -> Launcher:
        while not spec.launcher.is_shared and (load := load_of_others()):
            busy(DeviceHolder(0, load))
            time.sleep(_POLL_SECONDS)
        return open_launcher(spec, folder, busy, tenant)

    return opened


def load_of_others() -> str:
    """Return what loads the devices that this process may use; empty if they are idle."""
    visible = layout.visible_devices()
    return _on_gpus(visible) if visible else _on_processors()


def _on_gpus(visible: list[str]) -> str:
    """Return which process uses these devices; empty if none does.

    Raises:
        LauncherError: the driver does not tell at present.
        NotHere: there is no nvidia-smi.
    """
    query = ["nvidia-smi", f"--id={','.join(visible)}", "--query-compute-apps=pid,process_name"]
    try:
        found = subprocess.run(
            [*query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SMI_SECONDS,
        )
    except FileNotFoundError as error:
        raise NotHere(f"--idle-only needs nvidia-smi, which tells what runs: {error}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LauncherError(f"--idle-only: nvidia-smi does not tell what runs: {error}") from None
    running = [line.strip() for line in found.stdout.splitlines() if line.strip()]
    return f"process {running[0]} uses the devices" if running else ""


def _on_processors() -> str:
    before = _times()
    time.sleep(_SAMPLE_SECONDS)
    after = _times()
    total = sum(map(sum, after)) - sum(map(sum, before))
    idle = sum(sum(t[_IDLE_FIELDS]) for t in after) - sum(sum(t[_IDLE_FIELDS]) for t in before)
    return "other processes load the processors" if total and 1 - idle / total > _LOADED else ""


def _times() -> list[list[int]]:
    """Return the counters of each processor that this process may use."""
    own = {f"cpu{name.split()[-1]}" for name in layout.processors()}
    lines = [line.split() for line in _STAT.read_text().splitlines()]
    return [[int(value) for value in values] for name, *values in lines if name in own]
