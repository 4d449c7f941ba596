"""Write the golden scripts anew: `python -m tests.golden.regenerate`, then look at `git diff`."""

from __future__ import annotations

from .cases import HERE, all_rendered


def main() -> None:
    """Replace all golden files."""
    for pattern in ("*.sbatch", "*.node.sh"):
        for old in HERE.glob(pattern):
            old.unlink()
    for file, text in all_rendered().items():
        (HERE / file).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
