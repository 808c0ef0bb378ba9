"""A text classifier with Hugging Face Accelerate: prepare, accumulate, clip.

torchrun --standalone --nproc-per-node 2 accelerate_loop.py --batch_size 8
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    """Stand-ins for tokenised reviews of different lengths."""

    def __init__(self, count: int, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(16, 33, (count,), generator=self.generator).tolist()
        self.seed = seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        words = torch.randint(1, 1000, (self.lengths[index],), generator=generator)
        return {"input_ids": words, "label": int((words < 500).float().mean() > 0.5)}


def collate(samples):
    longest = 32
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in zip(ids, samples, strict=True):
        row[: len(sample["input_ids"])] = sample["input_ids"]
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"labels": labels, "input_ids": ids, "attention_mask": ids != 0}


class Classifier(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        found = self.encoder(self.embed(input_ids), src_key_padding_mask=~attention_mask)
        logits = self.head(found[:, 0])
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--mixed_precision", default="no", choices=["no", "fp16", "bf16"])
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--num_epochs", type=int, default=20)
    parser.add_argument("--output_dir", default="classifier")
    args = parser.parse_args()

    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision=args.mixed_precision,
        cpu=args.cpu,
    )
    set_seed(42)
    train = DataLoader(Reviews(4096, 1), args.batch_size, shuffle=True, collate_fn=collate)
    evaluation = DataLoader(Reviews(256, 2), 32, collate_fn=collate)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    steps = args.num_epochs * len(train) // args.gradient_accumulation_steps
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    model, optimizer, train, evaluation, schedule = accelerator.prepare(
        model, optimizer, train, evaluation, schedule
    )

    for epoch in range(args.num_epochs):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

        model.eval()
        right = []
        for batch in evaluation:
            with torch.no_grad():
                found = model(**batch)["logits"].argmax(-1)
            found, labels = accelerator.gather_for_metrics((found, batch["labels"]))
            right.append(found == labels)
        accelerator.print(f"epoch {epoch}: accuracy {torch.cat(right).float().mean().item():.3f}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, args.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
