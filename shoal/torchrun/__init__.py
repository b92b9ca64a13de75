"""The torchrun runtime: every process that torchrun started is a rank of one program, joined by torch.distributed."""
