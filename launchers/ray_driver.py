"""The Ray driver in a process of its own.

Ray ends the process that it lives in when the raylet beside it, or the head, is gone.

Requests are lines of JSON (`call`, `id`, arguments), answers are lines with the same `id`. Reports
of agents come in between, with the number of their `link`. When the requesting process is gone the
driver gives everything back and leaves. Only this process imports this module; launchers.driver is
the other side.
"""

import base64
import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import ray
from ray import cloudpickle
from ray._private import state
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from autotune.errors import first_line
from autotune.worker.cgroup import usable_cpus
from autotune.worker.node.agent_process import ActorAgent
from autotune.worker.processes import VISIBLE_DEVICES
from launchers import node_info
from launchers.ray_token import own_token, read_again
from launchers.shares import Tenant, group_of, name_of

_LOOPBACK = "127.0.0.1"
_CALL_SECONDS = 30.0
_KNOCK_SECONDS = 5.0
_FAREWELL_SECONDS = 1.0
"""Time that an agent whose actor has died takes to notice and to clear its node."""
_LEAVE_SECONDS = 15.0
"""Timeout of the shutdown: Ray may wait for ever for a head that is gone."""
_DOUBT_SECONDS = 3.0
"""Time within which a raylet that has died stops answering."""
_DAEMON_SECONDS = 30.0
"""Silence of the daemon, which asks every few seconds, after which it counts as paused.

Another daemon may have its studies by now, and needs what is held for it."""
_TICK_SECONDS = 1.0
_MOST_SHOWN = 120
"""Longest shown part of a command line, in characters."""
_PENDING = ("PENDING", "PREPARED")
"""States of a placement group that has no room yet, or is just being granted."""
_READ_AND_SEND_AND_CLOSE = 3
"""Threads of an actor: a blocked `read` must not delay a `send` or `close`."""


def main(descriptor: int) -> NoReturn:
    """Serve until the other end of the socket is closed."""
    with socket.socket(fileno=descriptor) as line:
        server = _CallServer(line)
        with contextlib.suppress(OSError):
            server.serve()
    sys.stderr.flush()
    os._exit(0)


class _CallServer:
    """Server of the calls: each method without an underscore is one."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._writing = threading.Lock()
        self._groups: dict[int, PlacementGroup] = {}
        self._released: list[PlacementGroup] = []
        """Groups that are still to be removed."""
        self._actors: dict[int, Any] = {}
        self._unasked = 0.0
        """Seconds for which this process has run since the last call."""

    def serve(self) -> None:
        """Serve until the line ends or the daemon is silent for too long.

        Then everything is given back.
        """
        for text in self._line.makefile("rb"):
            self._unasked = 0.0
            asked = json.loads(text)
            if asked["call"] == "connect":
                # In this thread: processes of Ray die with the thread that has started them.
                self._answer(asked)
                threading.Thread(target=self._watch_daemon, daemon=True).start()
            else:
                threading.Thread(target=self._answer, args=(asked,), daemon=True).start()
        self._leave()

    # Calls

    def connect(self, address: str | None, folder: str | None) -> str:
        """Join the cluster, or start one with its files in this folder; return its address."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:
            with own_token():
                ray.init(
                    address="local",
                    num_cpus=usable_cpus(),  # Ray counts those of the machine
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address=_LOOPBACK,
                    _temp_dir=folder,
                )
        else:
            _knock(address)
            read_again()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return str(ray.get_runtime_context().gcs_address)

    def ping(self) -> str:
        """Return what is wrong with this driver, if the head answers at all; empty: nothing."""
        if not _answers(ray.get_runtime_context().get_node_id()):
            return "the raylet beside its driver is gone"
        for group in list(self._groups):
            with contextlib.suppress(KeyError):  # given back meanwhile
                if self.stands(group) == "REMOVED":
                    return "it has ended this job: its placement groups are gone"
        self._remove_released()
        return ""

    def nodes(self) -> list[dict[str, Any]]:
        """Return living nodes that are not about to leave, with their total and free resources."""
        free, leaving = state.available_resources_per_node(), state.state.get_draining_nodes()
        return [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "host": node["NodeManagerHostname"],
                "has": _counted(node["Resources"]),
                "free": _counted(free.get(node["NodeID"], {})),
            }
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] not in leaving
        ]

    def node_info(self, nodes: list[str], patience: float) -> dict[str, dict[str, Any]]:
        """Return the node information (launchers.node_info) of the nodes that answer in time."""
        cloudpickle.register_pickle_by_value(node_info)  # autotune need not be there
        asked = {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(node_info.node_info).options(
                num_cpus=0, max_retries=0, scheduling_strategy=there
            )
            asked[task.remote()] = node
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=patience)
        for reference in late:
            ray.cancel(reference, force=True)
        found = {}
        for reference in done:
            with contextlib.suppress(ray.exceptions.RayError):
                found[asked[reference]] = ray.get(reference)
        return found

    def others(self) -> list[str]:
        """Return descriptions of other jobs on the cluster."""
        own, named = self.job(), [group_of(one["name"]) for one in self.named_groups()]
        studies = {one.job: str(one.tenant) for one in named if one}
        return [
            f"{studies.get(job['JobID']) or _called(job)} "
            f"(process {job['DriverPid']} on {job['DriverIPAddress']})"
            for job in state.jobs()
            if not job["IsDead"] and job["JobID"] != own
        ]

    def reserve(
        self,
        group: int,
        bundles: list[dict[str, float]],
        strategy: str,
        patience: float,
        tenant: list[Any] | None,
    ) -> bool:
        """Reserve all of the bundles or none; return whether they were granted in time."""
        self.ask(group, bundles, strategy, tenant)
        granted = False
        try:
            granted = bool(self._groups[group].wait(patience))
        finally:
            if not granted:
                self.release(group)
        return granted

    def ask(
        self,
        group: int,
        bundles: list[dict[str, float]],
        strategy: str,
        tenant: list[Any] | None,
    ) -> None:
        """Ask for bundles without waiting; the autoscaler adds nodes for them.

        Args:
            tenant: fields of shares.Tenant, after which the group is named; None: it has no name.
        """
        name = name_of(Tenant(*tenant), self.job(), group) if tenant else ""
        self._groups[group] = placement_group(bundles, strategy=strategy, name=name)

    def job(self) -> str:
        """Return the id of this process's job."""
        return str(ray.get_runtime_context().get_job_id())

    def named_groups(self) -> list[dict[str, Any]]:
        """Return the named placement groups of all jobs that hold something, or wait for it."""
        return [
            {
                "name": group["name"],
                "waits": group["state"] in _PENDING,
                "bundles": list(group["bundles"].values()),
            }
            for group in placement_group_table().values()
            if group["name"] and group["state"] != "REMOVED"
        ]

    def release(self, group: int) -> None:
        """Give the bundles of a group back.

        Where the head does not answer, they are given back as soon as it answers a `ping`.
        """
        if made := self._groups.pop(group, None):  # first: `ping` looks for groups that are gone
            self._released.append(made)
        self._remove_released()

    def stands(self, group: int) -> str:
        """Return the state of a group: CREATED, RESCHEDULING, REMOVED and so on."""
        return str(placement_group_table(self._groups[group])["state"])

    def where(self, group: int) -> list[str]:
        """Return the node of each bundle."""
        table = placement_group_table(self._groups[group])["bundles_to_node_id"]
        return [str(table[bundle]) for bundle in sorted(table)]

    def start(
        self,
        link: int,
        group: int,
        bundle: int,
        resources: Mapping[str, float],
        host: str,
        log: str,
        env: dict[str, str],
    ) -> None:
        """Start an agent, whose reports follow."""
        # ActorAgent imports no Ray and none of our top-level packages: a worker finds it by name
        # whatever else the user's working directory holds.
        actor_class = ray.remote(ActorAgent).options(
            max_concurrency=_READ_AND_SEND_AND_CLOSE,
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self._groups[group], placement_group_bundle_index=bundle
            ),
        )
        node = self.where(group)[bundle]
        # Ray tells the actor which devices it has. If it has none, all are still to be seen.
        devices = None if resources.get("GPU") else {VISIBLE_DEVICES: ""}
        self._actors[link] = actor_class.remote(host, log, env, devices)
        threading.Thread(target=self._pass_on, args=(link, node), daemon=True).start()

    def send(self, link: int, text: str) -> bool:
        """Pass a command on; False if the agent is gone."""
        try:
            sent = self._actors[link].send.remote(text.encode())
            return bool(ray.get(sent, timeout=_CALL_SECONDS))
        except ray.exceptions.RayError:
            return False

    def taken(self, link: int, folder: str, token: str) -> dict[str, str]:
        """Return a trial's files on a node, in base 64, by name."""
        files = ray.get(self._actors[link].taken.remote(folder, token), timeout=_CALL_SECONDS)
        return {name: base64.b64encode(content).decode() for name, content in files.items()}

    def end(self, link: int) -> str:
        """End an agent; return a description of what cannot be ended."""
        actor = self._actors.pop(link, None)
        if actor is None:
            return ""
        left = ""
        try:
            left = str(ray.get(actor.close.remote(), timeout=_CALL_SECONDS))
        except ray.exceptions.GetTimeoutError:
            left = f"the actor of its agent has not answered for {_CALL_SECONDS:g} s"
        except ray.exceptions.RayError:
            pass  # it is gone, perhaps with its node
        ray.kill(actor)
        return left

    # Internals

    def _remove_released(self) -> None:
        for made in list(self._released):
            remove_placement_group(made)  # twice is once
            with contextlib.suppress(ValueError):  # by another call meanwhile
                self._released.remove(made)

    def _answer(self, asked: dict[str, Any]) -> None:
        number, name = asked.pop("id"), asked.pop("call")
        try:
            self._say({"id": number, "value": getattr(self, name)(**asked)})
        except Exception as error:  # the other side decides what it means
            # Ray adds its state and the stacks of its own processes.
            self._say({"id": number, "error": first_line(error)})

    def _say(self, message: dict[str, Any]) -> None:
        with self._writing, contextlib.suppress(OSError):
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def _pass_on(self, link: int, node: str) -> None:
        actor, line, lost = self._actors[link], b"", False
        try:
            while line := bytes(ray.get(actor.read.remote())):
                self._say({"link": link, "line": line.decode()})
        except ray.exceptions.RayError as error:
            print(f"link {link}: {error}", file=sys.stderr, flush=True)
            time.sleep(_FAREWELL_SECONDS)
            lost = link in self._actors and not _is_well(node)
        self._say({"link": link, "line": "", "node_lost": lost})

    def _watch_daemon(self) -> None:
        while self._unasked < _DAEMON_SECONDS:
            time.sleep(_TICK_SECONDS)
            self._unasked += _TICK_SECONDS  # not by the clock: this process may be paused as well
        print("the daemon has stood still: all is given back", file=sys.stderr, flush=True)
        self._leave()
        os._exit(0)

    def _leave(self) -> None:
        last = threading.Timer(_LEAVE_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()
        with contextlib.suppress(Exception):
            for group in list(self._groups):
                self.release(group)
            ray.shutdown()


def _called(job: Mapping[str, Any]) -> str:
    command = str(job["Entrypoint"])
    if __name__ in command:
        return "another study of autotune"
    return command[:_MOST_SHOWN] or "a job"


def _counted(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: resources.get(name, 0.0) for name in ("CPU", "GPU")}


def _knock(address: str) -> None:
    """Check that the address answers; Ray itself takes a minute to find that it does not.

    Raises:
        OSError: the address does not answer.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        there = (host.strip("[]"), int(port))  # brackets are around an IPv6 address
        socket.create_connection(there, timeout=_KNOCK_SECONDS).close()


def _is_well(node_id: str) -> bool:
    """Return whether a node still has a raylet.

    Ray itself may take half a minute to see that it has not.
    """
    time.sleep(_DOUBT_SECONDS)
    return _answers(node_id)


def _answers(node_id: str) -> bool:
    for node in ray.nodes():
        if node["NodeID"] == node_id and node["Alive"]:
            with contextlib.suppress(OSError):
                address = (node["NodeManagerAddress"], node["NodeManagerPort"])
                socket.create_connection(address, timeout=_KNOCK_SECONDS).close()
                return True
    return False
