"""The table of tests.gpu.speed."""

from collections.abc import Callable, Sequence

from tests.gpu.results import Record, about_lines, markdown_table

_HEADS = (
    "", "batch", "step, s", "tokens/s/GPU", "TFLOP/s", "MFU", "of matrix rate", "peak, GiB",
    "reserved, GiB", "first 3 steps, s", "loss",
)  # fmt: skip


def markdown(ran_on: dict[str, str], rate: float) -> Callable[[Sequence[Record]], str]:
    """Return what makes Markdown of the rows so far.

    Args:
        ran_on: Hardware and versions.
        rate: Operations a second of a large bf16 matrix product.
    """

    def text(rows: Sequence[Record]) -> str:
        lines = about_lines(ran_on)
        lines += [f"The chip's measured rate: {rate / 1e12:.0f} TFLOP/s in bf16 products.", ""]
        lines += markdown_table(_HEADS, [_cells(row, rate) for row in rows if "step_s" in row])
        lines += [""]
        lines += [f"- {row['name']}: failed, {row['problem']}" for row in rows if "problem" in row]
        lines += [f"- {row['name']}: {row['left_out']}" for row in rows if "left_out" in row]
        return "\n".join(lines)

    return text


def _cells(row: Record, rate: float) -> list[object]:
    memory = [f"{row[key]:.1f}" if row[key] else "-" for key in ("peak_gib", "reserved_gib")]
    return [
        row["name"],
        row["batch"],
        f"{row['step_s']:.4f}",
        f"{row['tokens_per_s_per_gpu']:,.0f}",
        f"{row['tflops']:.1f}",
        f"{row['mfu']:.1%}" if row["mfu"] else "-",
        f"{row['tflops'] * 1e12 / rate:.1%}",
        *memory,
        f"{row['warm_up_s']:.1f}",
        f"{row['loss']:.4f}" if "loss" in row else "-",
    ]
