"""Replicas keep freed memory: the allocator's setting, counted in page faults of a process of its own."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from shoal.local import processes
if {keep}:
    processes.keep_freed_memory()
torch.set_num_threads(1)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    return [torch.ones(10_000_000) for _ in range(2)]  # 40 MB each: more than malloc keeps by itself
for _ in range(30):  # until aligned blocks fall into place
    work()
before = faults()
for _ in range(5):
    work()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's allocator")
def test_what_is_freed_is_not_faulted_in_again():
    def faults(keep):
        command = [sys.executable, "-c", FAULTS.format(keep=keep)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout)

    assert faults(True) < 100
    assert faults(False) > 100  # fewer where pages are huge
