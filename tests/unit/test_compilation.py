"""What compiling a model costs, before it has been seen and after."""

import pytest

from autotune.analysis.compilation import Compilation, Compiled
from autotune.analysis.costs import Costs, RunTimes
from autotune.measurement.step_series import Onset
from autotune.worker.protocol import Knobs
from search_spaces import defaults

PLAIN = defaults()
ON_DEVICE = Compilation("cuda")


def compiled(mode: str = "default", **changes: object) -> Knobs:
    return {**PLAIN, "compile": mode, **changes}


def test_configuration_without_compile_compiles_for_no_time() -> None:
    assert ON_DEVICE.seconds(PLAIN) == 0.0


def test_modes_differ_by_prior_before_anything_is_seen() -> None:
    usual = ON_DEVICE.seconds(compiled())
    assert usual < ON_DEVICE.seconds(compiled("reduce-overhead"))
    assert ON_DEVICE.seconds(compiled("max-autotune")) > 5 * usual
    assert ON_DEVICE.seconds(compiled(float8="tensorwise")) > 2 * usual


def test_cold_compilation_that_was_seen_prices_other_graphs_of_its_mode() -> None:
    known = Compilation("cuda", [Compiled(compiled(), 180.0)])
    assert known.seconds(compiled(micro_batch=64)) == 180.0
    assert known.seconds(compiled(float8="tensorwise")) > 180.0


def test_graph_that_was_compiled_before_takes_less() -> None:
    cold = Compiled(compiled(), 12.0)
    assert Compilation("cuda", [cold]).seconds(compiled()) < 6.0
    warm = Compiled(compiled(optimizer_kernels="fused"), 2.5)
    assert Compilation("cuda", [cold, warm]).seconds(compiled()) == 2.5


def test_compilation_that_was_ended_early_takes_longer_than_it_had() -> None:
    known = Compilation("cuda", in_vain=[Compiled(compiled(), 30.0)])
    assert known.seconds(compiled(micro_batch=64)) == 60.0
    assert known.seconds(compiled("max-autotune")) == 150.0


def test_planned_compilation_leaves_a_warm_graph() -> None:
    assert ON_DEVICE.once(compiled()).seconds(compiled()) < ON_DEVICE.seconds(compiled())


def test_trial_that_compiles_costs_its_compilation_besides() -> None:
    times = RunTimes(PLAIN, 5.0, Onset(0.5, 0.2), False, 8.0, 2.0)
    costs = Costs([times], compilation=ON_DEVICE)
    assert costs.expected(PLAIN, None) == pytest.approx(7.0)
    assert costs.expected(compiled(), None) == pytest.approx(7.0 + 15.0)
    assert costs.shortest(compiled()) > 20.0


def test_first_step_of_a_compiled_run_raises_the_price_of_no_plain_one() -> None:
    plain = RunTimes(PLAIN, 5.0, Onset(0.5, 0.2), False, 8.0, 2.0)
    dear = RunTimes(compiled(), 5.0, Onset(40.0, 0.2), True, 8.0, 42.0)
    assert Costs([plain, dear, dear]).expected(PLAIN, None) < 8.0
