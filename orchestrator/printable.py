"""Text from elsewhere, made fit for a terminal. Pure."""


def printable(text: str) -> str:
    r"""Return ``text`` with every character that a terminal would act on written out.

    Escape sequences can repaint a screen or retitle its window; marks that turn the direction of
    writing hide what is there. Line breaks and tabs stay.

    >>> print(printable("a\x1b[31mred\u202eb"))
    a\x1b[31mred\u202eb
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
