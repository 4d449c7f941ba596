"""How jobs ask: QOS, accounts, and for what is cheap because it can be taken away. Pure."""

from collections.abc import Sequence

from orchestrator.detect import limits
from orchestrator.detect.choosing import Usable, most_nodes, unwritable
from orchestrator.detect.draft import Draft, Path
from orchestrator.detect.preemption import Preemption
from orchestrator.detect.rights import Rights
from orchestrator.slurm.accounting import Qos
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Partition


def put_preemptible(draft: Draft, usable: Sequence[Usable], default: Usable) -> None:
    """Add how to ask for what is cheap, where the default partition is not."""
    terms = draft.data()["partitions"]
    if terms[default.partition.name].get("preempt", "off") != "off":
        return
    cheap = [u for u in usable if terms[u.partition.name].get("preempt", "off") != "off"]
    same = [u for u in cheap if u.gpus and default.gpus and u.gpus.type == default.gpus.type]
    if not (same or cheap):
        return
    best = max(same or cheap, key=lambda u: (terms[u.partition.name]["preempt"] == "requeue",
                                             terms[u.partition.name].get("grace_s", 0),
                                             most_nodes(u)))  # fmt: skip
    name = best.partition.name
    draft.put(("preemptible", "partition"), name, f"scontrol show partition {name}: PreemptMode")


def put_qos(draft: Draft, cluster: Cluster, mine: Rights, default: Partition) -> None:
    """Add the QOS that the user may name, as far as they change anything."""
    own = [qos for qos in cluster.qos if qos.name in (mine.qos or ()) and not unwritable(qos.name)]
    for qos in own:
        at = ("qos", qos.name)
        limits.put_qos(draft, at, qos)
        _put_qos_preemption(draft, at, qos, cluster)
    given = draft.data().get("qos", {})
    taken = mine.qos_for(default) or ()
    cheap = [name for name in given if given[name].get("preempt", "off") != "off"]
    cheap = [name for name in cheap if name in taken]
    if mine.default_qos in given:
        draft.put(("default_qos",), mine.default_qos, "sacctmgr show associations: the default")
    elif cheap and "preemptible" not in draft.data():
        draft.put(("preemptible", "qos"), cheap[0], f"sacctmgr show qos {cheap[0]}: PreemptMode")


def _put_qos_preemption(draft: Draft, at: Path, qos: Qos, cluster: Cluster) -> None:
    for key, (value, source) in Preemption(cluster.config).of_qos(qos, cluster.qos).items():
        draft.put((*at, key), value, source)


def put_accounts(draft: Draft, cluster: Cluster, mine: Rights, default: Partition) -> None:
    """Add whether a job has to name an account, and a note on which there are."""
    if not mine.accounts:
        return
    # Without an enforced association Slurm takes jobs of anybody.
    enforced = "associations" in cluster.config.get("AccountingStorageEnforce", "").lower()
    allowed = mine.accounts_for(default) or ()
    if enforced and mine.default_account not in allowed:
        source = "sacctmgr show user: no default account that the default partition takes"
        draft.put(("account_required",), True, source)
    named = (f"{n} (the default)" if n == mine.default_account else n for n in mine.accounts)
    draft.note(f"accounts of {cluster.user}: {', '.join(named)}")
