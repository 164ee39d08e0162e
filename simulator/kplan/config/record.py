"""What every record of a file has in common, and the one line that says what is wrong with one."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from kplan.errors import InputError


class Record(BaseModel):
    """A frozen record of finite numbers; it refuses keys it does not know, and true or false for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1, and YAML reads on, off, yes and no as true or false."""
        if _holds_flag(value):
            assert info.field_name is not None
            if not _takes_flags(cls.model_fields[info.field_name].annotation):
                raise ValueError("a number or a text is needed, not true or false")
        return value


def _holds_flag(value: object) -> bool:
    if isinstance(value, dict):
        return any(isinstance(one, bool) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_flag(one) for one in value if not isinstance(one, dict))
    return isinstance(value, bool)


def _takes_flags(annotation: object) -> bool:
    """Whether true and false are values of it, or of records inside it, which look for themselves."""
    is_record = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_record or annotation in (bool, Any, object):
        return True
    return any(_takes_flags(part) for part in get_args(annotation))


def fault(error: ValidationError, what: str, fix: str = "mend that key") -> InputError:
    """The first fault of a record as one line that names the key, its value and the bound.

    Args:
        what: which record, for example ``hardware profile gpu.yaml``.
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    bound = str(first["msg"]).removeprefix("Value error, ")
    bound = bound[0].lower() + bound[1:]
    value: object = first["input"]
    if first["type"] == "missing":
        return InputError(f"{what}: {where}", "nothing", bound, "add that key")
    if isinstance(value, dict):
        value = "values that do not fit"
    return InputError(f"{what}: {where}" if where else what, value, bound, fix)
