"""How long ranks wait for one another: `train.timeouts_s`."""

from orchestrator.keys.counts import Seconds
from orchestrator.keys.fields import Strict


class TimeoutSpec(Strict):
    """How long ranks wait for one another, in seconds, before the attempt fails.

    `step` starts to count after the first step, which may compile and load; `init` holds until
    then. `term_vote` holds after a SIGTERM, when the end is seconds away. `checkpoint` is for a
    load, for the writer of a save in the background, and for each wait of ranks in a save.

    They are the second net. The first one are the limits of `hang:`: 300 s for a step, five times
    the usual step where that is more, 1200 s for each part of the start. Keep these here above
    those, so that the stacks of all ranks have been written and a watcher has had a minute to end
    the attempt before a collective times out.
    """

    init: Seconds = 1800
    step: Seconds = 600
    vote: Seconds = 600
    term_vote: Seconds = 10
    checkpoint: Seconds = 3600
