"""Field types that a job file and a site profile share, and how a mistake in one is worded.

Every text that ends up in a script or in a command is checked here once: control characters are
refused (a newline in a job name would start a new #SBATCH line), and so is `$` in sbatch options
(Slurm does not expand it, people expect it to).
"""

import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from orchestrator.errors import InputError
from orchestrator.keys import wording
from orchestrator.redact import redacted

M = TypeVar("M", bound=BaseModel)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# TOKEN, but neither TOKENIZERS_PARALLELISM nor MAX_TOKENS.
_SECRET = re.compile(
    r"(TOKEN(?![A-Z])|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_?KEY)", re.IGNORECASE
)
# Names that a job cannot set: bash sets these itself or refuses to have them set, ...
_OF_BASH = re.compile(
    "BASH(OPTS|PID|_(?!ENV$).*)?|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME"
    "|GROUPS|HISTCMD|IFS|LINENO|OLDPWD|OPT(ERR|IND)|PIPESTATUS|POSIXLY_CORRECT|PPID|PWD|RANDOM|SECONDS"
    "|SHELLOPTS|SHLVL|SRANDOM|UID|_"
)
# ... and the scripts in templates/ keep their own values in these.
_OF_SCRIPTS = re.compile(
    "FSDPQ_.*|attempt|attempt_dir|carried|caught|check|checking|child|code|ended|file|hosts|idle|image"
    "|job_id|last|left|list|local_dir|lost|mark|monitor|mounts|node|nodes|note|notice|noticed|pending|rank"
    "|ranks|restart|run_dir|saved|silent|state|status|step|stopped|switches|tie|try|unfit|variable|within"
)


class Strict(BaseModel):
    """A frozen model that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def no_control(text: str) -> str:
    """Return ``text``; refuse control characters and line breaks."""
    if found := _CONTROL.search(text):
        raise ValueError(f"contains the control character {found.group()!r}; remove it")
    return text


def not_empty(text: str) -> str:
    """Return ``text``; refuse what names nothing: such a path is the working directory."""
    if not text.strip():
        raise ValueError("is empty; give a name, or leave the key out")
    return text


def run_name(text: str) -> str:
    """Return ``text``; refuse what is no name of a run."""
    if not _NAME.fullmatch(text):
        raise ValueError("use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    return text


def sbatch_value(text: str) -> str:
    """Return ``text``; refuse what Slurm would not take as it stands."""
    no_control(text)
    if not text.strip():
        raise ValueError("is empty; leave the key out instead")
    if found := re.search(r"[$`\\\"']", text):
        raise ValueError(
            f"contains {found.group()!r}; Slurm expands no variables and no quotes in its options,"
            " so write the plain value"
        )
    return text


def _env_vars(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if _OF_BASH.fullmatch(name) or _OF_SCRIPTS.fullmatch(name):
            raise ValueError(f"{name} is set by the job's own scripts and cannot be set here")
        if _SECRET.search(name):
            raise ValueError(
                f"{name} looks like a secret, and scripts and logs keep what stands here; export it"
                " in the shell that runs `fsdpq submit` instead, the scheduler hands it on"
            )
        try:
            no_control(value)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return values


# Slurm's own table (sbatch(1), --time), checked against 22.05: "minutes", "minutes:seconds",
# "hours:minutes:seconds", "days-hours", "days-hours:minutes", "days-hours:minutes:seconds".
_LONGEST_S = 100 * 365 * 86_400
_TIME = re.compile(
    r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)|(?P<m>\d+)(?::(?P<s>\d+))?)"
)


def time_limit_s(value: object) -> int:
    """Return seconds from a time as sbatch spells it.

    >>> time_limit_s("1-12:30:00"), time_limit_s("2:00:00"), time_limit_s(90), time_limit_s("4:30")
    (131400, 7200, 5400, 270)
    """
    found = _TIME.fullmatch(str(value)) if isinstance(value, str | int) else None
    if found is None or isinstance(value, bool):
        raise ValueError(
            "is no time limit; write it as sbatch does: minutes (90), hours:minutes:seconds"
            " (4:00:00) or days-hours:minutes:seconds (1-12:00:00)"
        )
    part = {key: int(text or 0) for key, text in found.groupdict().items()}
    seconds = (
        part["d"] * 86400
        + (part["dh"] + part["h"]) * 3600
        + (part["dm"] + part["hm"] + part["m"]) * 60
        + part["ds"]
        + part["hs"]
        + part["s"]
    )
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    if seconds > _LONGEST_S:
        raise ValueError("must be shorter than 100 years; leave it out for the site's own limit")
    return seconds


def slurm_time(seconds: int) -> str:
    """Return ``seconds`` as sbatch reads them.

    >>> slurm_time(131400), slurm_time(120)
    ('1-12:30:00', '00:02:00')
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


Line = Annotated[str, AfterValidator(no_control)]
Named = Annotated[Line, AfterValidator(not_empty)]
RunName = Annotated[str, AfterValidator(run_name)]
SbatchValue = Annotated[str, AfterValidator(sbatch_value)]
EnvVars = Annotated[dict[str, str], AfterValidator(_env_vars)]
TimeLimit = Annotated[int, BeforeValidator(time_limit_s)]


_MAX_BYTES = 256 << 10
_MAX_ALIASES = 16


class _Loader(yaml.SafeLoader):
    """YAML with the plain scalars of YAML 1.2.

    YAML 1.1 reads 12:30:00 as 45000, 0123 as 83 and `on` as true; a time limit, an account and a
    partition have been lost to that. Repeated keys are an error: YAML keeps the last one silently.
    """

    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # A few aliases of aliases make a file of one line unfold to more than the memory holds.
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > _MAX_ALIASES:
                raise ValueError(f"there are more than {_MAX_ALIASES} aliases (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is no text; put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        value = super().construct_scalar(node)
        if _SURROGATE.search(value):
            raise yaml.constructor.ConstructorError(
                None, None, f"{value!r} holds half of a character", node.start_mark
            )
        return value


# Only what a job file can use: no dates, sets or bytes, which explicit tags such as !!set make.
_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None
    or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
}
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    # A number with leading zeros stays text: 0123 is an account, not 83 and not 123.
    _guard = r"(?![-+]?0[0-9])" if _tag == "float" else ""
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"{_guard}(?:{_pattern})\\Z"), [*_first, ""]
    )


def read_yaml(path: Path, *, error: type[InputError]) -> dict[str, Any]:
    """Return the mapping in the YAML file ``path``.

    Raises:
        InputError: As ``error``; the file is missing, unreadable or no mapping.
    """
    try:
        data = yaml.load(_text_of(path, error), Loader=_Loader)
    except FileNotFoundError:
        raise error(f"{path}: there is no such file") from None
    except UnicodeDecodeError as problem:
        raise error(
            f"{path}: is no text in UTF-8 (byte {problem.start}); is this the right file?"
        ) from None
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise error(f"{path}: is not valid YAML: {wording.of_yaml(problem)}") from None
    if not isinstance(data, dict):
        raise error(f"{path}: must hold keys and values, such as `nodes: 2`")
    return data


def _text_of(path: Path, error: type[InputError]) -> str:
    """Return what is in a file: no pipe that nobody fills, no device without an end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise error(f"{path}: is no ordinary file; give the path of one")
    if found.st_size > _MAX_BYTES:
        raise error(f"{path}: is larger than {_MAX_BYTES >> 10} KiB; is this the right file?")
    return path.read_text(encoding="utf-8")


def read_scalar(text: str, *, where: str, error: type[InputError]) -> Any:
    """Return one value of a command line, read as in a file.

    Raises:
        InputError: As ``error``; it is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise error(f"{where}: is not valid YAML: {wording.of_yaml(problem)}") from None


def validate(model: type[M], data: Mapping[str, Any], *, where: Path, error: type[InputError]) -> M:
    """Return ``data`` as a ``model``.

    Raises:
        InputError: As ``error``; its text has a line for each mistake with the dotted path, what
            was given and what is allowed.
    """
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        lines = [_explain(model, item) for item in problem.errors()]
        raise error("\n".join(f"{where}: {line}" for line in lines)) from None


def _explain(model: type[BaseModel], item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return _unknown_key(model, item["loc"], path)
    if item["type"] == "missing":
        return f"{path}: is required"
    text = wording.of_value(item)
    shown = redacted(repr(item["input"]))
    given = "" if isinstance(item["input"], dict | BaseModel) else f" (given: {shown})"
    return f"{path}: {text}{given}" if path else text


def _unknown_key(model: type[BaseModel], location: tuple[int | str, ...], path: str) -> str:
    known = sorted(_fields_at(model, location[:-1]))
    near = get_close_matches(str(location[-1]), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{path}: is no key here.{hint} Valid keys: {', '.join(known)}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field else None
        if inner is not None:
            model = inner
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None
