"""From a time to a bandwidth. Pure.

Source: nccl-tests, doc/PERFORMANCE.md. The bus bandwidth is what each rank's way to the others has
to carry, so it can be compared with the hardware's and does not depend on the number of ranks.
Gigabytes are 10^9 bytes there and here.
"""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def algorithm_gbs(size: int, seconds: float) -> float:
    """Return the bytes of the operation over its time, in GB/s.

    Args:
        size: Bytes of the whole array: what each rank reduces, what all ranks gather together, or
            what each rank scatters.
        seconds: How long one call took.

    >>> algorithm_gbs(1 << 30, 0.01)
    107.3741824
    """
    return size / seconds / 1e9


def bus_factor(collective: str, ranks: int) -> float:
    """Return what the algorithm bandwidth is multiplied with.

    >>> bus_factor("all_reduce", 16), bus_factor("all_gather", 2), bus_factor("all_reduce", 1)
    (1.875, 0.5, 0.0)
    """
    times = 2 if collective == "all_reduce" else 1
    return times * (ranks - 1) / ranks


def bus_gbs(collective: str, size: int, seconds: float, *, ranks: int) -> float:
    """Return the bus bandwidth in GB/s; ``size`` is that of `algorithm_gbs`."""
    return algorithm_gbs(size, seconds) * bus_factor(collective, ranks)
