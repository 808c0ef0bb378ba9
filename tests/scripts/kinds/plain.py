"""One process, nothing around the model."""

import tiny
import torch

args = tiny.arguments()
torch.manual_seed(0)
model = tiny.Transformer()
tiny.train(model, tiny.loader(args.batch_size), args.steps)
torch.save(model.state_dict(), "model.pt")
