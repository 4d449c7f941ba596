"""Which partitions a user may use. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.slurm.accounting import Association
from orchestrator.slurm.inventory import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What a user has.

    Attributes:
        accounts: None where accounting does not say.
        qos: None where accounting does not say.
        groups: Of the operating system.
    """

    accounts: tuple[str, ...] | None = None
    default_account: str | None = None
    qos: tuple[str, ...] | None = None
    default_qos: str | None = None
    groups: tuple[str, ...] | None = None

    def accounts_for(self, partition: Partition) -> tuple[str, ...] | None:
        """Return the accounts that may use ``partition``, the default one first."""
        if self.accounts is None:
            return None
        allowed = [name for name in self.accounts if _account_may(name, partition)]
        return tuple(sorted(allowed, key=lambda name: name != self.default_account))

    def qos_for(self, partition: Partition) -> tuple[str, ...] | None:
        """Return the QOS that jobs in ``partition`` may have, the default one first."""
        if self.qos is None:
            return None
        allowed = [name for name in self.qos if _qos_may(name, partition)]
        return tuple(sorted(allowed, key=lambda name: name != self.default_qos))


def rights(
    associations: Iterable[Association], default_account: str | None, groups: tuple[str, ...] | None
) -> Rights:
    """Return the rights that a user's associations give."""
    own = [one for one in associations if one.user]
    if not own:
        return Rights(groups=groups)
    names = dict.fromkeys(one.account for one in own)
    mine = next((one for one in own if one.account == default_account), own[0])
    # No QOS at all: the cluster does not use them, or the row is not for this user's eyes.
    qos = tuple(dict.fromkeys(name for one in own for name in one.qos)) or None
    only = mine.qos[0] if len(mine.qos) == 1 else "normal" if "normal" in mine.qos else None
    return Rights(
        accounts=tuple(names),
        default_account=default_account,
        qos=qos,
        default_qos=mine.default_qos or only,
        groups=groups,
    )


def why_not(partition: Partition, of: Rights) -> str:
    """Return why a user may not use ``partition``; empty if nothing speaks against it."""
    reasons = (
        (partition.state == "INACTIVE", "its state is INACTIVE"),
        (partition.root_only, "it is for root"),
        (partition.reservation_only, "it wants a reservation"),
        (_no_group(partition, of), f"it is for the groups {_listed(partition.groups or ())}"),
        (of.accounts_for(partition) == (), "it does not take your accounts"),
        (of.qos_for(partition) == (), "it does not take your QOS"),
    )
    return next((why for applies, why in reasons if applies), "")


def _no_group(partition: Partition, of: Rights) -> bool:
    if partition.groups is None or of.groups is None:
        return False
    return not set(partition.groups) & set(of.groups)


def _account_may(name: str, partition: Partition) -> bool:
    if partition.accounts is not None:
        return name in partition.accounts
    return name not in partition.denied_accounts


def _qos_may(name: str, partition: Partition) -> bool:
    if partition.allowed_qos is not None:
        return name in partition.allowed_qos
    return name not in partition.denied_qos


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
