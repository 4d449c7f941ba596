"""`fsdpq sites`: what is known of clusters."""

from orchestrator.cli.detect import detect_command
from orchestrator.cli.main import main


@main.group("sites")
def sites_command() -> None:
    """Site profiles: what a cluster is, each fact with its source."""


sites_command.add_command(detect_command)
