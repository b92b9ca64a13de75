"""Parts that all runtimes share: seeds, devices, interrupts."""
