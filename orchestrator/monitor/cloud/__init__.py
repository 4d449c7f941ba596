"""Notices of clouds: what their metadata services say of the end of this machine.

One request every second or few to an address of the machine's own host; nothing leaves it, and
nothing is ever acknowledged or changed there.
"""

from orchestrator.monitor.cloud.aws import AwsRebalance, AwsSpot, ImdsSession
from orchestrator.monitor.cloud.azure import AzureEvents
from orchestrator.monitor.cloud.gcp import GcpMaintenance, GcpPreemption
from orchestrator.monitor.cloud.metadata import Metadata
from orchestrator.monitor.cloud.watch import ReclaimWatch
from orchestrator.monitor.environment import NodeEnvironment
from orchestrator.monitor.notes import Notes

__all__ = ["duties"]


def duties(env: NodeEnvironment) -> list[ReclaimWatch]:
    """Return the duties that ask the cloud of ``env``; none without a cloud.

    Raises:
        MetadataError: The address is none.
    """
    service = Metadata(env.metadata_url)
    notes = Notes(env.notice_file, env.attempt, env.node, env.host)
    lead_s = float(env.lead_s)
    if env.cloud == "aws":
        session = ImdsSession(service)
        heeded = env.stop_on_rebalance
        return [
            ReclaimWatch(AwsSpot(session), notes, lead_s=lead_s),
            # A session of its own: the two run in two threads.
            ReclaimWatch(AwsRebalance(ImdsSession(service)), notes, lead_s=lead_s, heeded=heeded),
        ]
    if env.cloud == "azure":
        return [ReclaimWatch(AzureEvents(service), notes, lead_s=lead_s)]
    if env.cloud == "gcp":
        sources = (GcpPreemption(service), GcpMaintenance(service))
        return [ReclaimWatch(source, notes, lead_s=lead_s) for source in sources]
    return []
