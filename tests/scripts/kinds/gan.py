"""Two models with an optimizer each, which train against each other."""

import tiny
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as judged


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 3 * 16 * 16)

    def forward(self, noise):
        return self.last(torch.relu(self.first(noise))).view(-1, 3, 16, 16)


args = tiny.arguments()
torch.manual_seed(0)
generator, critic = Generator(), tiny.Transformer(outputs=1)
of_generator = torch.optim.AdamW(generator.parameters(), lr=1e-3)
of_critic = torch.optim.AdamW(critic.parameters(), lr=1e-3)
taken = 0
while taken < args.steps:
    for images, _ in tiny.loader(args.batch_size):
        made = generator(torch.randn(len(images), 16))
        real, fake = critic(images), critic(made.detach())
        loss = judged(real, torch.ones_like(real)) + judged(fake, torch.zeros_like(fake))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fooled = critic(made)
        of_generator.zero_grad()
        judged(fooled, torch.ones_like(fooled)).backward()
        of_generator.step()
        taken += 1
        if taken == args.steps:
            break
torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, "model.pt")
