"""What preempts a partition or a QOS, how, and with what notice. Pure.

Source: slurm.conf(5), PreemptMode, PreemptType, PreemptParameters; sacctmgr(1), Preempt.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.slurm import words
from orchestrator.slurm.accounting import Qos
from orchestrator.slurm.inventory import Partition

# Value and source.
Said = tuple[object, str]
Terms = dict[str, Said]

CONFIG = "scontrol show config"


@dataclass(frozen=True, slots=True)
class Preemption:
    """How a cluster preempts."""

    config: Mapping[str, str]

    @property
    def by(self) -> str:
        """What decides who preempts whom: `partition_prio`, `qos`, or something else."""
        return self.config.get("PreemptType", "").removeprefix("preempt/")

    def of_partition(self, partition: Partition, others: Iterable[Partition]) -> Terms:
        """Return the terms on which jobs of ``partition`` are preempted."""
        if "PreemptType" not in self.config:
            return {}
        if self.by != "partition_prio":
            return {"preempt": ("off", f"{CONFIG}: PreemptType={self.config['PreemptType']}")}
        where = f"scontrol show partition {partition.name}"
        mode = _mode(partition.modes or words.setting(self.config, "PreemptMode"))
        if mode == "off":
            return {"preempt": ("off", where)}
        above = [one.name for one in others if _is_above(one, partition)]
        if not above:
            why = f"no partition with its nodes has a PriorityTier above its {partition.tier}"
            return {"preempt": ("off", f"{where}: {why}")}
        who = f"jobs of {', '.join(above[:3])}{' and others' if above[3:] else ''} preempt it"
        found: Terms = {"preempt": (mode, f"{where}: PreemptMode, and {who}")}
        return found | self._notice(partition.grace_s, where) | self._exempt(None)

    def of_qos(self, qos: Qos, others: Iterable[Qos]) -> Terms:
        """Return the terms on which jobs of ``qos`` are preempted; none if they are not."""
        above = [one.name for one in others if qos.name in one.preempts]
        if self.by != "qos" or not above:
            return {}
        where = f"sacctmgr show qos {qos.name}"
        mode = _mode((qos.mode,) if qos.mode else words.setting(self.config, "PreemptMode"))
        found: Terms = {"preempt": (mode, f"{where}: PreemptMode, and {above[0]} preempts it")}
        if mode == "off":
            return found
        return found | self._notice(qos.grace_s, where) | self._exempt(qos)

    def _notice(self, grace_s: int, where: str) -> Terms:
        found: Terms = {"grace_s": (grace_s, where)}
        if (requeue := self.config.get("JobRequeue")) is not None:
            found["requeue_default"] = (requeue == "1", f"{CONFIG}: JobRequeue={requeue}")
        # Without a grace time there is nobody left to hear the job's own signal.
        if grace_s:
            found["preempt_signal"] = self._signal()
        return found

    def _signal(self) -> Said:
        # A key of SlurmctldParameters up to 23.x, of PreemptParameters later (measured on 22.05
        # and 24.11).
        for key, word in (
            ("PreemptParameters", "send_user_signal"),
            ("SlurmctldParameters", "preempt_send_user_signal"),
        ):
            if word in words.setting(self.config, key):
                return "user", f"{CONFIG}: {key} has {word}"
        return "TERM", f"{CONFIG}: neither PreemptParameters nor SlurmctldParameters has it"

    def _exempt(self, qos: Qos | None) -> Terms:
        if qos is not None and qos.exempt_s:
            return {"exempt_s": (qos.exempt_s, f"sacctmgr show qos {qos.name}: PreemptExemptTime")}
        if seconds := words.seconds(self.config.get("PreemptExemptTime")):
            return {"exempt_s": (seconds, f"{CONFIG}: PreemptExemptTime")}
        return {}


def _mode(modes: Iterable[str]) -> str:
    """Return one word for a PreemptMode, which may be several.

    >>> _mode(("gang", "suspend")), _mode(("requeue",)), _mode(("within", "cancel")), _mode(())
    ('suspend', 'requeue', 'cancel', 'off')
    """
    given = set(modes)
    return next((mode for mode in ("suspend", "requeue", "cancel") if mode in given), "off")


def _is_above(one: Partition, partition: Partition) -> bool:
    shared = one.nodes & partition.nodes
    return one.tier > partition.tier and bool(shared) and one.name != partition.name
