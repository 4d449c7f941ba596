"""What a site promises of the network between its nodes. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

# Fabrics on which sockets are all there is, or may be.
WITHOUT_RDMA = ("ethernet", "none", "unknown")
SOCKET = "Socket"
# What a notice file says to a job that requires RDMA and does not have it.
NO_RDMA = "NO-RDMA"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a site's profile says of its network.

    Attributes:
        kind: Such as "infiniband"; "ethernet" and "none" promise nothing.
        networks: Names as NCCL's log gives them, a trailing * for any ending; empty where the
            profile has none.
        hcas: HCAs that NCCL finds on each node; None where the profile does not say.
        gdr: Whether GPUDirect RDMA is to be expected; None where the profile does not say.
        site: The profile's name.
    """

    kind: str
    networks: tuple[str, ...] = ()
    hcas: int | None = None
    gdr: bool | None = None
    site: str = ""

    @property
    def rdma(self) -> bool:
        """Whether traffic between nodes is to go by RDMA, not by sockets."""
        return self.kind not in WITHOUT_RDMA

    def names(self, network: str) -> bool:
        """Return whether ``network`` is one that the site promises; any is, where it names none."""
        if network == SOCKET and self.rdma:
            return SOCKET in self.networks
        return not self.networks or any(fnmatchcase(network, name) for name in self.networks)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {**asdict(self), "networks": list(self.networks)}

    @classmethod
    def from_json(cls, data: object) -> "Promise | None":
        """Return what `to_json` gave ``data`` for; None where it is something else."""
        if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
            return None
        names, hcas, gdr = data.get("networks"), data.get("hcas"), data.get("gdr")
        texts = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return cls(
            kind=data["kind"],
            networks=tuple(names) if texts else (),  # type: ignore[arg-type]
            hcas=hcas if isinstance(hcas, int) and not isinstance(hcas, bool) else None,
            gdr=gdr if isinstance(gdr, bool) else None,
            site=data["site"] if isinstance(data.get("site"), str) else "",
        )
