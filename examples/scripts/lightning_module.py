"""An autoencoder as a LightningModule, trained by lightning.Trainer with DDP.

torchrun --standalone --nproc-per-node 2 lightning_module.py --devices 2
"""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self, width=512, code=32, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, 784))

    def training_step(self, batch, batch_idx):
        (pixels,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(pixels)), pixels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (pixels,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(pixels)), pixels)
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Digits(lightning.LightningDataModule):
    """Stand-ins for handwritten digits."""

    def __init__(self, batch_size, workers):
        super().__init__()
        self.batch_size = batch_size
        self.workers = workers

    def setup(self, stage):
        generator = torch.Generator().manual_seed(0)
        self.train = TensorDataset(torch.rand(8192, 784, generator=generator))
        self.held_out = TensorDataset(torch.rand(512, 784, generator=generator))

    def train_dataloader(self):
        return DataLoader(
            self.train, self.batch_size, shuffle=True, num_workers=self.workers, drop_last=True
        )

    def val_dataloader(self):
        return DataLoader(self.held_out, 64, num_workers=self.workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--devices", type=int, default=torch.cuda.device_count() or 1)
    parser.add_argument("--max-steps", type=int, default=10_000)
    parser.add_argument("--log-dir", default="lightning")
    args = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=args.devices,
        strategy="ddp",
        max_steps=args.max_steps,
        accumulate_grad_batches=args.accumulate,
        precision=args.precision,
        gradient_clip_val=1.0,
        val_check_interval=0.5,
        default_root_dir=args.log_dir,
        enable_progress_bar=False,
    )
    trainer.fit(Autoencoder(), datamodule=Digits(args.batch_size, args.workers))


if __name__ == "__main__":
    main()
