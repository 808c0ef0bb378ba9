"""Result of a survey: what a training script showed in its first steps."""

from dataclasses import dataclass, field
from typing import Any

from autotune.worker.decoding import AsJson

SETTINGS = (".yaml", ".yml", ".json", ".toml")
"""Extensions of files from which scripts read their settings."""
ENDED = "the script ended"
"""Begins what is said of a script that ended by itself; with nothing behind it, without an error."""

ON = "on"
"""Value of a knob that is in force in a form that does not show."""


@dataclass(frozen=True)
class Option:
    """Command line option of a script, and its present value.

    Attributes:
        flag: `--flag`, `--flag=` where its value must be in the same argument, or `key=`; of a switch
            also `--on/--off`, or `/--off` where nothing but its absence switches it on.
        name: of the value inside the script.
        value: in force.
        switch: whether it has no value, and is given or not.
        sure: whether a parser knows it; otherwise it is a guess from a variable of that name.
        choices: all values that its parser takes; empty: it does not say.
        help: what its parser tells of it.
    """

    flag: str
    name: str
    value: Any
    switch: bool = False
    sure: bool = True
    choices: tuple[str, ...] = ()
    help: str = ""


@dataclass(frozen=True)
class SurveyResult(AsJson):
    """First steps of a script on one rank.

    Attributes:
        steps: of the optimizer that were seen.
        micro_batch: samples of a forward pass with gradients on; 0 if they are not known.
        rows: of the tensors of a batch whose loader counts it as one sample; 0 for others.
        columns: of the first tensor that the model is given; 0 if it has none.
        accumulation_steps: such passes per optimizer step.
        varies: whether its batches have different numbers of samples; then micro_batch is the most
            frequent one.
        accumulation_varies: whether its steps have different numbers of micro-batches; then
            accumulation_steps is the usual number.
        reuses: whether its steps have different numbers of samples for another reason, such as a batch
            that is trained on by several steps.
        guessed: whether samples were counted by tensors, as its loader does not know them.
        returned: whether they were counted by what the model returns, as neither a loader nor what it is
            given tells them; a guess until a setting is seen to turn them.
        backwards: backward passes that were seen.
        loader: whether a DataLoader yielded what it trained on.
        ddp: whether a model was in DistributedDataParallel.
        sharded: whether parameters are sharded tensors (FSDP2).
        scaled: whether a GradScaler scaled the loss.
        first_gradient: norm of the gradient of the first step, of shards the part of a rank; 0: unknown.
        optimizer: its class; empty if none has stepped.
        convolutions: whether the model has any.
        sparse: whether an embedding of it has sparse gradients.
        targets: of knobs that the model has, as the catalogue names them.
        idle: knobs that were to act on it from outside, and have found nothing.
        batch_dependent: what of it computes over the rows of a micro-batch together, in words.
        own: knob -> value that the script sets by itself, as far as it shows.
        settled: knobs of the process that the script sets by itself.
        threads: of an operator on the CPU.
        attends: whether scaled_dot_product_attention was called.
        reads: how often a number was read from a tensor, as a loss is for a log.
        frames: number of frames that torch.compile has compiled.
        options: all that were found, in the order of the script.
        spawns: ranks that it starts by torch.multiprocessing.spawn; 0: none.
        children: processes that it had started by multiprocessing and that ran when it was left.
        settings: files of YAML, JSON or TOML that it opened for reading, of its own folder or named by
            its arguments.
        ended: how it ended, or why it was left before its steps were seen; else empty.
    """

    steps: int = 0
    micro_batch: int = 0
    rows: int = 0
    columns: int = 0
    accumulation_steps: int = 1
    varies: bool = False
    accumulation_varies: bool = False
    reuses: bool = False
    guessed: bool = False
    returned: bool = False
    backwards: int = 0
    loader: bool = False
    ddp: bool = False
    sharded: bool = False
    scaled: bool = False
    first_gradient: float = 0.0
    optimizer: str = ""
    convolutions: bool = False
    sparse: bool = False
    targets: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    batch_dependent: str = ""
    own: dict[str, Any] = field(default_factory=dict)
    settled: tuple[str, ...] = ()
    threads: int = 0
    attends: bool = False
    reads: int = 0
    frames: int = 0
    options: tuple[Option, ...] = ()
    settings: tuple[str, ...] = ()
    spawns: int = 0
    children: int = 0
    ended: str = ""

    @property
    def samples(self) -> int:
        """Return the samples of a rank per optimizer step."""
        return self.micro_batch * self.accumulation_steps

    @property
    def ended_by_itself(self) -> bool:
        """Return whether the script came to an end, with or without an error."""
        return self.ended.startswith(ENDED)

    @property
    def failed(self) -> bool:
        """Return whether the script ended by itself with an exit status or a message."""
        return self.ended_by_itself and self.ended != ENDED

    @property
    def uneven(self) -> bool:
        """Return whether no setting says how many samples a step has, as they differ or are not seen."""
        return self.accumulation_varies or self.counts_steps

    @property
    def counts_steps(self) -> bool:
        """Return whether only the steps of two runs are comparable, not their samples."""
        return self.varies or self.reuses or not self.micro_batch


def agrees(own: Any, wanted: Any) -> bool:
    """Return whether a value that was seen of a knob may be the wanted one."""
    # Autocast is the same for tf32 and fp32.
    is_on = own == ON and wanted not in (0, False, "none")
    return own == wanted or (own, wanted) == ("fp32", "tf32") or is_on
