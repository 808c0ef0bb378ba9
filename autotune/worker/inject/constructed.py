"""Arguments of the objects by which frameworks are configured, such as TrainingArguments.

A script that builds such an object in code has no option for them. A constructor is given other
values here, so that all that the framework derives from them follows: step counts, schedules, scalers.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from autotune.worker.patches import Arrivals, wrapping
from autotune.worker.survey_result import Option

Value = bool | int | float | str
Build = Callable[[Callable[..., None], inspect.BoundArguments], None]
"""Function that receives a constructor and its arguments, and calls it."""
_SETTING = re.compile(r"([A-Z]\w*)\(([a-z_]\w*)(?:=([0-9]+))?\)")
ACCUMULATED_BY_LOOP = "Trainer(accumulate_grad_batches)"
"""Setting of a framework that counts steps itself, whichever loader a script gives to it."""
_HALF = ("bf16-mixed", "16-mixed")


@dataclasses.dataclass(frozen=True)
class ConstructedClass:
    """Class whose arguments may be changed.

    Attributes:
        modules: that define it.
        arguments: those that `init` tries -> values that it takes, the meaning of None first; empty:
            its default tells.
    """

    name: str
    modules: tuple[str, ...]
    arguments: Mapping[str, tuple[Value, ...]]


KINDS = (
    ConstructedClass(
        "TrainingArguments",
        ("transformers.training_args",),
        {
            "per_device_train_batch_size": (),
            "gradient_accumulation_steps": (),
            "bf16": (),
            "fp16": (),
            "torch_compile": (),
            "gradient_checkpointing": (False, True),
            "logging_steps": (),
        },
    ),
    # Its accumulation is left out: the loop is the script's, which counts batches by itself.
    ConstructedClass(
        "Accelerator",
        ("accelerate.accelerator",),
        {"mixed_precision": ("no", "bf16", "fp16"), "dynamo_backend": ("no", "inductor")},
    ),
    ConstructedClass(
        "Trainer",
        ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
        {"precision": ("32-true", *_HALF), "accumulate_grad_batches": ()},
    ),
    # `DataLoader(batch_size=8)`: of several loaders those that are constructed with this value.
    ConstructedClass("DataLoader", ("torch.utils.data.dataloader",), {}),
    ConstructedClass(
        "Fabric",
        ("lightning.fabric.fabric", "lightning_fabric.fabric"),
        {"precision": ("32-true", *_HALF)},
    ),
)
"""Classes whose constructors are given other arguments."""


class Setting(NamedTuple):
    """Argument of a class.

    Attributes:
        kind: name of the class.
        argument: of its constructor.
        of: value with which an object must be constructed to be given another one; None: any.
    """

    kind: str
    argument: str
    of: int | None = None

    def __str__(self) -> str:
        only = "" if self.of is None else f"={self.of}"
        return f"{self.kind}({self.argument}{only})"


def parted(setting: str) -> Setting | None:
    """Return the parts of `Class(argument)` or `Class(argument=8)`; None for another form."""
    found = _SETTING.fullmatch(setting)
    if found is None:
        return None
    return Setting(found[1], found[2], int(found[3]) if found[3] else None)


class Constructed:
    """Observer of constructors, which may be given other arguments.

    Call `watch` before the script runs.
    """

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        """Prepare other arguments.

        Args:
            values: `Class(argument)` -> its value.
        """
        parts = {parted(setting): value for setting, value in (values or {}).items()}
        self._values = {part: value for part, value in parts.items() if part is not None}
        self._found: dict[str, Option] = {}
        self._built: set[str] = set()

    def watch(self) -> None:
        """Change what is constructed from now on."""
        Arrivals(
            {
                module: functools.partial(self._change, kind)
                for kind in KINDS
                for module in kind.modules
            }
        ).begin()

    def unmet(self) -> list[str]:
        """Return the settings whose class the script has not constructed so far."""
        return sorted(str(part) for part in self._values if part.kind not in self._built)

    def found(self) -> tuple[Option, ...]:
        """Return the arguments that the script has constructed objects with."""
        return tuple(self._found.values())

    def _change(self, kind: ConstructedClass, module: Any) -> None:
        owner = getattr(module, kind.name)
        if dataclasses.is_dataclass(owner):
            self._change_fields(kind, owner)
        else:
            construct_by(owner, functools.partial(self._build, kind))

    def _build(
        self, kind: ConstructedClass, build: Callable[..., None], bound: inspect.BoundArguments
    ) -> None:
        own = {**bound.signature.parameters}
        given = {name: bound.arguments.get(name, one.default) for name, one in own.items()}
        self._record(kind, given)
        bound.arguments.update(self._wanted(kind, given))
        build(*bound.args, **bound.kwargs)

    def _change_fields(self, kind: ConstructedClass, owner: Any) -> None:
        """Change the fields of a dataclass where its constructor derives others from them.

        The constructor of a subclass sets them by itself.
        """

        @wrapping(owner, "__post_init__")
        def changed(derive: Any, made: Any, *args: Any, **kwargs: Any) -> None:
            self._record(kind, vars(made))
            for name, value in self._wanted(kind, vars(made)).items():
                setattr(made, name, value)
            derive(made, *args, **kwargs)

    def _wanted(self, kind: ConstructedClass, given: Mapping[str, Any]) -> dict[str, Value]:
        """Return the arguments that an object is given instead of its own."""
        return {
            part.argument: value
            for part, value in self._values.items()
            if part.kind == kind.name and part.of in (None, given.get(part.argument))
        }

    def _record(self, kind: ConstructedClass, given: Mapping[str, Any]) -> None:
        self._built.add(kind.name)
        for option in _options(kind, given):
            self._found.setdefault(option.flag, option)


def _options(kind: ConstructedClass, given: Mapping[str, Any]) -> Iterator[Option]:
    for name, values in kind.arguments.items():
        if name not in given:
            continue
        value = given[name].value if isinstance(given[name], Enum) else given[name]
        if value is None and values:
            value = values[0]
        choices = tuple(one for one in values if isinstance(one, str))
        if isinstance(value, bool | int | float | str):
            yield Option(str(Setting(kind.name, name)), name, value, choices=choices)


def construct_by(owner: type, build: Build) -> None:
    """Construct objects of a class and of its subclasses by `build`.

    The signature stays, as frameworks read it.
    """
    original: Callable[..., None] = owner.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        build(original, signature.bind(*args, **kwargs))

    owner.__init__ = init  # type: ignore[misc]
