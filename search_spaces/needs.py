"""What a knob, or a value of it, needs: in the words in which its lack is told."""

CUDA = "a CUDA device"
NCCL = "NCCL: a CUDA device of its own for every rank"
TF32 = "a CUDA device of compute capability 8.0 or higher"
FP8 = "a CUDA device of compute capability 8.9 or higher"
SWITCH = "a CUDA device of compute capability 9.0 or higher"
HOPPER = "a CUDA device of compute capability 9.0"
