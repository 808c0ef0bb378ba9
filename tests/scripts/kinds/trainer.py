"""A model of transformers, trained by its Trainer."""

import seen
import tiny
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

args = tiny.arguments()
config = ViTConfig(
    hidden_size=tiny.WIDTH,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=16,
    patch_size=4,
    num_labels=tiny.CLASSES,
)
torch.manual_seed(0)
model = ViTForImageClassification(config)
for module in model.modules():
    if type(module).__name__ == "ViTLayer":
        next(module.children()).register_forward_pre_hook(lambda *_: seen.block_runs())
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=args.batch_size,
        max_steps=args.steps,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=tiny.Images(),
    data_collator=lambda samples: {
        "pixel_values": torch.stack([image for image, _ in samples]),
        "labels": torch.stack([label for _, label in samples]),
    },
)
trainer.train()
torch.save(trainer.model.state_dict(), "model.pt")
