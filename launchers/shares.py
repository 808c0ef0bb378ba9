"""Shares of a cluster: which study gives slots back, and which may take more. Pure.

Each placement group is named after its study, the owner of that and the owner's weight. Owners share
a cluster by their weights, and studies of one owner share equally. Every study reads the same names
and comes to the same conclusion, so nothing else has to decide.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

_PREFIX = "autotune"
_PARTS = 6
_TOLERANCE = 1e-6
"""Tolerance for sums of shares, which have no exact binary form."""
_COUNTED = ("CPU", "GPU")


@dataclass(frozen=True)
class Tenant:
    """Study as other studies on a cluster know it.

    Attributes:
        weight: of its owner, relative to those of other owners.
    """

    owner: str
    study: str
    weight: float = 1.0

    def __str__(self) -> str:
        return f"study {self.study} of {self.owner or 'an unknown owner'}"


@dataclass(frozen=True)
class Group:
    """Placement group of a study.

    Attributes:
        job: id of the process that made it.
        waits: True while there is no room for it.
        size: share of the cluster that it takes, see `size_of`.
    """

    tenant: Tenant
    job: str
    waits: bool
    size: float


@dataclass(frozen=True)
class Holding:
    """Slots of a study on a cluster, as shares of all of it.

    Attributes:
        held: share that they take together.
        wanted: share of a slot that it waits for; 0 if it waits for none.
    """

    tenant: Tenant
    job: str
    slots: int = 0
    held: float = 0.0
    wanted: float = 0.0

    @property
    def slot(self) -> float:
        """Share that one of its slots takes."""
        return self.held / self.slots

    def less(self, slots: int) -> "Holding":
        """Return what is left after so many slots were given back."""
        left = self.slots - slots
        return replace(self, slots=left, held=self.slot * left)


@dataclass(frozen=True)
class Gift:
    """Slots that a study gives back for one that waits."""

    giver: str
    slots: int
    taker: Holding


def name_of(tenant: Tenant, job: str, number: int) -> str:
    """Return the name of a placement group of a study."""
    parts = [tenant.owner, tenant.study, f"{tenant.weight:g}", job, str(number)]
    return "/".join([_PREFIX, *(quote(part, safe="") for part in parts)])


def group_of(name: str, *, waits: bool = False, size: float = 0.0) -> Group | None:
    """Return the placement group of that name; None if it is of no study."""
    prefix, *parts = name.split("/")
    if prefix != _PREFIX or len(parts) != _PARTS - 1:
        return None
    owner, study, weight, job, _ = map(unquote, parts)
    try:
        tenant = Tenant(owner, study, float(weight))
    except ValueError:
        return None
    return Group(tenant, job, waits, size) if 0 < tenant.weight < math.inf else None


def size_of(bundles: Iterable[Mapping[str, float]], total: Mapping[str, float]) -> float:
    """Return the largest share that bundles take of any resource of the cluster."""
    taken: Counter[str] = Counter()
    for bundle in bundles:
        taken.update({name: bundle.get(name, 0.0) for name in _COUNTED})
    return max(taken[name] / total[name] if total.get(name) else 0.0 for name in _COUNTED)


def holdings(groups: Iterable[Group]) -> dict[str, Holding]:
    """Return what each study has and waits for, by the id of its process."""
    found: dict[str, Holding] = {}
    for group in groups:
        one = found.get(group.job) or Holding(group.tenant, group.job)
        if group.waits:
            found[group.job] = replace(one, wanted=max(one.wanted, group.size))
        else:
            found[group.job] = replace(one, slots=one.slots + 1, held=one.held + group.size)
    return found


def gifts(known: Mapping[str, Holding]) -> list[Gift]:
    """Return which studies give slots back, for those that wait.

    A study gives only as much as leaves its owner, by weight, no less than the owner of the study
    that takes has then; between studies of one owner the studies are compared. So no slot goes back
    and forth. A study keeps its last slot.
    """
    now, found = dict(known), list[Gift]()
    for taker in sorted(_waiting(now), key=lambda one: _need(one, now)):
        able = [gift for one in now.values() if (gift := _gift(one, taker, now))]
        if able:
            gift = max(able, key=lambda one: _surplus(now[one.giver], now))
            now[gift.giver] = now[gift.giver].less(gift.slots)
            now[taker.job] = _served(now[taker.job])
            found.append(gift)
    return found


def may_take(job: str, size: float, known: Mapping[str, Holding]) -> bool:
    """Return whether a study may take a slot of that size: no study that waits needs one more."""
    own = replace(known[job], wanted=size)
    everyone = {**known, job: own}
    return all(_need(own, everyone) <= _need(one, everyone) for one in _waiting(everyone))


def is_owed(job: str, size: float, known: Mapping[str, Holding]) -> bool:
    """Return whether another study would give slots back if this one waited for one of that size."""
    asking = {**known, job: replace(known[job], wanted=size)}
    return any(gift.taker.job == job for gift in gifts(asking))


def _waiting(known: Mapping[str, Holding]) -> Sequence[Holding]:
    return [one for one in known.values() if one.wanted]


def _served(one: Holding) -> Holding:
    return replace(one, slots=one.slots + 1, held=one.held + one.wanted, wanted=0.0)


def _of_owner(owner: str, known: Mapping[str, Holding]) -> float:
    """Return the share that an owner's studies hold, divided by the owner's weight."""
    own = [one for one in known.values() if one.tenant.owner == owner]
    weight = max(one.tenant.weight for one in own)
    return sum(one.held for one in own) / weight


def _need(one: Holding, known: Mapping[str, Holding]) -> tuple[float, float, str]:
    """Return what studies that wait are ordered by: the one that would have least comes first."""
    served = _served(one)
    after = {**known, one.job: served}
    return round(_of_owner(one.tenant.owner, after), 9), round(served.held, 9), one.job


def _surplus(one: Holding, known: Mapping[str, Holding]) -> tuple[float, float, str]:
    """Return what studies that can give are ordered by: the one that has most gives."""
    return round(_of_owner(one.tenant.owner, known), 9), round(one.held, 9), one.job


def _gift(giver: Holding, taker: Holding, known: Mapping[str, Holding]) -> Gift | None:
    """Return what a study can give back for another one; None: nothing."""
    if giver.job == taker.job or giver.slots < 2:
        return None
    count = math.ceil(taker.wanted / giver.slot - _TOLERANCE)
    if count >= giver.slots:
        return None
    left = giver.less(count)
    after = {**known, giver.job: left, taker.job: _served(taker)}
    if giver.tenant.owner == taker.tenant.owner:
        fair = left.held + _TOLERANCE >= after[taker.job].held
    else:
        its, others = (_of_owner(one.tenant.owner, after) for one in (giver, taker))
        fair = its + _TOLERANCE >= others
    return Gift(giver.job, count, taker) if fair else None
