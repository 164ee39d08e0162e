"""Versions of kplan's own files: which of them are read, and what is said of a file that is older or newer.

Every kind of file that kplan reads back stands here, so that none is without a version. A file that people
write by hand need not say its version: it is then of the first one. A kind's version grows when this release
could not read a file of the last one, or would read it wrongly; ``oldest`` stays behind where it still can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kplan.errors import InputError

KEY = "schema_version"
"""What the version is called in every file."""
UPGRADE = "upgrade this kplan: pip install --upgrade kplan"


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: of such a file in an error.
        version: that is written, and read.
        renew: the command that makes such a file anew, for one that is too old.
        oldest: first version that is still read.
        unmarked: version of a file that does not say its own; None: it must.
    """

    name: str
    version: int
    renew: str
    oldest: int = 1
    unmarked: int | None = None

    @property
    def reads(self) -> str:
        """The versions that are read, in words."""
        numbers = " and ".join(str(one) for one in range(self.oldest, self.version + 1))
        return f"this kplan reads {numbers}"

    def check(self, found: object, file: object) -> None:
        """Refuse a file whose version is not read.

        Args:
            found: what the file says of its version; None: nothing.
            file: its name.

        Raises:
            InputError: it was made by a newer kplan, or by an older one, or says no version.
        """
        if found is None:
            found = self.unmarked
        what = f"{self.name} {file}, {KEY}"
        if type(found) is not int or found < 1:
            raise InputError(what, found, self.reads, self.renew)
        if found > self.version:
            raise InputError(what, found, f"made by a newer kplan; {self.reads}", UPGRADE)
        if found < self.oldest:
            raise InputError(what, found, f"made by an older kplan; {self.reads}", self.renew)

    def unmarked_of(self, record: Any, file: object) -> Any:
        """``record`` without its version, once that was checked; anything but a mapping stays as it is.

        Raises:
            InputError: as :meth:`check`.
        """
        if not isinstance(record, Mapping):
            return record
        self.check(record.get(KEY), file)
        return {key: value for key, value in record.items() if key != KEY}


PLAN = Format(
    "plan", 1, "write it anew: kplan recommend --out DIR, with the options in its question", unmarked=1
)
LEADERBOARD = Format("leaderboard", 1, "write it anew: kplan leaderboard --out DIR", unmarked=1)
STUDY = Format("study", 1, "begin another: kplan search --study NAME", unmarked=1)
BASELINE = Format("baseline", 1, "write it anew: kplan validate --write-baseline FILE", unmarked=1)
TRACES = Format("trace file", 2, "import it again: kplan traces import SOURCE --out FILE")
"""2 added ``seen``, which those of 1 do not know."""
FIGURES = Format("acceptance figures", 1, "import them again: kplan traces import SOURCE --out FILE")
TRACE_MODEL = Format("trace model", 1, "fit it again: kplan traces fit TRACES --out FILE")
PAIR = Format("pair of proposers", 1, "fit it again: kplan traces pair TRACES --workload FILE")
RECORDING = Format("recording", 1, "begin anew: kplan record --restart, with the same options")
STEP_LOG = Format("step log", 1, "log it again: kplan steplog install ENGINE_PYTHON", unmarked=1)
RECORDS = Format("records", 1, "write them anew: kplan simulate --records DIR")
SEARCH = Format("search", 1, "write it anew: kplan search --out DIR")

SCENARIO = Format("scenario file", 1, "see kplan simulate --help for the keys of today", unmarked=1)
WORKLOAD = Format("workload", 1, "fit it again: kplan traces workload TRACES --out DIR", unmarked=1)
TABLE = Format("table", 1, "see CONTRIBUTING.md for the keys of today", unmarked=1)
PROFILES = {
    "hardware": Format("hardware profile", 1, "see kplan profiles hardware", unmarked=1),
    "models": Format("models profile", 1, "see kplan profiles models", unmarked=1),
    "drafters": Format("drafters profile", 1, "see kplan profiles drafters", unmarked=1),
    "calibrations": Format("calibrations profile", 1, "fit it again: kplan calibrate --out FILE", unmarked=1),
    "engines": Format("engines profile", 1, "see kplan profiles engines", unmarked=1),
}
"""By the kind that kplan.profiles calls it."""
