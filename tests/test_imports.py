"""What every actor and learner does imports no compiler, which takes a second or two and 75 MB of each process."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import copy, sys, torch
from shoal.api import Field
from shoal.nets import ImpalaResNet, NatureCNN
from shoal.nets.resnet import ResNet50
from shoal.ops import Adam, RMSProp
from shoal.replay import SequenceSpec

def unseen(part, *allowed):
    found = {"sympy", "numba", "torch._dynamo"}.difference(allowed) & sys.modules.keys()
    assert not found, f"{part}: {found}"

unseen("importing")
with torch.device("meta"):
    NatureCNN(4, 84, 84), ImpalaResNet(4, 84, 84)
    unseen("shapes alone")
    ResNet50(4, 84, 84)
    unseen("shapes of a deep one alone")
spec = {"obs": Field((4, 2, 3)), "action": Field((4, 2), "int64"), "reward": Field((4, 2))}
spec |= {name: Field((4, 2), "bool") for name in ("terminated", "truncated", "valid", "first")}
SequenceSpec(10, initial="max").nbytes(spec)
unseen("counting bytes")
for kind in (Adam, RMSProp):  # torch's own import it to make an optimiser
    p = torch.nn.Parameter(torch.ones(3))
    one = kind([p])
    one.zero_grad()
    p.sum().backward()
    one.step()
    one.load_state_dict(copy.deepcopy(one.state_dict()))
    unseen(kind.__name__, "numba")
"""


def test_what_every_process_does_imports_no_compiler() -> None:
    env = {name: value for name, value in os.environ.items() if name != "SHOAL_PLAIN"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, stderr=subprocess.PIPE, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
