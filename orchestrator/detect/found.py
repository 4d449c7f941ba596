"""Find out what this cluster is: ask Slurm, look here, look at a node if that is wanted."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.detect import looking, probing, site
from orchestrator.detect.choosing import Wish
from orchestrator.detect.node import Node
from orchestrator.detect.probing import Request
from orchestrator.detect.rights import rights
from orchestrator.detect.site import Detected
from orchestrator.errors import ProfileError, QueryError
from orchestrator.keys.fields import validate
from orchestrator.profile import SiteProfile, shipped
from orchestrator.slurm import asking
from orchestrator.slurm.asking import Slurm
from orchestrator.slurm.inventory import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How to look at compute nodes."""

    nodes: int = 1
    account: str | None = None
    wait_s: float = 900.0


def find(
    wish: Wish,
    probe: Probe | None,
    *,
    slurm: Slurm,
    say: Callable[[str], None],
    ready: Callable[[Detected], object] = lambda _: None,
) -> Detected:
    """Return what this cluster is.

    A probe that fails leaves the profile as it is without, and a word about it.

    Args:
        wish: What the user asks for.
        probe: How to look at compute nodes; None does not.
        slurm: Whom to ask.
        say: Takes a line about how it gets on.
        ready: Sees what is found before anybody waits for a node, and may raise.

    Raises:
        QueryError: Slurm does not even show its partitions.
        ProfileError: There is no partition for this user.
    """
    cluster = asking.cluster(looking.user_name(), slurm)
    login = looking.login_node(cluster.config.get("PlugStackConfig"))
    today = time.strftime("%Y-%m-%d")

    def detected(node: Node | None = None) -> Detected:
        return site.detected(cluster, login, node, wish=wish, today=today, names=shipped())

    found = detected()
    ready(found)
    if probe is None:
        return found
    try:
        nodes = _look(profile_of(found), probe, say=say)
    except QueryError as problem:
        return replace(found, left_out=(*found.left_out, f"--node: {problem}"))
    whole = detected(nodes[0])
    differ = [one.host for one in nodes[1:] if not _alike(one, nodes[0])]
    words = [f"{host} differs from {nodes[0].host} in GPUs or adapters" for host in differ]
    return replace(whole, left_out=(*whole.left_out, *words))


def accounts_for(partition: str | None, slurm: Slurm) -> tuple[tuple[str, ...], str | None]:
    """Return the accounts with which this user may use ``partition``, and Slurm's default one.

    None of them where accounting does not say. The default one comes first.
    """
    cluster = asking.accounts(looking.user_name(), slurm)
    mine = rights(cluster.associations, cluster.default_account, groups=None)
    known = next((one for one in cluster.partitions if one.name == partition), None)
    names = mine.accounts_for(known or Partition(name=""))
    return names or (), mine.default_account


def profile_of(found: Detected) -> SiteProfile:
    """Return what was found as a profile.

    Raises:
        ProfileError: It makes none.
    """
    where = Path(f"{found.data['name']}.yaml")
    return validate(SiteProfile, found.data, where=where, error=ProfileError)


def _look(profile: SiteProfile, probe: Probe, *, say: Callable[[str], None]) -> tuple[Node, ...]:
    partition = str(profile.default_partition)
    request = Request(
        partition=partition, nodes=probe.nodes, account=probe.account, wait_s=probe.wait_s
    )
    say(f"a job of a few minutes looks at {probe.nodes} of the nodes of {partition}")
    return probing.look(profile, request, say=say)


def _alike(one: Node, other: Node) -> bool:
    return (one.gpus, len(one.ports)) == (other.gpus, len(other.ports)) and [
        port.state for port in one.ports
    ] == [port.state for port in other.ports]
