"""Knob value -> its effect on torch, DDP, the loader and the optimizer step.

One function per effect. Each acts on what any training script has (constructor arguments, contexts,
process-wide settings), never on our own loop.
"""
