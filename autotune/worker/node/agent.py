"""Agent of one slot on one node: a fork server with torch preloaded.

It runs one trial after another, or several interleaved ones. It reads commands as JSON lines from
standard input, first of all what to import besides torch, and writes reports to standard output.
When its input ends, the process that started it is gone: the agent kills everything it started and
exits.

It does not import torch itself. The fork server does, once, and every process that needs torch is
forked from there.
"""

import argparse
import array
import contextlib
import dataclasses
import fcntl
import multiprocessing
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from autotune.worker import interpreter, proc, processes
from autotune.worker.files import folder_for_sockets
from autotune.worker.imports import PRELOAD_FILE
from autotune.worker.node.store import StoreProcess
from autotune.worker.node.trial import NodeTrial
from autotune.worker.protocol import (
    PROTOCOL,
    Configure,
    EndTrial,
    Heartbeat,
    Hello,
    Message,
    NodeReport,
    Outcome,
    RankEnd,
    StartTrial,
    Turn,
    from_line,
)
from autotune.worker.sandbox import scratch

_SIOCGIFCONF = 0x8912
_RECORD = struct.Struct("16s4x4s16x")
"""An address of an interface, as the kernel lists them: name, IPv4 address."""
_MOST_ADDRESSES = 4096
# DDP and the optimizers import torch._dynamo on first use: a second per trial if it were not here.
_PRELOADED = [
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.onnx",
    "autotune.worker.rank.main",
    "autotune.worker.node.trial",
    "autotune.worker.node.preloaded",
]
_PROGRESS_CHECK_SECONDS = 0.1
HEARTBEAT_SECONDS = 5.0
_GAP_SECONDS = 3.0
"""Longest regular interval between two checks of the ranks, which come ten times a second.

After a longer one the node was suspended.
"""
_FAREWELL_SECONDS = 5.0
_READ_BYTES = 1 << 20


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address, e.g. 'eth0'.

    gloo and NCCL would go by the host's name, which may resolve to loopback.

    Raises:
        OSError: no interface of this node has it.
    """
    if address.startswith("127."):
        return "lo"
    for name, found in _ipv4_addresses():
        if found == address:
            return name
    raise OSError(f"no network interface of this node has the address {address}")


def _ipv4_addresses() -> Iterator[tuple[str, str]]:
    """Yield interfaces with their addresses; one may have several."""
    room = array.array("B", bytes(_MOST_ADDRESSES * _RECORD.size))
    request = struct.pack("iP", len(room), room.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        filled, _ = struct.unpack("iP", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))
    for label, packed in _RECORD.iter_unpack(room.tobytes()[:filled]):
        name = label.split(b"\0")[0].partition(b":")[0]  # `eth0:1` is the interface eth0
        yield os.fsdecode(name), socket.inet_ntoa(packed)


def main() -> NoReturn:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(prog="autotune-agent")
    parser.add_argument("--host", required=True, help="address that the ranks' store listens on")
    arguments = parser.parse_args()
    reports = os.dup(1)
    os.dup2(2, 1)  # a stray print must not corrupt the reports
    processes.become_subreaper()
    agent = Agent(commands=0, reports=reports, host=arguments.host)
    status = 1
    try:
        agent.serve()
        status = 0
    except SystemExit as left:
        print(left, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    _let_go_of_shared_memory()
    try:
        processes.kill_descendants(set(), _FAREWELL_SECONDS)
    except processes.Survivors as survivors:
        print(f"left behind: {survivors}", file=sys.stderr)
    scratch.finish(_FAREWELL_SECONDS)
    with contextlib.suppress(OSError):  # no folder can be made where none was yet
        # An ordinary exit would remove it, with the fork server's socket.
        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    sys.stderr.flush()
    os._exit(status)  # an ordinary exit waits for ranks, which may not be able to die


def _let_go_of_shared_memory() -> None:
    """Let the process that removes shared memory of this one end by itself, once all others have."""
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None:
        os.close(tracker._fd)
        tracker._fd = None


class Agent:
    """Server of one trial at a time, or of several interleaved ones."""

    def __init__(self, commands: int, reports: int, host: str) -> None:
        self._commands = commands
        self._reports = reports
        self._host = host
        self._unread = b""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        os.environ[PRELOAD_FILE] = self._first_command_file()
        with interpreter.fork_server_settings(), _sockets_of_multiprocessing():
            forkserver.ensure_running()
        del os.environ[PRELOAD_FILE]
        self._helpers = processes.descendants(os.getpid())
        self._trials: dict[str, NodeTrial] = {}
        self._checked_at = self._beat_at = time.monotonic()

    def serve(self) -> None:
        """Answer commands until the input ends."""
        hello = self._introduction(self._interface())
        # One store for all trials.
        self._store = StoreProcess(self._context, self._host)
        self._helpers.add(self._store.pid)
        self._send(dataclasses.replace(hello, store_port=self._store.port))
        while True:
            watched: list[Any] = [self._commands]
            for trial in self._trials.values():
                watched += trial.waitables()
            ready = wait(watched, timeout=_PROGRESS_CHECK_SECONDS if self._busy else None)
            self._beat()
            if self._commands in ready and not self._read_commands():
                return
            self._attend()

    def _interface(self) -> str:
        """Return the interface of the agent's address; tell the launcher and leave if there is none."""
        try:
            return interface_of(self._host)
        except OSError as error:
            why = str(error)
        self._send(Hello(os.getpid(), 0, "", {}, protocol=PROTOCOL, cannot_start=why))
        sys.exit(why)

    @property
    def _busy(self) -> bool:
        """Return whether there is a trial to watch."""
        return not all(trial.rests for trial in self._trials.values())

    def _beat(self) -> None:
        """Send a heartbeat, and detect that this process was suspended."""
        now = time.monotonic()
        gap, self._checked_at = now - self._checked_at, now
        if not self._busy:
            return
        still = gap if gap > _GAP_SECONDS else 0.0
        if still:
            for trial in self._trials.values():
                trial.forgive(still)
        if now - self._beat_at >= HEARTBEAT_SECONDS or still:
            self._beat_at = now
            self._send(Heartbeat(next(iter(self._trials)), still))

    def _first_command_file(self) -> str:
        """Return the path of a file in memory with the first command, which says what to preload."""
        while b"\n" not in self._unread:
            data = os.read(self._commands, _READ_BYTES)
            if not data:
                sys.exit(0)
            self._unread += data
        command, _, self._unread = self._unread.partition(b"\n")
        descriptor = os.memfd_create("preload")
        os.write(descriptor, command)
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _read_commands(self) -> bool:
        data = os.read(self._commands, _READ_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle(from_line(line))
        return bool(data)

    def _handle(self, command: Message) -> None:
        if isinstance(command, StartTrial):
            self._start(command)
        elif isinstance(command, Turn) and command.trial in self._trials:
            self._trials[command.trial].take_turn(command)
        elif isinstance(command, Configure) and command.trial in self._trials:
            self._trials[command.trial].configure(command)
        elif isinstance(command, EndTrial) and command.trial in self._trials:
            self._trials[command.trial].end(hung=command.hung, on_purpose=command.on_purpose)

    def _start(self, command: StartTrial) -> None:
        name = command.request.trial
        self._store.forget_all_but([*self._trials, name])
        try:
            self._trials[name] = NodeTrial(
                command.request, command.placement, self._context, self._helpers
            )
        except OSError as error:
            self._refuse(command, error)

    def _refuse(self, command: StartTrial, error: OSError) -> None:
        with contextlib.suppress(processes.Survivors):
            processes.kill_descendants(self._helpers, keep=self._roots())
        placement = command.placement
        cause = f"ranks cannot be started: {error}"
        end = RankEnd(placement.first_rank, Outcome.ERROR, cause, at=time.time())
        self._send(NodeReport(command.request.trial, placement.node, (end,)))

    def _roots(self) -> list[int]:
        """Ranks of all trials."""
        return [pid for trial in self._trials.values() for pid in trial.roots]

    def _attend(self) -> None:
        for name, trial in list(self._trials.items()):
            for block in trial.pump():
                self._send(block)
            if trial.over():
                del self._trials[name]
                self._conclude(trial.clear(keep=self._roots()))

    def _conclude(self, report: NodeReport) -> None:
        """Report how a trial went, and exit if no other trial can follow it."""
        crippled = any(proc.state(pid) in "Z?" for pid in self._helpers)
        leaves = crippled or bool(report.stuck)
        self._send(dataclasses.replace(report, agent_leaves=leaves))
        if leaves:
            what = (
                f"left a process behind ({report.stuck})"
                if report.stuck
                else "killed the fork server"
            )
            sys.exit(f"a trial has {what}; a new agent is needed")

    def _send(self, message: Message) -> None:
        unsent = memoryview(message.to_line())
        while unsent:
            unsent = unsent[os.write(self._reports, unsent) :]

    def _introduction(self, interface: str) -> Hello:
        """Return the agent's greeting.

        It is made in a forked process, as CUDA must not be initialised in a process that ranks are
        forked from.
        """
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_introduce, args=(theirs, os.getpid(), interface))
        process.start()
        theirs.close()
        hello = from_line(ours.recv_bytes())
        assert isinstance(hello, Hello)
        process.join()
        return hello


@contextlib.contextmanager
def _sockets_of_multiprocessing() -> Iterator[None]:
    """Let multiprocessing choose its folder meanwhile, whatever TMPDIR is; it keeps that one."""
    usual, tempfile.tempdir = tempfile.tempdir, folder_for_sockets()
    try:
        yield
    finally:
        tempfile.tempdir = usual


def _introduce(connection: Connection, agent: int, interface: str) -> None:
    from autotune.worker.node import environment, preloaded

    unfit = preloaded.unfit()
    if unfit:
        print(f"Every rank is to import its libraries by itself: {unfit}.", file=sys.stderr)
    if not preloaded.began_cuda():
        fingerprint, devices = environment.describe(), environment.cuda_devices()
        told = (fingerprint, devices, unfit, PROTOCOL)
        unreadable = _energy_unreadable(preloaded.LOADED.energy_of, devices)
        hello = Hello(agent, 0, interface, *told, unreadable)
    elif preloaded.LOADED.modules:
        # No fork of this process can use the devices; the launcher starts another agent.
        hello = Hello(agent, 0, interface, {}, (), unfit, PROTOCOL)
    else:
        sys.exit(
            "No rank can use a device: CUDA begins before the fork, with torch or sitecustomize."
        )
    connection.send_bytes(hello.to_line())


def _energy_unreadable(asked: str, devices: Sequence[str]) -> str:
    """Return why the energy of the devices that are asked for cannot be read; empty if it can.

    Nothing is opened for a study that needs no energy.
    """
    from autotune.worker.observers import device, energy

    if asked == "cuda":
        return device.devices_unreadable(devices)
    return energy.processors_unreadable() if asked else ""


if __name__ == "__main__":
    main()
