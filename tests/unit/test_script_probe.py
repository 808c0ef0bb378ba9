"""What a probe tells of the step that a script has begun."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.worker.inject.script_probe import ScriptProbe
from tests.support.apart import run_apart


def _steps() -> None:
    probe = ScriptProbe()
    probe.watch(went_on=lambda: None, taken=lambda: None)
    assert probe.may_be_in_step, "nothing is known before the first one"
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(torch.randn(64, 4), 8))
    evaluated = DataLoader(torch.randn(8, 4), 4)
    for _ in range(3):
        loss = model(next(batches)).square().mean()
        loss.backward()
        assert probe.may_be_in_step
        optimizer.step()
        assert not probe.may_be_in_step
        model.eval()
        for batch in evaluated:
            with torch.no_grad():
                model(batch)
        model.train()
        assert not probe.may_be_in_step
    next(batches)
    assert probe.may_be_in_step, "as in a forward pass that fails"


def test_a_step_is_begun_by_its_batch_and_ended_by_its_optimizer() -> None:
    run_apart(_steps)
