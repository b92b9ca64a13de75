"""The device of the tests marked ``cuda``: a GPU or, with ``SHOAL_TEST_DEVICE=cpu``, the CPU, where they show that
their own code works."""

import os

import torch

DEVICE = os.environ.get("SHOAL_TEST_DEVICE", "cuda")
ON_GPU = torch.device(DEVICE).type == "cuda"
PRESENT = not ON_GPU or torch.cuda.is_available()
ABSENT = "PyTorch finds no CUDA GPU (SHOAL_TEST_DEVICE=cpu runs the same tests on the CPU)"
UPDATES = 20 if ON_GPU else 3  # of a system that is compared with itself on the CPU
