"""How long ranks wait for one another: `train.timeouts_s`."""

from orchestrator.fields import Strict
from orchestrator.spec.train.numbers import Count


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

    init: Count = 1800
    step: Count = 600
    vote: Count = 600
    term_vote: Count = 10
    checkpoint: Count = 3600
