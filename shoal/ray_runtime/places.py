"""Where Ray has room for each replica: placement groups that reserve what the replicas need, a bundle for each unit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from shoal.api import UsageError
from shoal.ray_runtime import placement
from shoal.ray_runtime.placement import Node, Unit
from shoal.ray_runtime.versions import compare, versions

RESOURCE_WAIT_SECONDS = 30.0  # seconds to wait for resources that others use


def nodes() -> list[Node]:
    """The nodes that are alive, those with the most GPUs and CPUs first."""
    found = []
    for facts in ray.nodes():
        if facts["Alive"]:
            name = f"node {facts['NodeManagerAddress']} ({facts['NodeID'][:6]})"
            found.append(Node(facts["NodeID"], name, {k: float(v) for k, v in facts["Resources"].items()}))
    return sorted(found, key=lambda n: (-n.resources.get("GPU", 0.0), -n.resources.get("CPU", 0.0), n.id))


def check_versions(found: Sequence[Node]) -> dict[str, str]:
    """package -> version, the same on this machine and on all nodes. UsageError that names the first that differs."""
    ask = ray.remote(versions)
    asked = [
        ask.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote()
        for node in found
    ]
    for node, reference in zip(found, asked, strict=True):
        try:
            compare(node.name, ray.get(reference, timeout=RESOURCE_WAIT_SECONDS))
        except ray.exceptions.RayError as error:
            last = str(error).strip().rpartition("\n")[2]
            raise UsageError(f"{node.name} cannot run Shoal: {last}") from None
    return versions()


class Places:
    """Reserves room for all units, on as few nodes as have it: a group for each node, which is where it is placed if
    Ray finds room there, else on another. where: replica -> node; gpus: replica -> the GPU of its node that is its own,
    as CUDA_VISIBLE_DEVICES names it, if its device is ``cuda``."""

    def __init__(self, units: Sequence[Unit], found: Sequence[Node]) -> None:
        placed, _ = placement.fit(units, found)
        self._units = {replica: unit for unit in units for replica in unit.replicas}
        self._groups: dict[tuple[str, int], Any] = {}
        self._moving: set[tuple[str, int]] = set()
        groups = [
            (placement_group([dict(u.needs) for u in there], "STRICT_PACK", _soft_target_node_id=node), there)
            for node, there in placed.items()
            if there
        ]
        for group, there in groups:
            self._groups |= {replica: group for unit in there for replica in unit.replicas}
        self.where: dict[tuple[str, int], str] = {}
        end = time.monotonic() + RESOURCE_WAIT_SECONDS
        for group, there in groups:
            if not group.wait(max(0.0, end - time.monotonic())):
                self.close()
                raise _busy(there)
        self.where = {replica: _node(group) for replica, group in self._groups.items()}
        self.gpus: dict[tuple[str, int], str] = {}
        for group, there in groups:
            self._give(group, there)

    def again(self, replica: tuple[str, int]) -> str | None:
        """The node that has room for a replica whose node was lost; None: none has, yet."""
        if replica not in self._moving:
            self._moving.add(replica)
            remove_placement_group(self._groups[replica])  # of the whole node that was lost
            self._groups[replica] = placement_group([dict(self._units[replica].needs)])
        group = self._groups[replica]
        if not group.wait(0):
            return None
        node = _node(group)
        if node not in {n["NodeID"] for n in ray.nodes() if n["Alive"]}:
            self._moving.discard(replica)  # lost, too, meanwhile
            return None
        self._give(group, [self._units[replica]])
        return node

    def _give(self, group: Any, units: Sequence[Unit]) -> None:
        """The GPUs that Ray keeps for these units: as long as a bundle is theirs, tasks in it see the same ones."""
        for bundle, unit in enumerate(units):
            if unit.gpus:
                where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
                ask = ray.remote(_gpus).options(num_cpus=0, num_gpus=unit.needs["GPU"], scheduling_strategy=where)
                self.gpus |= zip(unit.gpus, ray.get(ask.remote(), timeout=RESOURCE_WAIT_SECONDS), strict=True)

    def settled(self, replica: tuple[str, int]) -> None:
        """A replica that was to go on elsewhere does."""
        self._moving.discard(replica)

    def name(self, node: str) -> str:
        """Return what a node is called in sentences."""
        return next((n.name for n in nodes() if n.id == node), f"node {node[:6]}")

    def close(self) -> None:
        for group in {group.id: group for group in self._groups.values()}.values():
            remove_placement_group(group)


def _gpus() -> list[str]:
    """Of a task: the GPUs that are its own."""
    return [str(gpu) for gpu in ray.get_gpu_ids()]


def _node(group: Any) -> str:
    """Return where a group lies, all of whose bundles are on one node."""
    found: str = placement_group_table(group)["bundles_to_node_id"][0]
    return found


def _busy(units: Sequence[Unit]) -> UsageError:
    free, needs = ray.available_resources(), placement.total(units)
    wanted = ", ".join(placement.show(name, amount) for name, amount in needs.items())
    found = ", ".join(placement.show(name, free.get(name, 0.0)) for name in needs)
    return UsageError(
        f"the Ray cluster has been busy for {RESOURCE_WAIT_SECONDS:.0f} s: {wanted} are needed on one node, "
        f"free on all are {found}"
    )
