"""Compatibility of a cluster's nodes: one kind of device, the same software. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import UnfitNodes
from launchers.site import Site

NodeInfo = Mapping[str, Any]
"""Kind and software of a node, see launchers.node_info; empty as long as the node does not
answer."""


_SAME_MEMORY = 0.05
"""Largest share by which the memory of two devices of one kind differs: drivers keep some of it."""


@dataclass(frozen=True)
class CommonKind:
    """Kind and software that all nodes of a study have in common.

    Attributes:
        autotune: version of autotune on this side.
        kind: name of the devices or of the processors; empty: unknown.
        on_gpu: True if `kind` names devices.
    """

    autotune: str
    python: str = ""
    torch: str = ""
    kind: str = ""
    on_gpu: bool = False

    def software_mismatch(self, info: NodeInfo) -> str:
        """Return why a node's software is unsuitable, with what to do; empty if no reason is known."""
        if not info:
            return ""
        if not info["autotune"]:
            return (
                f"autotune is not installed there, or not for the Python of its Ray; install autotune "
                f"{self.autotune} there"
            )
        for name, wanted, others in (
            ("autotune", self.autotune, "here"),
            ("Python", self.python, "on others"),
            ("torch", self.torch, "on others"),
        ):
            there = str(info[name.lower()])
            if wanted and there != wanted:
                return (
                    f"{name} {there or '(none)'} is installed there and {wanted} {others}; install "
                    f"{name} {wanted} there, and restart Ray on it"
                )
        return ""

    def mismatch(self, info: NodeInfo) -> str:
        """Return why a node's software or devices are unsuitable; empty if no reason is known."""
        there = device_kind(info, on_gpu=self.on_gpu)
        if (other := self.software_mismatch(info)) or not there or there == (self.kind or there):
            return other
        return f"it has {there}, and this study runs on {self.kind}; resources.device says on which"


def device_kind(info: NodeInfo, *, on_gpu: bool) -> str:
    """Return the name of a node's devices or of its processor; empty if unknown."""
    if on_gpu:
        return " + ".join(sorted(set(info.get("devices", ()))))
    return str(info.get("cpu", ""))


def is_of(kind: str, wanted: str) -> bool:
    """Return whether a node of this kind has the wanted kind of device, or parts of it (MIG)."""
    return wanted == kind or wanted.startswith(f"{kind} MIG ")


def from_agent(environment: Mapping[str, Any]) -> NodeInfo:
    """Return node information from an agent's environment, which is more exact."""
    return {**environment, "devices": [device["name"] for device in environment["devices"]]}


def check_device(wanted: str | None, site: Site) -> None:
    """Check that this machine has the wanted kind of device, if one is given.

    Raises:
        UnfitNodes: the machine has another kind.
    """
    there = device_kind(from_agent(site.environment), on_gpu=site.on_device)
    if wanted and there != wanted:
        raise UnfitNodes(f"resources.device: {wanted} is asked for, and here is {there}")


def other_devices(before: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return why CUDA devices are of another kind, or have other memory, than before; empty: neither.

    Devices of one name may have memory of several sizes.

    Args:
        before: environment of an agent.
        here: environment of an agent.
    """
    was, now = (device_kind(from_agent(one), on_gpu=True) for one in (before, here))
    sizes = _memory(before), _memory(here)
    if was == now and max(sizes) - min(sizes) <= _SAME_MEMORY * max(sizes):
        return ""
    had, has = (f"{size / 2**30:.0f} GiB" for size in sizes)
    return f"{was} ({had}), and here is {now} ({has})"


def of_other_kinds(
    environments: Sequence[Mapping[str, Any]], wanted: str | None, *, on_gpu: bool
) -> dict[int, str]:
    """Return why a study is not to use some slots of one machine, by the number of the slot.

    The study runs on the wanted kind, or else on that of most slots; of equals on the one with more
    memory. Where no slot is of the wanted kind none is named, see `check_device`.
    """
    kinds = [device_kind(from_agent(one), on_gpu=on_gpu) for one in environments]
    memory = dict(zip(kinds, map(_memory, environments), strict=True))
    chosen = wanted or max(kinds, key=lambda kind: (kinds.count(kind), memory[kind]), default="")
    if chosen not in kinds:
        return {}
    return {
        number: f"{kind}, and this study runs on {chosen}; resources.device says on which"
        for number, kind in enumerate(kinds)
        if kind != chosen
    }


def _memory(environment: Mapping[str, Any]) -> int:
    return min((device["memory_bytes"] for device in environment["devices"]), default=0)


def most_common_software(autotune: str, infos: Iterable[NodeInfo]) -> CommonKind:
    """Return the most common software of the nodes with this version of autotune."""
    fit = [info for info in infos if info and info["autotune"] == autotune]
    return CommonKind(
        autotune,
        python=_most_common(info["python"] for info in fit),
        torch=_most_common(info["torch"] for info in fit),
    )


def kind_with_most_ranks(kinds: Sequence[str], ranks: Callable[[str], int]) -> str:
    """Return the kind on which most ranks run at a time; of equals, that of more nodes."""
    counted = Counter(kind for kind in kinds if kind)
    return max(sorted(counted), key=lambda kind: (ranks(kind), counted[kind]), default="")


def describe_kinds(kinds: Sequence[str]) -> str:
    """Return a text such as 'A on 2 nodes, B on 1'."""
    counted = Counter(kind or "unknown devices" for kind in kinds).most_common()
    return ", ".join(f"{kind} on {n}{' nodes' * (not i)}" for i, (kind, n) in enumerate(counted))


def _most_common(values: Iterable[str]) -> str:
    return max(Counter(values).most_common(), key=lambda pair: pair[1], default=("", 0))[0]
