"""What a site's profile promises of the network between nodes. Pure."""

from orchestrator.errors import SpecError
from orchestrator.fabric.promise import Promise
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec


def of_site(profile: SiteProfile) -> Promise:
    """Return what the profile says of the network."""
    fabric = profile.fabric
    return Promise(
        kind=fabric.kind,
        networks=fabric.names,
        hcas=fabric.hcas_per_node,
        gdr=fabric.gdr,
        site=profile.name,
    )


def check(spec: JobSpec, promise: Promise) -> None:
    """Refuse a job that requires RDMA of a site without it.

    Raises:
        SpecError: That is so.
    """
    if spec.require_rdma and promise.kind == "unknown":
        raise SpecError(
            f"require_rdma: the profile {promise.site} does not know what the site's fabric is;"
            " leave it out, or extend the profile with fabric.kind"
        )
    if spec.require_rdma and not promise.rdma:
        raise SpecError(
            f"require_rdma: the fabric of the site {promise.site} is {promise.kind}, which has no"
            " RDMA; leave it out, or name the profile of a site with InfiniBand, RoCE, EFA or"
            " Slingshot"
        )
