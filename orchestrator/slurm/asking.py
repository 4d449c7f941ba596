"""Ask Slurm what this cluster is: the effects. Everything but the partitions may be refused."""

import time
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import TypeVar

from orchestrator.errors import QueryError
from orchestrator.slurm import accounting, commands, hearing, inventory, parse, words
from orchestrator.slurm.accounting import Association
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Nodes, Partition

# Of each question, and of all together: people wait for this. A controller that is down holds
# scontrol for some seconds, and a busy one takes its time.
_TIMEOUT_S = 30.0
_BUDGET_S = 90.0
_HELP_TIMEOUT_S = 10.0
_LONGEST = 60
# Who answers a command. One that does not answer once is asked nothing more.
_ANSWERS = {"scontrol": "controller", "sinfo": "controller", "sacctmgr": "accounting"}

Say = Callable[[str], None]
T = TypeVar("T", bound=Sized)


class Slurm:
    """Questions to Slurm: each is asked once, and all of them share one time.

    Attributes:
        unanswered: What it would not say, and why; one line each.
    """

    def __init__(self, say: Say) -> None:
        self.unanswered: list[str] = []
        self._say = say
        self._answers: dict[tuple[str, ...], str] = {}
        self._silent: dict[str, str] = {}
        self._left_s = _BUDGET_S

    def must(self, argv: Sequence[str]) -> str:
        """Return the answer.

        Raises:
            QueryError: There is none.
        """
        known = self._answers.get(tuple(argv))
        if known is None:
            known = self._answers[tuple(argv)] = self._heard(argv)
        return known

    def ask(self, argv: Sequence[str]) -> str:
        """Return the answer, or nothing."""
        try:
            return self.must(argv)
        except QueryError as error:
            said = error.stderr.splitlines()[0] if error.stderr else f"exit code {error.returncode}"
            self._answers[tuple(argv)] = ""
            self.unanswered.append(f"{short(argv)}: {said}")
            return ""

    def read(self, argv: Sequence[str], reader: Callable[[str], T]) -> T:
        """Return what ``reader`` makes of the answer, and note one that it makes nothing of."""
        asked = tuple(argv) in self._answers
        text = self.ask(argv)
        found = reader(text)
        if text.strip() and not len(found) and not asked:
            self.unanswered.append(f"{short(argv)}: {unreadable(text)}")
        return found

    def _heard(self, argv: Sequence[str]) -> str:
        who = _ANSWERS.get(argv[0], argv[0])
        if who in self._silent:
            why = f"not asked, for `{self._silent[who]}` got no answer"
            raise QueryError(argv, returncode=None, stderr=why)
        if self._left_s <= 0:
            why = f"not asked, for Slurm's other answers took {_BUDGET_S:.0f} s"
            raise QueryError(argv, returncode=None, stderr=why)
        most_s = _HELP_TIMEOUT_S if who == "srun" else _TIMEOUT_S
        began = time.monotonic()
        try:
            return hearing.answer(
                argv,
                timeout_s=min(most_s, self._left_s),
                waiting=lambda s: self._say(f"waiting for Slurm: `{short(argv)}`, {s:.0f} s"),
            )
        except QueryError as error:
            if error.returncode is None or parse.no_answer(error.stderr):
                self._silent[who] = short(argv)
            raise
        finally:
            self._left_s -= time.monotonic() - began


def short(argv: Sequence[str]) -> str:
    """Return a command without its options, as a person would type it."""
    return " ".join(word for word in argv if not word.startswith(("--", "format=")))


def unreadable(text: str) -> str:
    """Return what is to be said of an answer that is none."""
    if not text.strip():
        return "it printed nothing"
    return f"nothing in its answer can be used; it begins with {text.strip()[:_LONGEST]!r}"


def partitions(slurm: Slurm) -> tuple[Partition, ...]:
    """Return all partitions.

    Raises:
        QueryError: Slurm does not show any; there is nothing to say of it.
    """
    argv = commands.show_partitions()
    text = slurm.must(argv)
    found = inventory.partitions(text)
    if not found:
        raise QueryError(argv, returncode=0, stderr=unreadable(text))
    return found


def cluster(user: str, slurm: Slurm) -> Cluster:
    """Return what Slurm shows ``user`` of the cluster of this login node.

    Raises:
        QueryError: Not even its partitions; there is nothing to say of it.
    """
    shown = partitions(slurm)
    config = slurm.read(commands.show_config(), words.table)
    nodes, nodes_from = _nodes(slurm)
    own = _associations(slurm, user, config.get("ClusterName"))
    default = slurm.ask(commands.show_default_account(user)) if own else ""
    return Cluster(
        user=user,
        partitions=shown,
        config=config,
        nodes=nodes,
        nodes_from=nodes_from,
        associations=own,
        default_account=accounting.default_account(default),
        qos=slurm.read(commands.show_qos(), accounting.all_qos) if own else (),
        srun_options=slurm.ask(commands.srun_help()),
        unanswered=tuple(slurm.unanswered),
    )


def accounts(user: str, slurm: Slurm) -> Cluster:
    """Return what Slurm shows ``user`` of accounts and partitions; nothing where it refuses."""
    shown = slurm.read(commands.show_partitions(), inventory.partitions)
    config = slurm.read(commands.show_config(), words.table)
    own = _associations(slurm, user, config.get("ClusterName"))
    default = slurm.ask(commands.show_default_account(user)) if own else ""
    return Cluster(
        user=user,
        partitions=shown,
        config=config,
        associations=own,
        default_account=accounting.default_account(default),
        unanswered=tuple(slurm.unanswered),
    )


def _nodes(slurm: Slurm) -> tuple[tuple[Nodes, ...], str]:
    found = slurm.read(commands.show_nodes(), inventory.nodes)
    if found:
        return found, "scontrol show node"
    return slurm.read(commands.node_rows(), inventory.sinfo), "sinfo"


def _associations(slurm: Slurm, user: str, cluster_name: str | None) -> tuple[Association, ...]:
    own = _rows(slurm, commands.show_associations(f"user={user}"), cluster_name)
    if not own:
        return ()
    names = ",".join(dict.fromkeys(one.account for one in own))
    # `user=` without a name: the accounts' own, whose limits all their users share.
    shared = _rows(slurm, commands.show_associations(f"account={names}", "user="), cluster_name)
    return own + tuple(one for one in shared if not one.user)


def _rows(slurm: Slurm, argv: Sequence[str], cluster_name: str | None) -> tuple[Association, ...]:
    slurm.read(argv, partial(accounting.associations, cluster=None))
    return accounting.associations(slurm.ask(argv), cluster=cluster_name)
