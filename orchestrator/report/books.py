"""A run's ledger as text. Pure."""

from orchestrator.report.columns import columns
from orchestrator.report.data import SECONDS, Status


def ledger_lines(item: Status) -> list[str]:
    """Return where the time went: a table of the attempts, a line for the run, one a cause."""
    run = item.goodput
    if run is None or run["goodput"] is None:
        return []
    table: list[tuple[str, ...]] = [
        ("ATTEMPT", "QUEUED", "START-UP", "USEFUL", "LOST", "SAVING", "STOPPING", "OTHER")
    ]
    for row in item.attempts:
        spent = [row["queued_s"], *(row[name] for name in SECONDS)]
        table.append((str(row["attempt"]), *map(_duration, spent)))
    lines = ["", columns(table), ""]
    lines.append(
        f"goodput {run['goodput']:.1%}: {_duration(run['useful_s'])} of steps that count in"
        f" {_duration(run['wall_s'])} since the submission"
        + ("" if run["gpu_goodput"] is None else f"; {run['gpu_goodput']:.1%} of allocated time")
    )
    for cause, cost in run["lost_by_cause"].items():
        lines.append(
            f"{cause}, {cost['ends']}x: {_duration(cost['lost_s'])} done again,"
            f" {_duration(cost['stopping_s'])} stopping, {_duration(cost['queued_s'])} queued,"
            f" {_duration(cost['startup_s'])} start-up"
        )
    return lines + ([f"checkpoint interval: {item.interval['why']}"] if item.interval else [])


def _duration(seconds: float | None) -> str:
    """Return seconds for people.

    >>> _duration(7.25), _duration(83), _duration(3 * 3600 + 125), _duration(None)
    ('7.2 s', '83 s', '3:02:05', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
