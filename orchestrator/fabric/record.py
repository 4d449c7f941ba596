"""The verdict on the network of an attempt: attempts/N/fabric.json.

Written by the monitor of the first node after the first steps, or by a watcher where the job's
Python has no monitor; whoever only looks reads the logs itself and writes nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import write_json
from orchestrator.evidence.files import read_json
from orchestrator.fabric.diagnosis import Diagnosis, broken
from orchestrator.fabric.examine import Limits, examine
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.sources import nccl_logs
from orchestrator.rundir.attempt import Network
from orchestrator.rundir.layout import AttemptLayout

# Some 200 kB a rank is what NCCL says of its start; a thousand ranks are not read to the end.
_START = Limits(file=2 << 20, total=192 << 20)


def look(
    layout: AttemptLayout, promise: Promise | None, *, nodes: int, limits: Limits = _START
) -> Diagnosis:
    """Return what NCCL's logs say of the network of an attempt that lives, or lived.

    Args:
        layout: Its files.
        promise: What the site promises; None where that is not known.
        nodes: How many nodes it has.
        limits: How much to read.
    """
    return examine(nccl_logs(layout.nccl), promise, limits=limits, well=True, nodes=nodes)


def of_diagnosis(found: Diagnosis, *, require: bool, at: float) -> Network:
    """Return the verdict in short.

    Args:
        found: The diagnosis.
        require: Whether the job requires RDMA.
        at: Now, in seconds since 1970.
    """
    reason = found.reason
    return Network(
        verdict=found.fabric,
        name=found.network,
        hcas=found.hcas,
        gdr=found.gdr,
        why=reason.what if reason else "",
        advice=reason.advice if reason else "",
        hosts=found.suspects,
        stop=require and broken(found) is not None,
        at=at,
    )


def write(layout: AttemptLayout, found: Diagnosis, network: Network) -> None:
    """Write both down, in one piece.

    Raises:
        OSError: It cannot be written.
    """
    short = {
        "stop": network.stop,  # the batch shell looks for these letters
        "at": network.at,
        "why": network.why,
        "advice": network.advice,
    }
    write_json(layout.fabric, {**found.to_json(), **short}, durable=False)


def read(path: Path) -> Network | None:
    """Return the verdict in ``path``; None where there is none to be had."""
    data = read_json(path)
    verdict = data.get("fabric")
    if not isinstance(verdict, str) or not verdict:
        return None
    gdr, hcas, at, hosts = (data.get(key) for key in ("gdr", "hcas", "at", "suspects"))
    return Network(
        verdict=verdict[:32],
        name=_text(data, "network"),
        hcas=hcas if isinstance(hcas, int) and not isinstance(hcas, bool) else None,
        gdr=gdr if isinstance(gdr, bool) else None,
        why=_text(data, "why"),
        advice=_text(data, "advice"),
        hosts=tuple(h for h in hosts if isinstance(h, str)) if isinstance(hosts, list) else (),
        stop=data.get("stop") is True,
        at=float(at) if isinstance(at, int | float) and not isinstance(at, bool) else 0.0,
    )


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in value[:600])
