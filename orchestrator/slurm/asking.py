"""Ask Slurm what this cluster is: the effects. Everything but the partitions may be refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.errors import QueryError
from orchestrator.slurm import accounting, commands, inventory, words
from orchestrator.slurm.accounting import Association
from orchestrator.slurm.client import run
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Nodes

# Each of them; people wait for this. A controller that is down holds scontrol for some seconds.
_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Questions:
    """Questions under way, and what stayed unanswered."""

    unanswered: list[str] = field(default_factory=list)

    def ask(self, argv: Sequence[str]) -> str:
        """Return the answer, or nothing."""
        try:
            return run(argv, timeout_s=_TIMEOUT_S, error=QueryError).stdout
        except QueryError as error:
            said = error.stderr.splitlines()[0] if error.stderr else f"exit code {error.returncode}"
            self.unanswered.append(f"{' '.join(_short(argv))}: {said}")
            return ""


def _short(argv: Sequence[str]) -> list[str]:
    """Return a command without its options, as a person would type it."""
    return [word for word in argv if not word.startswith(("--", "format="))]


def cluster(user: str) -> Cluster:
    """Return what Slurm shows ``user`` of the cluster of this login node.

    Raises:
        QueryError: Not even its partitions; there is nothing to say of it.
    """
    shown = run(commands.show_partitions(), timeout_s=_TIMEOUT_S, error=QueryError).stdout
    asked = _Questions()
    config = words.table(asked.ask(commands.show_config()))
    nodes, nodes_from = _nodes(asked)
    own = _associations(asked, user, config.get("ClusterName"))
    default = asked.ask(commands.show_default_account(user)) if own else ""
    return Cluster(
        user=user,
        partitions=inventory.partitions(shown),
        config=config,
        nodes=nodes,
        nodes_from=nodes_from,
        associations=own,
        default_account=accounting.default_account(default),
        qos=accounting.all_qos(asked.ask(commands.show_qos())) if own else (),
        srun_options=asked.ask(commands.srun_help()),
        unanswered=tuple(asked.unanswered),
    )


def accounts(user: str) -> Cluster:
    """Return what Slurm shows ``user`` of accounts and partitions; nothing where it refuses."""
    asked = _Questions()
    shown = asked.ask(commands.show_partitions())
    config = words.table(asked.ask(commands.show_config()))
    own = _associations(asked, user, config.get("ClusterName"))
    default = asked.ask(commands.show_default_account(user)) if own else ""
    return Cluster(
        user=user,
        partitions=inventory.partitions(shown),
        config=config,
        associations=own,
        default_account=accounting.default_account(default),
        unanswered=tuple(asked.unanswered),
    )


def _nodes(asked: _Questions) -> tuple[tuple[Nodes, ...], str]:
    found = inventory.nodes(asked.ask(commands.show_nodes()))
    if found:
        return found, "scontrol show node"
    return inventory.sinfo(asked.ask(commands.node_rows())), "sinfo"


def _associations(
    asked: _Questions, user: str, cluster_name: str | None
) -> tuple[Association, ...]:
    text = asked.ask(commands.show_associations(f"user={user}"))
    own = accounting.associations(text, cluster=cluster_name)
    if not own:
        return ()
    names = ",".join(dict.fromkeys(one.account for one in own))
    # `user=` without a name: the accounts' own, whose limits all their users share.
    shared = asked.ask(commands.show_associations(f"account={names}", "user="))
    return own + tuple(
        one for one in accounting.associations(shared, cluster=cluster_name) if not one.user
    )
