"""How long a notice lets a save in the background go on before a newer one begins. Pure.

The save of the notice holds the newest step, the one under way an older one. Both together are
best; where the time is too short for that the newer one is worth more, unless it does not fit
either: then the older one is all that can be had.
"""

# Slurm's KillWait: what there is between a bare SIGTERM and SIGKILL.
_AFTER_TERM_S = 30.0
# A save takes longer than usual now and then.
_MARGIN = 1.25


def left_s(*, notice_s: float | None, since_s: float, urgent: bool) -> float | None:
    """Return the seconds that are left, None where nobody knows.

    Args:
        notice_s: How long before the end a notice comes, by the plan.
        since_s: How long ago it came.
        urgent: It was a bare SIGTERM.
    """
    if urgent:
        notice_s = min(_AFTER_TERM_S, notice_s or _AFTER_TERM_S)
    return None if notice_s is None else max(0.0, notice_s - since_s)


def patience_s(*, left_s: float | None, rest_s: float, save_s: float) -> float:
    """Return for how many seconds to wait for the save under way before it is abandoned.

    Args:
        left_s: Until the end of the allocation; None where unknown.
        rest_s: What the save under way is expected to take still.
        save_s: What the save of the notice is expected to take.

    >>> patience_s(left_s=60, rest_s=4, save_s=14), patience_s(left_s=18, rest_s=4, save_s=14)
    (42.5, 0.0)
    >>> patience_s(left_s=10, rest_s=4, save_s=14), patience_s(left_s=None, rest_s=4, save_s=14)
    (10, 5.0)
    """
    wanted_s, needed_s = _MARGIN * rest_s, _MARGIN * save_s
    if left_s is None:
        return wanted_s
    if left_s >= wanted_s + needed_s:
        return left_s - needed_s
    return 0.0 if left_s >= needed_s else left_s
