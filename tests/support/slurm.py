"""A real Slurm: its configuration, and one node of it on this machine for an allocation of a test."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.waiting import wait_for

PACKAGES = "slurm-wlm and munge"
"""Debian's packages of the programs."""
_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
_CONTROL_SECONDS = 180
_ADDRESS = "10.78.1.9"
"""Of this machine: Slurm finds no machine by a name where there is loopback alone."""
_PORT = 6818
"""Port of the first node's slurmd; each further node takes the next one."""
_CONF = """
ClusterName=test
SlurmctldHost={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
SlurmctldTimeout=30
SlurmdTimeout=60
MinJobAge=2
KillWait=10
UnkillableStepTimeout=60
SchedulerParameters=batch_sched_delay=0,sched_interval=2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1
"""
"""A job is suspended only where partitions share nodes; FORCE:1 lets no two jobs of one do so."""


def refusal() -> str:
    """Why there can be no Slurm here; empty: there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing:
        return f"{missing[0]} is not installed; Debian has it in {PACKAGES}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def _search_path() -> str:
    own = str(Path(sys.executable).parent)  # of `autotune`, which batch scripts call
    return os.pathsep.join([own, os.environ["PATH"], "/usr/sbin", "/sbin"])


class SlurmFolder:
    """Configuration, keys, state and logs of a cluster."""

    def __init__(self, folder: Path, control: str, nodes: Mapping[str, str]) -> None:
        """Write them.

        Args:
            control: host of slurmctld, as `NAME(ADDRESS)`.
            nodes: the rest of the line of each node.
        """
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # munged wants it
        self.folder = folder
        self.conf = folder / "slurm.conf"
        lines = "\n".join(f"NodeName={name} {rest}" for name, rest in nodes.items())
        self.conf.write_text(_CONF.format(folder=folder, control=control, nodes=lines))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)

    def add_devices(self, count: int) -> None:
        """Let each node have so many devices; ordinary files stand for them."""
        self.conf.write_text(f"GresTypes=gpu\n{self.conf.read_text()}")
        for number in range(count):
            (self.folder / f"gpu{number}").touch()
        listed = f"AutoDetect=off\nName=gpu File={self.folder}/gpu[0-{count - 1}]\n"
        (self.folder / "gres.conf").write_text(listed)

    def add_preemption(self, partitions: Mapping[str, str]) -> None:
        """Let jobs of a partition `urgent` preempt those of these partitions.

        Args:
            partitions: the rest of the line of each.
        """
        lines = [_PREEMPTION]
        lines += [f"PartitionName={name} Nodes=ALL {rest}" for name, rest in partitions.items()]
        self.conf.write_text("\n".join([self.conf.read_text(), *lines, ""]))

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which Slurm's programs find it."""
        return {"SLURM_CONF": str(self.conf), "PATH": _search_path()}

    def munged(self) -> list[str]:
        """The command of its authentication."""
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        return ["munged", "-F", "--force", f"--seed-file={self.folder}/munge.seed", *options]


@contextlib.contextmanager
def allocation(
    folder: Path, *options: str, cpus: int = 2, nodes: int = 1, devices: int = 0
) -> Iterator[dict[str, str]]:
    """The variables of a job on nodes that are all this machine, in a network of its own.

    Args:
        options: of salloc.
        devices: of each node, by Slurm's account; there are none.
    """
    host = socket.gethostname()
    has = f"CPUs={cpus} {f'Gres=gpu:{devices} ' if devices else ''}State=UNKNOWN"
    lines = {
        f"n{number + 1}": f"NodeHostname={host} NodeAddr={_ADDRESS} Port={_PORT + number} {has}"
        for number in range(nodes)
    }
    files = SlurmFolder(folder, f"{host}({_ADDRESS})", lines)
    if devices:
        files.add_devices(devices)
    daemons = [["slurmd", "-D", "-N", name] for name in lines]
    env = {**os.environ, **files.environment}
    subprocess.run(["ip", "address", "add", f"{_ADDRESS}/32", "dev", "lo"], check=True)
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "address", "del", f"{_ADDRESS}/32", "dev", "lo"])
        for command in (files.munged(), ["slurmctld", "-D"], *daemons):
            stack.callback(_end, _started(command, env, folder))
            if command[0] == "munged":
                wait_for((folder / "munge.sock").exists, "munged listens")
        wait_for(lambda: "idle" in _told("sinfo", "--noheader", env=env), "the node is idle")
        asked = ["salloc", f"--nodes={nodes}", f"--cpus-per-task={cpus}", *options, "--no-shell"]
        subprocess.run(asked, env=env, check=True, capture_output=True, timeout=_CONTROL_SECONDS)
        job = _told("squeue", "--noheader", "--format=%i", env=env).strip()
        yield {
            **files.environment,
            "SLURM_JOB_ID": job,
            "SLURM_CLUSTER_NAME": "test",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "7",
        }


def _started(command: list[str], env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out").open("ab") as log:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _told(*command: str, env: Mapping[str, str]) -> str:
    try:
        found = subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=_CONTROL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return found.stdout
