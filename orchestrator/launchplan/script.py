"""Render the scripts of a plan from templates/. Pure but for reading the templates."""

import re
import shlex

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from orchestrator import __version__, errors, resources
from orchestrator.launchplan.plan import LaunchPlan

_JOB_ID = "${SLURM_JOB_ID}"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def sh(text: object) -> str:
    """Return ``text`` as one word of bash that nothing expands.

    >>> print(sh("plain/path"), sh("two words; $(date)"))
    plain/path 'two words; $(date)'
    """
    return shlex.quote(str(text))


def value(text: str) -> str:
    """Return the value of a variable as a word of bash in which only the job's id is expanded.

    >>> print(value("/run/tcpx-${SLURM_JOB_ID}"), value("$HOME"))
    /run/tcpx-"$job_id" '$HOME'

    NCCL_IB_HCA's "=" is quoted, or an admin would read a comparison.

    >>> print(value("=mlx5_0"))
    '=mlx5_0'
    """
    return '"$job_id"'.join(_piece(part) for part in text.split(_JOB_ID)) or "''"


def _piece(part: str) -> str:
    plain = sh(part) if part else ""
    return f"'{part}'" if part.startswith("=") and plain == part else plain


def before(text: str, name: str) -> str:
    """Return ``text`` as a word of bash, before what the list of paths ``name`` holds already.

    >>> print(before("/opt/lib", "LD_LIBRARY_PATH"))
    /opt/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    """
    return f"{value(text)}${{{name}:+:${name}}}"


def option(pair: tuple[str, str]) -> str:
    """Return one option as a word of bash.

    >>> print(option(("mpi", "pmix")), option(("exclusive", "")), option(("cpu-bind", "a;b")))
    --mpi=pmix --exclusive '--cpu-bind=a;b'
    """
    name, text = pair
    return sh(f"--{name}={text}" if text else f"--{name}")


def directive(pair: tuple[str, str]) -> str:
    """Return one option as sbatch reads it behind #SBATCH, which is not as bash does.

    >>> directive(("time", "1:00:00")), directive(("requeue", "")), directive(("output", "a b"))
    ('--time=1:00:00', '--requeue', '--output="a b"')
    """
    name, value = pair
    if value == "":
        return f"--{name}"
    if _PLAIN.fullmatch(value):
        return f"--{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{escaped}"'


_FILTERS = {"sh": sh, "value": value, "before": before, "option": option, "directive": directive}


def render(plan: LaunchPlan) -> dict[str, str]:
    """Return the scripts of ``plan`` by file name: `script.sbatch` and `node.sh`.

    Raises:
        TemplateError: A template asks for a value that the plan does not have.
    """
    return {
        "script.sbatch": fill("train.sbatch.j2", plan=plan),
        "node.sh": fill("node.sh.j2", plan=plan),
    }


def fill(template: str, **values: object) -> str:
    """Return ``template`` with ``values`` in it.

    Raises:
        TemplateError: It asks for a value that is not there.
    """
    environment = Environment(
        loader=FileSystemLoader(str(resources.root("templates"))),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # bash, not HTML; every value goes through sh or directive
    )
    environment.filters.update(_FILTERS)
    try:
        return environment.get_template(template).render(version=__version__, **values)
    except TemplateError as problem:
        raise errors.TemplateError(f"{template}: {problem}") from problem
