"""What is shown of runs and sites, as data and as text. Pure."""

from orchestrator.report.bandwidth import table as bandwidth_table
from orchestrator.report.columns import columns
from orchestrator.report.data import Status, state, status
from orchestrator.report.rehearsal import DrillReport, drill
from orchestrator.report.rows import Told
from orchestrator.report.sites import (
    site_details,
    site_json,
    sites_json,
    sites_page,
    sites_table,
)
from orchestrator.report.text import details, overview, progress

__all__ = [
    "DrillReport",
    "Status",
    "Told",
    "bandwidth_table",
    "columns",
    "details",
    "drill",
    "overview",
    "progress",
    "site_details",
    "site_json",
    "sites_json",
    "sites_page",
    "sites_table",
    "state",
    "status",
]
