"""A LightningModule, whose training step calls the model inside of it."""

import lightning
import tiny
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.Transformer()

    def training_step(self, batch, number):
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


args = tiny.arguments()
lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_steps=args.steps,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
classifier = Classifier()
trainer.fit(classifier, tiny.loader(args.batch_size))
torch.save(classifier.state_dict(), "model.pt")
