"""Connection to an agent through the Ray actor that owns it."""

import base64
import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.worker.files import make_private
from launchers.base import Link
from launchers.driver import DriverLost, Refused
from launchers.ray_nodes import ANSWER_SECONDS
from launchers.ray_placement import SlotPlacement

_LOOPBACK = "127.0.0.1"


class RayLink(Link):
    """Connection to an agent through the actor that owns it."""

    def __init__(
        self, placement: SlotPlacement, bundle: int, log: str, env: Mapping[str, str]
    ) -> None:
        self._cluster, self._node = placement.cluster, placement.nodes[bundle]
        layout = self._cluster.layout
        self.host = _LOOPBACK if layout.nodes == 1 else self._node.address
        self.where = str(self._node) if self._cluster.is_shared else ""
        self._wire = self._cluster.driver.wire()
        self._closed = False
        self._cluster.driver.call(
            "start",
            link=self._wire.number,
            group=placement.group,
            bundle=bundle,
            resources=layout.bundle,
            host=self.host,
            log=log,
            env=dict(env),
        )

    def send(self, line: bytes) -> bool:
        try:
            return bool(self._call("send", text=line.decode()))
        except (DriverLost, Refused):
            return False

    def read(self) -> bytes:
        line = self._wire.read()
        if not line and not self._closed and not self._cluster.driver.lost:
            self._cluster.avoided.add(self._node.id)
        return line

    def loss_reason(self) -> str:
        if self._cluster.driver.lost:
            return self._cluster.driver.lost
        return f"node {self._node} was lost" if self._wire.node_lost else ""

    def mark_suspect(self) -> None:
        self._cluster.avoided.add(self._node.id)

    def fetch_files(self, folder: Path) -> None:
        token = f"brought-{secrets.token_hex(8)}"
        with contextlib.suppress(DriverLost, Refused, OSError):
            make_private(folder)
            (folder / token).touch()
            try:
                files = self._cluster.driver.call(
                    "taken",
                    ANSWER_SECONDS,
                    link=self._wire.number,
                    folder=str(folder),
                    token=token,
                )
                for name, content in files.items():
                    (folder / Path(name).name).write_bytes(base64.b64decode(content))
            finally:
                (folder / token).unlink()

    def close(self) -> str:
        if self._closed:
            return ""
        self._closed = True
        try:
            left = str(self._call("end"))
        except (DriverLost, Refused):
            return ""
        if left and self._cluster.is_shared and self._node.id in self._cluster.avoided.now():
            return ""  # its node does not answer: Ray ends it once it does
        return left

    def _call(self, name: str, **arguments: Any) -> object:
        driver = self._cluster.driver
        return driver.call(name, ANSWER_SECONDS, link=self._wire.number, **arguments)
