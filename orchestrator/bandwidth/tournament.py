"""Who is measured with whom, and when: a round-robin tournament of the nodes. Pure.

In each round every node has one partner, so that all pairs of a round are measured at the same
time, and n nodes need n - 1 rounds (n, if n is odd: one of them then pauses in each).
"""

Pairs = tuple[tuple[int, int], ...]


def rounds(nodes: int) -> tuple[Pairs, ...]:
    """Return the rounds after which each of ``nodes`` has met each other one.

    >>> rounds(4)
    (((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3)))
    """
    return tuple(_round(nodes, number) for number in range(_total(nodes)))


def chosen_rounds(nodes: int, *, most: int) -> tuple[Pairs, ...]:
    """Return at most ``most`` of the rounds, evenly spread over the tournament.

    Spread, because partners of neighbouring rounds are neighbours, which often share a switch.
    """
    total = _total(nodes)
    if total <= most:
        return rounds(nodes)
    return tuple(_round(nodes, index * total // most) for index in range(most))


def _total(nodes: int) -> int:
    return nodes - 1 + nodes % 2 if nodes > 1 else 0


def _round(nodes: int, number: int) -> Pairs:
    """Return one round by the circle method: the first stands still, the others move on."""
    size = nodes + nodes % 2
    moved = [1 + (place - number) % (size - 1) for place in range(size - 1)]
    circle = [0, *moved]
    pairs = (sorted((circle[i], circle[size - 1 - i])) for i in range(size // 2))
    return tuple(sorted((a, b) for a, b in pairs if b < nodes))
