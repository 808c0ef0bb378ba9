"""Cross-entropy of a linear output layer, in slices of the vocabulary: not all logits at once."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    chunks: int,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> torch.Tensor:
    """Return the mean cross-entropy of logits = hidden x weight^T, as torch's cross_entropy does.

    Args:
        hidden: (..., width).
        weight: (vocabulary, width).
        targets: (...), classes.
        chunks: slices of the vocabulary, each computed anew in the backward pass; 1: all logits at once.
        label_smoothing: share of the target that is spread over the vocabulary.
        ignore_index: targets that do not count.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if chunks == 1:
        logits = functional.linear(hidden, weight)
        return functional.cross_entropy(
            logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing
        )
    slices, start = [], 0
    for part in weight.chunk(chunks):
        loss = checkpoint(_slice, hidden, part, targets - start, use_reentrant=False)
        slices.append(loss)
        start += len(part)
    partitions, picked, sums = (torch.stack(column) for column in zip(*slices, strict=True))
    expected = (1 - label_smoothing) * picked.sum(0) + label_smoothing / len(weight) * sums.sum(0)
    losses = partitions.logsumexp(0) - expected
    counted = targets != ignore_index
    return losses.where(counted, 0.0).sum() / counted.sum()


def _slice(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return per token, for the logits of a slice, log-sum-exp, the target's logit and their sum.

    The target's logit is 0 where the target is in another slice.
    """
    logits = functional.linear(hidden, weight).float()
    inside = (targets >= 0) & (targets < len(weight))
    picked = logits.gather(1, targets.clamp(0, len(weight) - 1)[:, None])[:, 0]
    return logits.logsumexp(1), picked.where(inside, 0.0), logits.sum(1)
