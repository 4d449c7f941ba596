"""Slurm's short form of node names, and whose node a host name is. Pure."""

import re

# More nodes than any cluster has; a list that unfolds to more is not Slurm's.
_MOST = 100_000
# Slurm itself takes a few in a name.
_BRACKETS = 16


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a node list of Slurm; what is no list gives no names.

    >>> expand("n[1-2,05],gpu-a[08-10]x[1-2]")[:5]
    ('n1', 'n2', 'n05', 'gpu-a08x1', 'gpu-a08x2')
    """
    names: list[str] = []
    for part in _split(text):
        if part.count("[") > _BRACKETS:
            continue
        names += _unfold(part, _MOST - len(names))
    return tuple(names)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\[\]]*\]|\[)+", text.strip())


def _unfold(part: str, most: int) -> list[str]:
    found = re.search(r"\[([^\[\]]*)\]", part)
    if found is None:
        return [part] if "[" not in part and "]" not in part and most > 0 else []
    numbers = _numbers(found[1], most)
    rest = part[found.end() :]
    tails = _unfold(rest, most) if rest else [""]
    if len(numbers) * len(tails) > most:
        return []
    return [f"{part[: found.start()]}{number}{tail}" for number in numbers for tail in tails]


def _numbers(text: str, most: int) -> list[str]:
    found: list[str] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item)
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= most:
            return []
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def node_of(host: str, nodes: tuple[str, ...], *, index: int | None = None) -> str:
    """Return which of ``nodes`` a host name belongs to; "" where that cannot be told.

    Args:
        host: As the node calls itself: short, or with its domain.
        nodes: The nodes of the attempt, in the order of their node ranks.
        index: Its node rank where it is known; it counts where the name does not say.

    >>> node_of("n2.cluster.local", ("n1", "n2")), node_of("ip-10-0-0-7", ("gpu-1", "gpu-2"), index=1)
    ('n2', 'gpu-2')
    """  # noqa: E501
    if host in nodes:
        return host
    short = host.partition(".")[0].lower()
    same = [name for name in nodes if name.partition(".")[0].lower() == short]
    if len(same) == 1 and short:
        return same[0]
    if index is not None and 0 <= index < len(nodes):
        return nodes[index]
    return nodes[0] if len(nodes) == 1 else ""
