"""PyYAML's and pydantic's messages in words for who writes a job file. Pure."""

from collections.abc import Mapping
from typing import Any

import yaml

_WHOLE = "must be a whole number"
_KEYS = "must hold keys and values, indented below it"
# By pydantic's error types (docs.pydantic.dev, "Validation errors").
_WORDS = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}


def of_value(item: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, from one of pydantic's errors."""
    if item["type"] == "string_type" and isinstance(item["input"], int | float):
        return "must be text; put it in quotes"
    words = _WORDS.get(item["type"])
    if words is None:
        return str(item["msg"]).removeprefix("Value error, ")
    return words.format(**item.get("ctx", {}))


def of_yaml(problem: Exception) -> str:
    """Return where a file is no YAML and why, in one line."""
    if not isinstance(problem, yaml.MarkedYAMLError) or problem.problem_mark is None:
        return str(problem)
    mark = problem.problem_mark
    what = problem.problem or problem.context or "does not read"
    if "'\\t'" in what:
        what = "a tab; YAML is indented with spaces only"
    elif problem.problem and problem.context and problem.context_mark is not None:
        what = f"{what} ({problem.context} that begins in line {problem.context_mark.line + 1})"
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}"
