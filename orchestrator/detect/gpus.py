"""The GPUs of a partition, and how they are asked for. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.slurm import words
from orchestrator.slurm.inventory import Nodes

# Those that large models are trained on, the best first; a guess for clusters that mix them.
_RANK = ("gb300", "gb200", "b300", "b200", "gh200", "h200", "h100", "h800", "a100", "a800")
_MODELS = (*_RANK, "h20", "l40s", "l40", "a40", "a30", "a10", "v100", "a6000", "rtx6000", "t4")
_SLICE = re.compile(r"\dg\.\d+gb|(?<![a-z])mig(?![a-z])")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What a partition's nodes have.

    Attributes:
        type: The word for them in Slurm; empty if it has none.
        request: How they are asked for, as the profile says it.
        nodes: How many nodes are like this.
        constraint: A feature that other nodes of the partition do not have, where it takes one.
        others: What else there is in the partition, in words.
    """

    model: str
    type: str
    per_node: int
    request: str
    nodes: int
    cpus: int | None
    memory_mb: int | None
    constraint: str | None = None
    others: tuple[str, ...] = ()
    guessed: bool = False

    @property
    def rank(self) -> int:
        """How well suited they are to large models; 0 is best."""
        return _rank(self.model)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of node: GPUs of one type, so many of them, so it is called."""

    type: str
    model: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.model}"


def gpus_of(partition: str, nodes: Sequence[Nodes], config: Mapping[str, str]) -> Gpus | None:
    """Return the GPUs that a job in ``partition`` would train on; None where there are none.

    Where a partition mixes several, the most suitable of which there are two nodes, then the
    most numerous.
    """
    inside = [one for one in nodes if partition in one.partitions and one.gpus]
    kinds: Counter[_Kind] = Counter()
    for one in inside:
        for kind in _kinds(one):
            kinds[kind] += one.count
    if not kinds:
        return None
    best = min(kinds, key=lambda kind: _preference(kind, kinds[kind]))
    alike = [one for one in inside if best in _kinds(one)]
    others = [kind for kind in kinds if kind != best]
    types = {kind.type for kind in kinds}
    typed = bool(best.type) and (len(types) > 1 or bool(_SLICE.search(" ".join(types).lower())))
    return Gpus(
        model=best.model or "GPU",
        type=best.type,
        per_node=best.count,
        request=request(config, typed=typed),
        nodes=kinds[best],
        cpus=min((one.cpus for one in alike if one.cpus), default=None),
        memory_mb=min((one.memory_mb for one in alike if one.memory_mb), default=None),
        constraint=_constraint(best, alike, inside),
        others=tuple(f"{kind} ({kinds[kind]})" for kind in others),
        guessed=not best.model,
    )


def request(config: Mapping[str, str], *, typed: bool) -> str:
    """Return how GPUs are asked for; --gpus-per-node needs select/cons_tres (sbatch(1)).

    >>> request({"SelectType": "select/cons_tres"}, typed=True), request({}, typed=False)
    ('gpus-per-node-typed', 'gres')
    """
    option = "gpus-per-node" if config.get("SelectType") == "select/cons_tres" else "gres"
    return f"{option}-typed" if typed else option


def _kinds(nodes: Nodes) -> list[_Kind]:
    return [
        _Kind(kind, model(kind) if kind else _of_features(nodes.features), count)
        for kind, count in nodes.gpus
        if not kind or _PLAIN.fullmatch(kind)
    ]


def model(kind: str) -> str:
    """Return the model that a type of Slurm stands for.

    >>> model("h100"), model("nvidia_a100-sxm4-80gb"), model("a100l"), model("1g.10gb")
    ('H100', 'A100-SXM4-80GB', 'A100L', '1g.10gb')
    """
    plain = re.sub(r"^(nvidia|tesla)[_-]", "", kind, flags=re.IGNORECASE)
    return kind if _SLICE.search(kind.lower()) else plain.upper().replace("_", "-")


def _of_features(features: Sequence[str]) -> str:
    """Return the model that a feature of a node names.

    >>> _of_features(("ib", "gpu_a100")), _of_features(("intel", "rack12")), _of_features(("H100-80",))
    ('A100', '', 'H100-80')
    """  # noqa: E501
    for feature in features:
        bare = re.sub(r"^(gpu|nvidia|tesla)[_:-]", "", feature, flags=re.IGNORECASE)
        known = re.split(r"[^a-z0-9]", bare.lower())[0]
        if known in _MODELS and _PLAIN.fullmatch(bare):
            return bare.upper()
    return ""


def _rank(name: str) -> int:
    lower = name.lower()
    ranks = (i for i, known in enumerate(_RANK) if re.match(rf"{known}(?![0-9])", lower))
    return len(_RANK) + 1 if _SLICE.search(lower) else next(ranks, len(_RANK))


def _preference(kind: _Kind, nodes: int) -> tuple[bool, int, int, int]:
    return (nodes < 2, _rank(kind.model), -nodes * kind.count, -kind.count)


def _constraint(best: _Kind, alike: Sequence[Nodes], inside: Sequence[Nodes]) -> str | None:
    """Return a feature of all nodes of the kind and of no other, where no type tells them apart."""
    rest = [one for one in inside if one not in alike]
    if best.type or not rest:
        return None
    shared = set.intersection(*(set(one.features) for one in alike))
    telling = shared - {feature for one in rest for feature in one.features}
    named = [name for name in sorted(telling) if _of_features((name,))] or sorted(telling)
    return named[0] if named and _PLAIN.fullmatch(named[0]) else None


def consumes_memory(config: Mapping[str, str]) -> bool:
    """Return whether jobs get a part of a node's memory, and not all of it."""
    return any("memory" in word for word in words.setting(config, "SelectTypeParameters"))
