"""A small GPT-2 from scratch with transformers.Trainer, on the source of torch.

torchrun --standalone --nproc-per-node 2 hf_trainer.py --output_dir out --per_device_train_batch_size 4
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    n_layer: int = field(default=2, metadata={"help": "Transformer blocks."})
    n_embd: int = field(default=64, metadata={"help": "Width."})
    n_head: int = field(default=2, metadata={"help": "Attention heads."})


@dataclass
class DataArguments:
    block_size: int = field(default=64, metadata={"help": "Bytes of text per sample."})


class Bytes(Dataset):
    """Source text of torch, byte by byte, cut into samples of equal length."""

    def __init__(self, length: int, pattern: str):
        text = b"".join(
            path.read_bytes() for path in sorted(Path(torch.__file__).parent.glob(pattern))
        )
        whole = len(text) // length * length
        self.samples = torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).view(-1, length)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        ids = self.samples[index].long()
        return {"input_ids": ids, "labels": ids}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=256,
        n_positions=data_args.block_size,
        n_layer=model_args.n_layer,
        n_embd=model_args.n_embd,
        n_head=model_args.n_head,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        train_dataset=Bytes(data_args.block_size, "*.py"),
        eval_dataset=Bytes(data_args.block_size, "optim/adam.py"),
    )
    trainer.train()
    trainer.save_model()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
