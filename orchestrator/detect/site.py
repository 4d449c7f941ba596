"""From what Slurm, the login node and a compute node show to the data of a site profile. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.detect import choosing, limits
from orchestrator.detect.asking_for import put_accounts, put_preemptible, put_qos
from orchestrator.detect.choosing import Wish
from orchestrator.detect.draft import Draft
from orchestrator.detect.login import Login, put_login
from orchestrator.detect.network import put_node, put_unseen_network
from orchestrator.detect.node import Node
from orchestrator.detect.partitions import put_gpus, put_partition
from orchestrator.detect.preemption import CONFIG
from orchestrator.detect.rights import rights
from orchestrator.keys.fields import no_control
from orchestrator.slurm.cluster import Cluster

_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What was found.

    Attributes:
        data: The profile as its file has it.
        left_out: What could not be asked, and partitions that are of no use here, with the reason.
    """

    data: dict[str, Any]
    left_out: tuple[str, ...]


def detected(
    cluster: Cluster,
    login: Login,
    node: Node | None = None,
    *,
    wish: Wish,
    today: str,
    names: Sequence[str] = (),
) -> Detected:
    """Return the profile of ``cluster``.

    Args:
        cluster: What Slurm showed.
        login: What the login node showed.
        node: What a compute node showed, if it was asked.
        wish: What the user asks for.
        today: The date.
        names: Those of shipped profiles, which this one must not be taken for.

    Raises:
        ProfileError: There is no partition that the user may use, or none as wished.
    """
    draft, left_out = Draft(), list(cluster.unanswered)
    mine = rights(cluster.associations, cluster.default_account, login.groups)
    usable = choosing.usable(cluster, mine, wish, left_out)
    default = choosing.default(usable, wish)
    put_gpus(draft, default, cluster)
    draft.put(("default_partition",), default.partition.name, choosing.why_default(default, wish))
    for one in usable:
        put_partition(draft, one, default, cluster, mine)
    put_preemptible(draft, usable, default)
    put_qos(draft, cluster, mine, default.partition)
    limits.put_quotas(draft, cluster.associations)
    put_accounts(draft, cluster, mine, default.partition)
    put_unseen_network(draft, login.ports)
    _put_topology(draft, cluster.config)
    put_login(draft, login, cluster)
    if node is not None:
        put_node(draft, node, untyped=default.gpus is None or default.gpus.guessed)
    _note_settings(draft, cluster.config)
    data = _whole(draft, cluster, login, wish=wish, today=today, names=names)
    return Detected(data=data, left_out=tuple(left_out))


# The plug-in that knows nothing of the network, in 22.05, in 24.11 and in 26.05 (recorded).
_FLAT = ("topology/none", "topology/default", "topology/flat")


def _put_topology(draft: Draft, config: Mapping[str, str]) -> None:
    """Say that there are no switches or blocks to ask for; what there is, jobs ask Slurm for."""
    plugin = config.get("TopologyPlugin", "")
    if plugin in _FLAT:
        draft.put(("fabric", "topology", "kind"), "none", f"{CONFIG}: TopologyPlugin={plugin}")


_NOTED = ("KillWait", "MinJobAge", "TopologyPlugin", "JobSubmitPlugins", "PrivateData")


def _note_settings(draft: Draft, config: Mapping[str, str]) -> None:
    said = [f"{key}={config[key]}" for key in _NOTED if config.get(key, "none") != "none"]
    if said:
        draft.note(f"{CONFIG}: {', '.join(said)}")


def _whole(
    draft: Draft,
    cluster: Cluster,
    login: Login,
    *,
    wish: Wish,
    today: str,
    names: Sequence[str],
) -> dict[str, Any]:
    called = cluster.config.get("ClusterName", "cluster")
    version = cluster.config.get("SLURM_VERSION", "of a version that it did not tell")
    facts = draft.data()
    head = {
        "name": wish.name or _name(called, names),
        "description": _describe(called, facts),
        "source": [
            f"fsdpq sites detect as {cluster.user} on {login.host}, Slurm {version}, {today}"
        ],
        "checked": today,
        "confidence": "own",
    }
    tail = {"notes": [line(note) for note in draft.notes], "evidence": _lines(draft.evidence())}
    return {**head, **_ordered(facts), **{key: value for key, value in tail.items() if value}}


_ORDER = ("gpu", "cpus_per_node", "memory", "default_partition", "partitions", "default_qos", "qos",
          "preemptible", "quotas", "account_required", "fabric", "cloud", "container", "storage",
          "login")  # fmt: skip


def _ordered(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: facts[key] for key in sorted(facts, key=_ORDER.index)}


def _name(called: str, names: Sequence[str]) -> str:
    """Return a name for the file of a cluster's profile.

    >>> _name("Big Iron/2", ()), _name("local", ("local",)), _name("--", ())
    ('big-iron-2', 'my-local', 'cluster')
    """
    plain = re.sub(r"[^a-z0-9._-]+", "-", called.lower()).strip("-._")[:64] or "cluster"
    return f"my-{plain}" if plain in names else plain


def _describe(called: str, facts: Mapping[str, Any]) -> str:
    gpu, default = facts.get("gpu"), facts["default_partition"]
    count = facts["partitions"][default].get("nodes", "some")
    has = f"{count} nodes with {gpu['per_node']} x {gpu['model']}" if gpu else f"{count} nodes"
    return line(f"{called}: {has} in its partition {default}")


def line(text: str) -> str:
    """Return what others wrote as one line that a profile may hold, cut to a length."""
    plain = " ".join("".join(c if _is_plain(c) else " " for c in text).split())
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."


def _is_plain(character: str) -> bool:
    try:
        no_control(character)
    except ValueError:
        return False
    return True


def _lines(evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: line(said) if isinstance(said, str) else {**said, "source": line(said["source"])}
        for key, said in evidence.items()
    }
