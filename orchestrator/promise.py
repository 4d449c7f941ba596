"""What a site's profile promises of the network between nodes. Pure."""

from orchestrator.errors import SpecError
from orchestrator.fabric.promise import Promise
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec


def of_site(profile: SiteProfile) -> Promise:
    """Return what the profile says of the network."""
    fabric = profile.fabric
    single = getattr(fabric, "network", None)
    return Promise(
        kind=fabric.kind,
        networks=tuple(getattr(fabric, "networks", ())) or ((single,) if single else ()),
        hcas=fabric.hcas_per_node,
        gdr=getattr(fabric, "gdr", None),
        site=profile.name,
    )


def check(spec: JobSpec, promise: Promise) -> None:
    """Refuse a job that requires RDMA of a site without it.

    Raises:
        SpecError: That is so.
    """
    if spec.require_rdma and not promise.rdma:
        raise SpecError(
            f"require_rdma: the fabric of the site {promise.site} is {promise.kind}, which has no"
            " RDMA; leave it out, or name the profile of a site with InfiniBand, RoCE, EFA or"
            " Slingshot"
        )
