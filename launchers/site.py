"""Place of the trials of a study: the shape of every slot, and the node that stands for all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Site:
    """Shape of the slots of a launcher, which is the same for all, and the first node of the first.

    Attributes:
        device: 'cpu' or 'cuda'.
        nodes: number of nodes that they are spread over, evenly.
        devices_per_rank: CUDA devices of a rank; below one, ranks share a device.
        environment: fingerprint of the node as the launcher opened, see
            autotune.worker.node.environment. Later agents of a slot may be elsewhere.
        energy_unreadable: reason why the energy of a trial cannot be read there; empty if it can, or
            was not asked for.
    """

    device: str
    ranks: int
    nodes: int
    devices_per_rank: float
    environment: dict[str, Any]
    energy_unreadable: str = ""

    @property
    def on_device(self) -> bool:
        """Return whether trials run on CUDA devices."""
        return self.device == "cuda"

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on each node."""
        return self.ranks // self.nodes

    @property
    def devices(self) -> list[str]:
        """Return the name of each visible CUDA device of the node, else that of its processor."""
        return device_names(self.environment)

    @property
    def bytes_of_rank(self) -> float:
        """Return the memory that a rank has for itself: of its device, or its share of the node's."""
        if not self.on_device:
            return float(self.environment["memory_bytes"] * self.nodes / self.ranks)
        smallest: int = min(device["memory_bytes"] for device in self.environment["devices"])
        return smallest * min(1.0, self.devices_per_rank)

    @property
    def cores_of_rank(self) -> float:
        """Return the processors that a rank has for itself."""
        return float(self.environment["cores"] * self.nodes / self.ranks)

    @property
    def capability(self) -> tuple[int, int] | None:
        """Return the CUDA compute capability of the oldest device; None on the CPU."""
        return lowest_capability(self.environment) if self.on_device else None

    @property
    def backend(self) -> Literal["nccl", "gloo"]:
        """Return the backend by which the ranks communicate: NCCL needs a device for each."""
        return "nccl" if self.devices_per_rank >= 1 else "gloo"


def device_names(environment: Mapping[str, Any]) -> list[str]:
    """Return the name of each CUDA device of a node, else that of its processor."""
    return [device["name"] for device in environment.get("devices", ())] or [
        str(environment.get("cpu"))
    ]


def lowest_capability(environment: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the CUDA compute capability of a node's oldest device; None without a device."""
    return min((tuple(device["capability"]) for device in environment["devices"]), default=None)
