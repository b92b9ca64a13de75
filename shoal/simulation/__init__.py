"""A discrete-event simulator of programs: counts, versions and bytes move through the channels, never data."""

from shoal.simulation.behaviour import (
    Behaviour as Behaviour,
    Behaviours as Behaviours,
    Op as Op,
    Step as Step,
    Times as Times,
)
from shoal.simulation.figures import Figures as Figures
from shoal.simulation.machine import Machine as Machine, Node as Node
from shoal.simulation.simulator import simulate as simulate, steady as steady
