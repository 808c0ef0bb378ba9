"""Trials on a Ray cluster: a slot is a placement group, with one agent-owning actor per node."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.errors import LauncherError, NotHere
from autotune.trial.node.agent_process import AgentProcess
from launchers import devices
from launchers.agents import Node
from launchers.base import Launcher, Link, Resources
from launchers.layout import Layout, NodeCapacity, plan
from launchers.ray_token import own_token, read_again
from launchers.reservation import Busy, Reservation
from launchers.slot import AgentSlot

_LOOPBACK = "127.0.0.1"
_PLACEMENT_SECONDS = 60.0
_CALL_SECONDS = 30.0
_KNOCK_SECONDS = 5.0
_FAREWELL_SECONDS = 1.0
"""How long an agent whose actor has died takes to notice and to clear its node."""
_READ_AND_SEND_AND_CLOSE = 3
"""Threads of an actor: a blocked `read` must not keep a `send` or `close` waiting."""


class RayLink(Link):
    """A line to an agent through the actor that owns it."""

    def __init__(
        self,
        group: PlacementGroup,
        bundle: int,
        log_dir: str,
        layout: Layout,
        env: Mapping[str, str],
    ) -> None:
        self.host = _LOOPBACK if layout.nodes == 1 else _bundle_address(group, bundle)
        # AgentProcess imports no Ray and none of our top-level packages: a worker finds it by name
        # whatever else the user's working directory holds.
        actor_class = ray.remote(AgentProcess).options(
            max_concurrency=_READ_AND_SEND_AND_CLOSE,
            num_cpus=layout.bundle["CPU"],
            num_gpus=layout.bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        )
        # Ray itself has told the actor which devices it has.
        self._actor: Any = actor_class.remote(self.host, str(Path(log_dir) / "agent.log"), env)
        self._closed = False

    def send(self, line: bytes) -> bool:
        try:
            return bool(ray.get(self._actor.send.remote(line), timeout=_CALL_SECONDS))
        except ray.exceptions.RayError:
            return False

    def read(self) -> bytes:
        try:
            return bytes(ray.get(self._actor.read.remote()))
        except ray.exceptions.RayError:
            time.sleep(_FAREWELL_SECONDS)
            return b""

    def close(self) -> str:
        if self._closed:
            return ""
        self._closed = True
        left = ""
        try:
            left = str(ray.get(self._actor.close.remote(), timeout=_CALL_SECONDS))
        except ray.exceptions.GetTimeoutError:
            left = f"the actor of its agent has not answered for {_CALL_SECONDS:g} s"
        except ray.exceptions.RayError:
            pass  # it is gone, and its node maybe, too
        ray.kill(self._actor)
        return left


class RayLauncher(Launcher):
    """Slots on a Ray cluster; on a Ray of its own on this machine when no address is given."""

    slots: Sequence[AgentSlot]

    def __init__(
        self,
        resources: Resources,
        log_dir: str,
        address: str | None,
        busy: Busy,
        env: Mapping[str, str],
    ) -> None:
        self._groups: list[PlacementGroup] = []
        self._env = dict(env)
        self.slots = []
        self._reservation = Reservation(busy)
        try:
            if address is None and _is_for_processors(resources):
                self._reservation.take(devices.processors())
            _connect(address)
            layout = _layout(resources, address)
            self.workers = layout.nodes * layout.ranks_per_node
            self.slots = [
                self._open_slot(number, layout, log_dir) for number in range(layout.slots)
            ]
            if address is None:  # others' clusters keep account themselves
                self._reservation.take(name for slot in self.slots for name in slot.cuda_devices)
        except ray.exceptions.RayError as error:
            with contextlib.suppress(ray.exceptions.RayError):
                self.close()
            raise LauncherError(f"the Ray cluster fails: {_first_line(error)}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        try:
            for slot in self.slots:
                slot.close()
            while self._groups:  # closing again must not call Ray: it would connect by itself
                remove_placement_group(self._groups.pop())
            ray.shutdown()
        finally:
            self._reservation.close()

    def _open_slot(self, number: int, layout: Layout, log_dir: str) -> AgentSlot:
        strategy = "STRICT_SPREAD" if layout.nodes > 1 else "STRICT_PACK"
        group = placement_group([layout.bundle] * layout.nodes, strategy=strategy)
        self._groups.append(group)
        if not group.wait(_PLACEMENT_SECONDS):
            raise LauncherError(
                f"the Ray cluster has not granted {layout.nodes} x {layout.bundle} within "
                f"{_PLACEMENT_SECONDS:g} s; see `ray status` for who holds its resources"
            )
        nodes = [
            Node(
                connect=lambda bundle=bundle: RayLink(group, bundle, log_dir, layout, self._env),  # type: ignore[misc]
                ranks=layout.ranks_per_node,
            )
            for bundle in range(layout.nodes)
        ]
        return AgentSlot(f"ray-{number}", nodes, gpus_per_worker=layout.gpus_per_worker)


def _layout(resources: Resources, address: str | None) -> Layout:
    """Nodes of a cluster may still come, or come back."""
    try:
        return plan(resources, _capacities())
    except NotHere as error:
        if address is None:
            raise
        raise LauncherError(
            f"the Ray cluster at {address} is too small at present: {error}"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_for_processors(resources: Resources) -> bool:
    return not plan(resources, [devices.this_machine()]).gpus_per_worker


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address is None:
            with own_token():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address=_LOOPBACK,
                )
        else:
            _knock(address)
            read_again()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise LauncherError(
            f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}; check "
            "`ray status`, and RAY_AUTH_MODE and the token where the cluster wants them"
        ) from None


def _knock(address: str) -> None:
    """Whether anybody answers; Ray itself takes a minute to find that nobody does.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _capacities() -> list[NodeCapacity]:
    return [
        NodeCapacity(
            cpus=int(node["Resources"].get("CPU", 0)), gpus=int(node["Resources"].get("GPU", 0))
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _bundle_address(group: PlacementGroup, bundle: int) -> str:
    node_id = placement_group_table(group)["bundles_to_node_id"][bundle]
    return next(
        str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id
    )
