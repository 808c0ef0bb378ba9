"""Time, money or energy that a recommendation saves, and what its study cost. Pure."""

from dataclasses import dataclass

from autotune.measurement.estimate import Ratio

_HOURS_OF_A_DAY = 24.0
_SECONDS_PER_HOUR = 3600.0
_WATTS_OF_A_KILOWATT = 1000.0


@dataclass(frozen=True)
class Cost:
    """Cost of a study.

    Attributes:
        seconds: of all runs, each on all ranks.
        device_hours: of all ranks together.
        money: at the given price of a device hour; None without one.
    """

    seconds: float
    device_hours: float
    money: float | None

    @classmethod
    def of(cls, seconds: float, world_size: int, price: float | None) -> "Cost":
        """Return the cost of runs that took so many seconds on so many ranks."""
        hours = seconds * world_size / _SECONDS_PER_HOUR
        return cls(seconds, hours, None if price is None else hours * price)


@dataclass(frozen=True)
class Saving:
    """Saving of a recommendation over one job, each with the bounds that follow from its speed-up.

    Attributes:
        expected_job_hours: length of the job as it is.
        hours: that it is shorter by.
        hours_per_day: of training as it was.
        device_hours: of all ranks together.
        payback_seconds: of tuned training until the study has paid; None if it cost nothing.
        money: saved over the job, without the cost of the study; None without a price.
    """

    expected_job_hours: float
    hours: Ratio
    hours_per_day: Ratio
    device_hours: Ratio
    payback_seconds: Ratio | None
    money: Ratio | None

    @classmethod
    def of(
        cls,
        speedup: Ratio,
        cost: Cost,
        expected_job_hours: float,
        world_size: int,
        price: float | None,
    ) -> "Saving | None":
        """Return what a speed-up saves; None unless it is surely one."""
        if not speedup.faster:
            return None
        share = Ratio(*(1 - 1 / times for times in (speedup.value, speedup.low, speedup.high)))
        hours = _times(share, expected_job_hours)
        device_hours = _times(hours, world_size)
        return cls(
            expected_job_hours=expected_job_hours,
            hours=hours,
            hours_per_day=_times(share, _HOURS_OF_A_DAY),
            device_hours=device_hours,
            payback_seconds=_payback(speedup, cost.seconds) if cost.seconds else None,
            money=None if price is None else _times(device_hours, price),
        )


@dataclass(frozen=True)
class EnergySaving:
    """Energy that a recommendation saves over one job, with the bounds that follow from its gain.

    Attributes:
        expected_job_hours: length of the job as it is.
        kilowatt_hours: that it takes less, of `whole`.
        whole: kilowatt hours of the job as it is.
    """

    expected_job_hours: float
    kilowatt_hours: Ratio
    whole: float

    @classmethod
    def of(cls, gain: Ratio, watts: float, expected_job_hours: float) -> "EnergySaving | None":
        """Return what a gain in samples per joule saves; None unless it is surely one.

        Args:
            gain: over the baseline.
            watts: of the baseline, all devices together.
            expected_job_hours: length of the job as it is.
        """
        if not gain.faster:
            return None
        whole = watts * expected_job_hours / _WATTS_OF_A_KILOWATT
        share = Ratio(*(1 - 1 / times for times in (gain.value, gain.low, gain.high)))
        return cls(expected_job_hours, _times(share, whole), whole)


def _payback(speedup: Ratio, seconds: float) -> Ratio:
    """Return the seconds of tuned training until a speed-up has saved so many."""
    return Ratio(*(seconds / (times - 1) for times in (speedup.value, speedup.high, speedup.low)))


def _times(one: Ratio, factor: float) -> Ratio:
    return Ratio(one.value * factor, one.low * factor, one.high * factor)
