"""The clouds that announce a reclaim to the machine itself, and the words for it. Pure."""

from typing import Literal

Cloud = Literal["none", "aws", "azure", "gcp"]

# What a notice file says of a reclaim, by the time that is left: the last are the most urgent. Not
# as urgent as a bare SIGTERM, which promises seconds.
WORDS = (
    "AWS-REBALANCE",
    "AZURE-REDEPLOY",
    "AZURE-REBOOT",
    "AZURE-TERMINATE",
    "GCP-MAINTENANCE",
    "AWS-SPOT",
    "AZURE-PREEMPT",
    "GCP-PREEMPT",
)

__all__ = ["WORDS", "Cloud"]
