"""A script whose settings Hydra reads from the command."""

from dataclasses import dataclass

import hydra
import tiny
import torch
from hydra.core.config_store import ConfigStore


@dataclass
class Settings:
    batch_size: int = 8
    steps: int = 1_000_000


ConfigStore.instance().store(name="settings", node=Settings)


@hydra.main(version_base=None, config_name="settings")
def main(settings):
    torch.manual_seed(0)
    model = tiny.Transformer()
    tiny.train(model, tiny.loader(settings.batch_size), settings.steps)
    torch.save(model.state_dict(), "model.pt")


main()
