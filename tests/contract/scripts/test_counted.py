"""Samples and tokens of unmodified scripts: what a backward pass trains on, as its loader counts it."""

import pytest

from tests.contract.scripts.bench import IN_A_THREAD
from tests.support.seeing import look

_SET_UP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_FOREVER = f"""{_SET_UP}
while True:
    for x in DataLoader(torch.randn(64, 8), 4):
        train(x)
"""


def of_loader(loader: str, batch: str = "x") -> str:
    """A script that trains on what a loader yields, whatever its batches are made of."""
    return f"""{_SET_UP}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return index
def collate(indices):
    raise NotImplementedError
{loader}
while True:
    for x in loader:
        train(torch.ones(8) * float({batch}))
"""


_DETECTION = of_loader(
    """
class Pictures(Rows):
    def __getitem__(self, index):
        return torch.randn(3, 16 + index % 5, 8), {"boxes": torch.rand(3, 4)}
loader = DataLoader(Pictures(), 4, collate_fn=lambda batch: tuple(zip(*batch)))
""",
    "len(x)",
)
_TIME_FIRST = of_loader(
    """
class Series(Rows):
    def __getitem__(self, index):
        return torch.randn(23, 8)
loader = DataLoader(Series(), 4, collate_fn=lambda batch: torch.stack(batch, 1))
""",
    "x.mean()",
)
_BOXES = of_loader(
    """
def collate(indices):
    boxes = torch.rand(sum(1 + index % 6 for index in indices), 4)
    return {"cls": boxes[:, :1], "bboxes": boxes, "img": torch.ones(len(indices), 3, 8, 8)}
loader = DataLoader(Rows(), 4, collate_fn=collate)
""",
    "x['img'].mean()",
)
_GRAPHS = of_loader(
    """
class Batch:
    def __init__(self, sizes):
        self.x = torch.randn(sum(sizes), 8)
        self.batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    def __len__(self):
        return 2
loader = DataLoader(Rows(), 4, collate_fn=lambda rows: Batch([3 + row % 4 for row in rows]))
""",
    "x.x.mean()",
)
_SAMPLED = of_loader(
    """
batches = [list(range(start, start + 4)) for start in range(0, 400, 4)]
loader = DataLoader(Rows(), batch_sampler=batches)
""",
    "x.sum()",
)
_BULK = of_loader(
    """
class Bulk(Rows):
    def __getitem__(self, indices):
        return torch.ones(23, len(indices))
batches = [list(range(start, start + 4)) for start in range(0, 400, 4)]
loader = DataLoader(Bulk(), sampler=batches, batch_size=None)
""",
    "x.sum()",
)
_WORKERS = _DETECTION.replace(", 4,", ", 4, num_workers=2, persistent_workers=True,")
_STREAM = of_loader(
    """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(400, 23, 8))
loader = DataLoader(Stream(), 4, collate_fn=lambda batch: torch.stack(batch, 1))
""",
    "x.mean()",
)


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(_DETECTION, id="tuples of pictures"),
        pytest.param(_TIME_FIRST, id="time first"),
        pytest.param(_BOXES, id="a row per box"),
        pytest.param(_GRAPHS, id="graphs"),
        pytest.param(_SAMPLED, id="a list of batches"),
        pytest.param(_BULK, id="a sampler of lists"),
        pytest.param(_WORKERS, id="workers"),
        pytest.param(_STREAM, id="iterable"),
        pytest.param(_STREAM.replace("), 4,", "), 4, num_workers=2,"), id="iterable with workers"),
    ],
)
def test_samples_are_those_that_the_loader_asks_for(script: str) -> None:
    found = look(script)
    assert found.samples == [4] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 1)
    assert (found.seen.guessed, found.seen.varies, found.seen.loader) == (False, False, True)


@pytest.mark.long
def test_samples_without_batch_size_are_guessed_and_said_to_be() -> None:
    script = of_loader("loader = DataLoader(torch.randn(64, 4, 8), batch_size=None)", "x.mean()")
    found = look(script)
    assert found.samples == [4] * 6
    assert found.seen.guessed


def test_samples_of_nested_tensors_are_guessed() -> None:
    rows = "torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)])"
    loader = f"DataLoader([{rows}] * 8, batch_size=None)"
    script = (
        f"{_SET_UP}\nwhile True:\n    for x in {loader}:\n        train(x.to_padded_tensor(0.0))\n"
    )
    assert look(script).samples == [2] * 6


def test_batch_that_its_loader_counts_as_one_sample_has_its_rows_told() -> None:
    loader = "DataLoader(torch.randn(64, 16, 8), 1, collate_fn=lambda batch: batch[0])"
    found = look(f"{_SET_UP}\nwhile True:\n    for x in {loader}:\n        train(x)\n").seen
    assert (found.micro_batch, found.rows, found.guessed) == (1, 16, False)
    assert look(_FOREVER).seen.rows == 0


@pytest.mark.long
def test_last_batch_of_an_iterable_data_set_has_what_is_left() -> None:
    script = f"""{_SET_UP}
class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(10, 8))
while True:
    for x in DataLoader(Stream(), 4):
        train(x)
"""
    found = look(script)
    assert found.samples == [4, 4, 2] * 2
    assert not found.seen.varies


_REPEATED = f"""{_SET_UP}
from itertools import cycle
for x in cycle(DataLoader(torch.randn(18, 8), 4)):
    train(x)
"""
_BESIDE_AN_EPOCH = f"""{_SET_UP}
from itertools import cycle
labeled, others = DataLoader(torch.randn(8, 8), 2), DataLoader(torch.randn(96, 8), 6)
for x, y in zip(cycle(labeled), others):
    train(torch.cat([x, y]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "samples"),
    [(_REPEATED, [4, 4, 4, 4, 2] * 3), (_BESIDE_AN_EPOCH, [8] * 15)],
    ids=["alone", "beside another loader"],
)
def test_batches_that_itertools_cycle_keeps_are_counted_each_time(
    script: str, samples: list[int]
) -> None:
    """Semi-supervised training repeats the batches of a loader that ends before another one."""
    found = look(script, steps=15)
    assert found.samples == samples
    assert (found.seen.varies, found.seen.reuses, found.seen.accumulation_varies) == (False,) * 3


@pytest.mark.long
def test_itertools_cycle_is_for_all_else_as_ever() -> None:
    script = f"""{_SET_UP}
import itertools, pickle
numbers = itertools.cycle([1, 2])
assert [*itertools.islice(numbers, 5)] == [1, 2, 1, 2, 1]
assert isinstance(numbers, itertools.cycle)
assert next(pickle.loads(pickle.dumps(itertools.cycle([1])))) == 1
assert [*itertools.cycle(DataLoader([], 4))] == []
torch.manual_seed(0)
plain = iter(DataLoader(torch.arange(6), 2)), torch.rand(1)
torch.manual_seed(0)
loader = itertools.cycle(DataLoader(torch.arange(6), 2))
assert torch.rand(1) == plain[1]
kept = [*itertools.islice(loader, 7)]
assert kept[0] is kept[3] is kept[6] and kept[2].tolist() == [4, 5]
while True:
    train(torch.randn(2, 8))
"""
    assert look(script).seen.steps == 6


_EVALUATION = f"""{_SET_UP}
training = DataLoader(torch.randn(64, 8), 4)
KEEPS = DataLoader(torch.randn(40, 8), 10, num_workers=1, persistent_workers=True)
PLAIN = DataLoader(torch.randn(40, 8), 10)
def evaluate(loader, batches=4):
    HOW
    for place, y in enumerate(loader, 1):
        INSIDE
        if place == batches:
            break
    model.train()
"""
_HOWS = {
    "without gradients": ("model.eval()", "with torch.no_grad(): model(y)"),
    "by set_grad_enabled": ("model.eval()", "with torch.set_grad_enabled(False): model(y)"),
    "without evaluation mode": ("pass", "with torch.inference_mode(): model(y)"),
    "with gradients": ("model.eval()", "model(y)"),
    "with nothing but a pass": ("pass", "model(y)"),
}
_WHENS = {
    "before the training": "evaluate(LOADER)\nwhile True:\n    for x in training:\n        train(x)\n",
    "between steps": "while True:\n    for x in training:\n        train(x)\n        evaluate(LOADER)\n",
    "partly": "while True:\n    for x in training:\n        train(x)\n        evaluate(LOADER, 3)\n",
    "within a step": """
while True:
    for x in training:
        evaluate(LOADER)
        train(x)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("loader", ["KEEPS", "PLAIN"])
@pytest.mark.parametrize("when", _WHENS)
@pytest.mark.parametrize("how", _HOWS)
def test_evaluation_is_not_counted(how: str, when: str, loader: str) -> None:
    mode, inside = _HOWS[how]
    text = _EVALUATION.replace("HOW", mode).replace("INSIDE", inside)
    found = look(text + _WHENS[when].replace("LOADER", loader), steps=4)
    assert found.samples == [4] * 4
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 1)


@pytest.mark.parametrize("how", ["without gradients", "by set_grad_enabled"])
def test_loader_that_only_evaluates_is_none_of_the_training(how: str) -> None:
    mode, inside = _HOWS[how]
    text = _EVALUATION.replace("HOW", mode).replace("INSIDE", inside)
    own = "while True:\n    evaluate(KEEPS)\n    train(torch.randn(4, 8))\n"
    found = look(text + own, steps=3)
    assert found.samples == [0] * 3
    assert not found.seen.loader
    assert found.seen.micro_batch == 4


def test_batches_drawn_while_the_model_evaluates_are_counted_where_they_are_trained_on() -> None:
    """As transformers 5 draws them: those of a step, before the model is told to train."""
    script = f"""{_SET_UP}
model.eval()
class Ahead:
    def __iter__(self):
        batches = iter(DataLoader(torch.randn(64, 8), 4))
        latest = next(batches)
        for following in batches:
            yield latest
            latest = following
        yield latest
while True:
    batches = iter(Ahead())
    for _ in range(8):
        step = [next(batches) for _ in range(2)]
        for x in step:
            model.train()
            model(x).square().mean().backward()
        optimizer.step()
"""
    found = look(script, steps=8)
    assert found.samples == [12, *[8] * 6, 4], "one batch is drawn ahead"
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)


_BESIDE = f"""{_SET_UP}
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def without_end(rows, size):
    data = TensorDataset(torch.randn(rows, 8))
    while True:
        for (batch,) in DataLoader(data, size):
            yield batch
training, beside = without_end(64, 4), without_end(48, SIZE)
@torch.no_grad()
def look(batch):
    return model(batch)
while True:
    for _ in range(2):
        x, y = ORDER
        look(y)
        LOSS.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_ORDERS = {
    "training first": "next(training), next(beside)",
    "training last": "(next(beside), next(training))[::-1]",
    "apart": "(look(z := next(beside)), next(training), z)[1:]",
}


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("order", _ORDERS)
def test_validation_batch_beside_every_training_batch_is_not_counted(order: str, size: int) -> None:
    script = _BESIDE.replace("ORDER", _ORDERS[order]).replace("SIZE", str(size))
    found = look(script.replace("LOSS", "model(x)"))
    assert found.samples == [8] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize(
    "loss", ["torch.cat([model(x), model(y)])", "model(torch.cat([x, y]))"], ids=["apart", "in one"]
)
@pytest.mark.parametrize("order", ["training first", "training last"])
def test_batch_that_gets_pseudo_labels_counts_with_the_other(
    order: str, loss: str, size: int
) -> None:
    script = _BESIDE.replace("ORDER", _ORDERS[order]).replace("SIZE", str(size))
    found = look(script.replace("LOSS", loss))
    assert found.samples == [2 * (4 + size)] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4 + size, 2)


_BOTH = """
data = TensorDataset(torch.randn(36, 8))
def batches(size):
    while True:
        for (x,) in DataLoader(data, size):
            yield x
small, large = batches(3), batches(9)
while True:
    x, y = ORDER
    train(torch.cat([x, y]))
"""


@pytest.mark.parametrize("order", ["next(small), next(large)", "(next(large), next(small))[::-1]"])
def test_batches_of_two_loaders_count_together(order: str) -> None:
    """The one with fewer batches is begun anew meanwhile."""
    found = look(_SET_UP + _BOTH.replace("ORDER", order), steps=13)
    assert found.samples == [12] * 13
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (12, 1)


def test_accumulated_batches_are_micro_batches() -> None:
    script = f"""{_SET_UP}
while True:
    for number, x in enumerate(DataLoader(torch.randn(66, 8), 4), 1):
        (model(x).square().mean() / 3).backward()
        if number % 3 == 0:
            optimizer.step()
"""
    found = look(script)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 3)
    assert not found.seen.varies


def test_batch_that_is_passed_on_in_parts_has_as_many_micro_batches() -> None:
    script = f"""{_SET_UP}
while True:
    for x in DataLoader(torch.randn(64, 8), 8):
        for part in x.chunk(4):
            model(part).square().mean().backward()
        optimizer.step()
"""
    found = look(script)
    assert found.samples == [8] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (2, 4)


def test_batch_whose_samples_pass_one_by_one_is_one_micro_batch() -> None:
    """As detection models are called, before one backward pass for the batch."""
    script = f"""{_SET_UP}
class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.randn(8), {{"boxes": torch.rand(index % 5 + 1, 4)}}
while True:
    loader = DataLoader(Pictures(), 4, collate_fn=lambda batch: tuple(zip(*batch)))
    for number, (pictures, targets) in enumerate(loader):
        sum(model(picture[None]).sum() for picture in pictures).backward()
        if number % 2:
            optimizer.step()
"""
    found = look(script)
    assert found.samples == [8] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)


_WITHOUT_TENSORS = """
import numpy as np, torch
from torch import nn

class Graph:
    def __init__(self):
        self.nodes = np.ones((7, 8), dtype=np.float32)

class Graphs:
    def __init__(self, several):
        self.several = several

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def forward(self, graphs, *labels, pools="mean"):
        several = getattr(graphs, "several", graphs)
        rows = [getattr(graph, "nodes", graph).mean(0, keepdims=True) for graph in several]
        return {returned}

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    loss = model({given}).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_ROWS = "self.layer(torch.from_numpy(np.concatenate(rows)))"


@pytest.mark.parametrize(
    ("given", "returned", "samples", "by_results"),
    [
        ("np.ones((6, 5, 8), dtype=np.float32), *[np.ones((6, 5))] * 3", _ROWS, 6, False),
        ("[Graph() for _ in range(6)]", _ROWS, 6, False),
        ("[Graph() for _ in range(6)], pools='sum'", _ROWS, 6, False),
        ("Graphs([Graph() for _ in range(6)])", _ROWS, 6, True),
        ("Graphs([Graph() for _ in range(6)])", f"{_ROWS}.mean()", 0, True),
    ],
    ids=["arrays", "objects", "words", "rows of the result", "a loss alone"],
)
def test_samples_of_a_model_that_is_given_no_tensor(
    given: str, returned: str, samples: int, by_results: bool
) -> None:
    script = _WITHOUT_TENSORS.replace("{given}", given).replace("{returned}", returned)
    seen = look(script).seen
    assert (seen.micro_batch, seen.accumulation_steps) == (samples, 1)
    assert seen.returned == by_results
    assert seen.counts_steps == (not samples)


def test_two_passes_before_one_backward_are_one_micro_batch_without_a_loader() -> None:
    script = f"""{_SET_UP}
while True:
    one, other = torch.randn(4, 8), torch.randn(4, 8)
    (model(one) - model(other)).square().mean().backward()
    optimizer.step()
"""
    found = look(script)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 1)


_REUSE = f"""{_SET_UP}
while True:
    for x in DataLoader(torch.randn(256, 8), ROWS):
        for _ in range(2):
            for part in x.split(8):
                train(part)
"""


@pytest.mark.parametrize("rows", [8, 16, 24, 32, 256])
def test_batch_that_several_steps_train_on_is_said_to_be(rows: int) -> None:
    found = look(_REUSE.replace("ROWS", str(rows)), steps=4)
    assert found.seen.reuses
    assert found.seen.counts_steps
    assert not found.seen.accumulation_varies


@pytest.mark.parametrize("drawn", ["torch.randn(4, 8)", "next(batches)"])
def test_passes_of_a_closure_are_one_micro_batch(drawn: str) -> None:
    script = f"""{_SET_UP}
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=5)
batches = iter(DataLoader(torch.randn(400, 8), 4))
while True:
    x = {drawn}
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
    found = look(script, steps=3)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 1)
    assert not found.seen.uneven


def test_closure_that_ends_an_accumulation_is_its_last_micro_batch() -> None:
    """As Lightning steps."""
    script = f"""{_SET_UP}
batches = iter(DataLoader(torch.randn(400, 8), 4))
def closure():
    model(next(batches)).square().mean().backward()
while True:
    closure()
    optimizer.step(closure)
"""
    found = look(script, steps=4)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)
    assert not found.seen.uneven


@pytest.mark.parametrize("size", [1, 2, 10])
@pytest.mark.parametrize("passes", [1, 4])
def test_batches_that_a_thread_draws_ahead_are_no_variation(passes: int, size: int) -> None:
    """The loaders of prefetch_generator, BasicSR and fairseq draw in a thread of their own."""
    script = f"""{_SET_UP}{IN_A_THREAD}
while True:
    loader = DataLoader(torch.randn(64 * 4, 8), 4)
    for number, x in enumerate(Background(loader, {size}), 1):
        model(x).square().mean().backward()
        if number % {passes} == 0:
            optimizer.step()
"""
    found = look(script, steps=20)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, passes)
    assert not found.seen.uneven


_BY_GROUPS = """
optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.01)
def step():
    groups = optimizer.param_groups
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()
    optimizer.param_groups = groups
"""
_BY_BASE_CLASS = """
class Own(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
own = Own(model.parameters(), lr=0.01)
step = own.step
"""


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("steps", [_BY_GROUPS, _BY_BASE_CLASS], ids=["by groups", "by base class"])
def test_steps_after_the_same_backward_passes_are_one(steps: str, passes: int) -> None:
    """DeepSpeed's ZeRO steps group by group; a subclass calls the step of its base class."""
    script = f"""{_SET_UP}{steps}
while True:
    for number, x in enumerate(DataLoader(torch.randn(96, 8), 4), 1):
        model(x).square().mean().backward()
        if number % {passes} == 0:
            step()
"""
    found = look(script)
    assert found.samples == [4 * passes] * 6
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, passes)
    assert not found.seen.uneven


def test_steps_count_again_where_backward_passes_are_not_seen_any_more() -> None:
    """A CUDA graph replays passes that no hook sees."""
    script = f"""{_SET_UP}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(torch.randn(12, 8), 4):
    train(x)
while True:
    for x in DataLoader(torch.randn(96, 8), 4):
        optimizer.step()
"""
    assert len(look(script).samples) == 6


def test_optimizer_that_is_built_anew_leads_after_some_steps() -> None:
    """Scripts that train folds, or unfreeze layers, build another optimizer."""
    script = f"""{_SET_UP}
for rows in (2, 200):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(torch.randn(rows * 4, 8), 4):
        train(x)
"""
    found = look(script)
    assert found.samples == [4, 4, 4 * 129, 4, 4, 4]
    assert not found.seen.uneven


def test_optimizer_that_others_step_between_leads_on() -> None:
    script = f"""{_SET_UP}
first, second = (torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2))
for number, x in enumerate(DataLoader(torch.randn(404 * 4, 8), 4)):
    optimizer = second if number % 101 else first
    train(x)
"""
    assert look(script, steps=4).samples == [4, *[404] * 3]


def test_optimizer_steps_without_a_backward_pass_that_is_seen_all_count() -> None:
    script = f"""{_SET_UP}
for x in DataLoader(torch.randn(96, 8), 4):
    torch.autograd.backward(model(x).square().mean())
    optimizer.step()
"""
    assert look(script, steps=4).seen.steps == 4


_RAMP = f"""{_SET_UP}
batches = iter(DataLoader(torch.randn(4000, 8), 4))
for step in range(100):
    for _ in range(1 + step // 2):
        model(next(batches)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_accumulation_that_varies_is_said_to() -> None:
    found = look(_RAMP)
    assert found.samples == [4, 4, 8, 8, 12, 12]
    assert found.seen.micro_batch == 4
    assert found.seen.accumulation_varies
    assert not found.seen.counts_steps


def test_accumulation_that_begins_with_a_single_micro_batch_does_not_vary() -> None:
    script = f"""{_SET_UP}
for number, x in enumerate(DataLoader(torch.randn(400, 8), 4)):
    model(x).square().mean().backward()
    if number % 3 == 0:
        optimizer.step()
"""
    found = look(script, steps=4)
    assert found.samples == [4, 12, 12, 12]
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 3)
    assert not found.seen.uneven


def test_short_last_batches_of_short_epochs_are_no_variation() -> None:
    script = f"""{_SET_UP}
while True:
    for x in DataLoader(torch.randn(9, 8), 8):
        train(x)
"""
    found = look(script)
    assert found.samples == [8, 1] * 3
    assert not found.seen.uneven


def test_shorter_last_accumulation_of_an_epoch_is_no_variation() -> None:
    script = f"""{_SET_UP}
while True:
    for number, x in enumerate(DataLoader(torch.randn(20, 8), 4), 1):
        model(x).square().mean().backward()
        if number % 2 == 0 or number == 5:
            optimizer.step()
"""
    found = look(script)
    assert found.samples == [8, 8, 4] * 2
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)
    assert not found.seen.uneven


@pytest.mark.parametrize("ahead", ["batches", "one_ahead(batches)"])
@pytest.mark.parametrize("batches", [5, 9])
def test_shorter_last_accumulation_of_short_epochs_is_no_variation(
    ahead: str, batches: int
) -> None:
    script = f"""{_SET_UP}
def one_ahead(batches):
    latest = next(batches)
    for following in batches:
        yield latest
        latest = following
    yield latest
while True:
    batches = iter(DataLoader(torch.randn({4 * batches}, 8), 4))
    for number, x in enumerate({ahead}, 1):
        model(x).square().mean().backward()
        if number % 4 == 0 or number == {batches}:
            optimizer.step()
"""
    found = look(script, steps=12)
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 4)
    assert not found.seen.uneven


def test_accumulation_that_varies_within_an_epoch_is_said_to() -> None:
    script = f"""{_SET_UP}
batches = iter(DataLoader(torch.randn(400, 8), 4))
for number in range(100):
    for _ in range(4 if number % 2 else 1):
        model(next(batches)).square().mean().backward()
    optimizer.step()
"""
    assert look(script, steps=12).seen.accumulation_varies


def test_batches_that_vary_are_said_to() -> None:
    script = of_loader(
        """
batches = [list(range(start, start + 2 + start % 3)) for start in range(0, 390, 2)]
loader = DataLoader(Rows(), batch_sampler=batches)
""",
        "x.sum()",
    )
    found = look(script)
    assert found.samples == [2, 4, 3] * 2
    assert found.seen.varies
    assert found.seen.accumulation_steps == 1


def test_frameworks_read_the_arguments_of_classes_that_are_watched() -> None:
    script = f"""
import inspect
from torch.utils.data import DataLoader
from torch.nn.parallel import DistributedDataParallel
assert list(inspect.signature(DataLoader.__init__).parameters)[:3] == ["self", "dataset", "batch_size"]
assert list(inspect.signature(DistributedDataParallel.__init__).parameters)[:2] == ["self", "module"]
{_FOREVER}"""
    assert look(script, steps=1).samples == [4]


@pytest.mark.parametrize(
    "drawn",
    [
        "",
        pytest.param("\nloader = iter(DataLoader(torch.randn(64, 8), 4))", marks=pytest.mark.long),
    ],
)
def test_script_without_an_optimizer_is_left_after_a_few_passes(drawn: str) -> None:
    batch = "next(loader)" if drawn else "torch.randn(4, 8)"
    script = f"""{_SET_UP.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.01)", drawn)}
for _ in range(12):
    model({batch}).square().mean().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.01)
raise RuntimeError("it was to be left before")
"""
    found = look(script)
    assert found.seen.backwards == 8
    assert "8 backward passes, and built no optimizer of torch.optim" in found.seen.ended
    assert ("DataLoader" in found.seen.ended) == bool(drawn)


_TEXT = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset
class Sentences(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.ones(2 + index % 4, dtype=torch.long)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
def collate(rows):
    text = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    pairs = torch.ones(len(rows), text.size(1), text.size(1)).tril()
    return BATCH
while True:
    for batch in DataLoader(Sentences(), 4, collate_fn=collate):
        model(torch.ones(1)).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("batch", "tokens", "padded"),
    [
        ("{'input_ids': text, 'attention_mask': (text > 0).long()}", 14, False),
        ("{'input_ids': text, 'labels': text.masked_fill(text == 0, -100)}", 14, False),
        ("{'input_ids': text, 'lengths': lengths}", 14, False),
        ("{'input_ids': text, 'lengths': lengths, 'attention_mask': pairs}", 14, False),
        ("(text, lengths)", 14, False),
        ("(text.T.contiguous(), lengths)", 14, False),
        ("pack_sequence(rows, enforce_sorted=False)", 14, False),
        ("text", 20, False),
        ("nn.functional.pad(text, (0, int(torch.randint(9, ()))))", None, True),
        ("text.float()", 0, False),
    ],
)
def test_padding_is_no_token_where_a_batch_tells_it(
    batch: str, tokens: int | None, padded: bool
) -> None:
    found = look(_TEXT.replace("BATCH", batch), counts_tokens=True)
    if tokens is not None:
        assert found.tokens == [tokens] * 6
    assert found.padded == padded
    assert found.samples == [4] * 6


_FINE_TUNING = """
from torch.utils.data import Dataset, Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import torch
class Rows(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        row = torch.arange(16) + index % 16
        return {"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)}
sizes = dict(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=1)
model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
arguments = TrainingArguments(
    "out", use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    per_device_train_batch_size=4, gradient_accumulation_steps=2,
    eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=16,
)
Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Subset(Rows(), range(32))).train()
"""


@pytest.mark.errand
def test_fine_tuning_by_transformers_is_seen_from_its_first_step_on() -> None:
    pytest.importorskip("accelerate")
    found = look(_FINE_TUNING, counts_tokens=True)
    assert found.samples == [12, *[8] * 5], "one batch is drawn ahead"
    assert found.tokens == [16 * samples for samples in found.samples]
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)


_LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def validation_step(self, batch, index):
        self.layer(batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
keeps = dict(num_workers=1, persistent_workers=True)
lightning.Trainer(
    accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    accumulate_grad_batches=2, val_check_interval=2, use_distributed_sampler=True,
).fit(Module(), DataLoader(torch.randn(64, 8), 4, **keeps), DataLoader(torch.randn(64, 8), 16, **keeps))
"""


@pytest.mark.errand
def test_lightning_is_seen_with_loaders_that_persist() -> None:
    pytest.importorskip("lightning")
    found = look(_LIGHTNING, steps=9)
    assert sum(found.samples) in (72, 76), "one batch may be drawn ahead"
    assert (found.seen.micro_batch, found.seen.accumulation_steps) == (4, 2)


def test_model_with_sparse_gradients_is_seen() -> None:
    script = f"""{_SET_UP}
table = nn.Embedding(9, 8, sparse=True)
optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.01)
joined = nn.Sequential(table, model)
while True:
    joined(torch.tensor([1, 2])).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert look(script).seen.sparse
    assert not look(_FOREVER).seen.sparse
