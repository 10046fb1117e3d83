"""What a grading run leaves on disk: the bundle that it can be repeated from, and one record per submission.

Every file is written whole under another name first, so that a run that is killed leaves no half of one.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labs_common.grading.grade import RECORD_VERSION, final_marks
from labs_common.grading.rubric import Rubric
from labs_common.grading.submissions import Kernel, Submission

BUNDLE_FORMAT = "palab grading bundle 1"


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Replace a file by a whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o600 if private else 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """As ``write_text``, of a JSON value."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", private)


def read_json(path: Path) -> Any:
    """A JSON file's value; None where there is none, or it is cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class Store:
    """The output folder of a grading run.

    ``bundle/bundle.json`` has the seed, the rubric, points given by hand and the toolchain,
    ``bundle/submissions/`` what was handed in as far as it is graded, ``results/`` the record of each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle_file = folder / "bundle" / "bundle.json"

    def exists(self) -> bool:
        """Whether there is a bundle."""
        return (read_json(self.bundle_file) or {}).get("format") == BUNDLE_FORMAT

    def take_up(self, rubric: Rubric, gpu: bool, seed: str | None = None) -> str:
        """The seed to grade by. Nothing is written.

        Args:
            rubric: to grade by.
            gpu: whether speed is marked.
            seed: of another run, to repeat it; by default the stored one, or a new secret.

        Raises:
            ValueError: the folder holds marks that the run would replace, by another rubric or seed, or with
                speed.
        """
        kept = self.head() if self.exists() else {}
        if kept and any((self.folder / "results").glob("*.json")):
            elsewhere = "give another --out"
            if kept["rubric"] != rubric.digest:
                raise ValueError(
                    f"{self.folder} holds marks by another rubric (stages {', '.join(kept['stages'])}); "
                    f"{elsewhere}. palab grade {self.folder} --again --out OTHER grades the same "
                    "submissions with the same seed, with --assignment or --stage by the other rubric"
                )
            if seed not in (None, kept["seed"]):
                raise ValueError(f"{self.folder} holds marks of a run with another seed; {elsewhere}")
            if kept.get("gpu") and not gpu:
                raise ValueError(f"{self.folder} holds marks for speed; say --gpu, or {elsewhere}")
        return seed or kept.get("seed") or secrets.token_hex(16)

    def begin(
        self,
        rubric: Rubric,
        rubric_text: str,
        toolchain: Mapping[str, str],
        seed: str,
        submissions: Sequence[Submission],
        gpu: bool = False,
        by_hand: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Write the bundle: its head, and the submissions; of a student handed in anew the old one goes.

        Args:
            seed: of ``take_up``.
            submissions: all of the run. Others that the folder holds stay there and are no part of it.
            by_hand: points that a person gave, by student and answer.
        """
        head = {
            "format": BUNDLE_FORMAT,
            "note": "The seed decides the hidden problems: keep this file from students.",
            "seed": seed,
            "assignment": rubric.name,
            "rubric": rubric.digest,
            "rubric_text": rubric_text,
            "stages": list(rubric.stages),
            "gpu": gpu,
            "toolchain": dict(toolchain),
            "submissions": [submission.slug for submission in submissions],
            "by_hand": {student: dict(points) for student, points in (by_hand or {}).items()},
        }
        if head != read_json(self.bundle_file):
            write_json(self.bundle_file, head, private=True)
        for submission in submissions:
            path = self._submission(submission.slug)
            value = asdict(submission)
            if read_json(path) != json.loads(json.dumps(value)):
                write_json(path, value)

    def _submission(self, slug: str) -> Path:
        return self.folder / "bundle" / "submissions" / f"{slug}.json"

    def head(self) -> dict[str, Any]:
        """The bundle's head.

        Raises:
            ValueError: there is none.
        """
        head = read_json(self.bundle_file)
        if not isinstance(head, dict) or head.get("format") != BUNDLE_FORMAT:
            raise ValueError(f"{self.bundle_file} is no grading bundle")
        return head

    def submissions(self) -> list[Submission]:
        """Those of the last run, sorted by student."""
        found = []
        stored = (self.folder / "bundle" / "submissions").glob("*.json")
        for slug in self.head().get("submissions") or sorted(path.stem for path in stored):
            value = read_json(self._submission(slug))
            if value is None:
                raise ValueError(f"{self._submission(slug)} is missing or damaged")
            kernels = {stage: Kernel(**kernel) for stage, kernel in value["kernels"].items()}
            notes, suspicious = tuple(value["notes"]), tuple(value["suspicious"])
            found.append(Submission(value["student"], kernels, value["answers"], notes, suspicious))
        return sorted(found, key=lambda submission: submission.student)

    def result(
        self,
        submission: Submission,
        rubric: Rubric,
        gpu: bool,
        by_hand: Mapping[str, float] | None = None,
    ) -> dict[str, Any] | None:
        """The stored record of a submission, if it is final and of the same content, rubric and engine.

        Args:
            by_hand: points that a person gave for its answers; of others the record is not final.
        """
        record = read_json(self.folder / "results" / f"{submission.slug}.json")
        if not isinstance(record, dict) or "failed" in record:
            return None
        wanted = (RECORD_VERSION, submission.digest, rubric.digest, gpu, dict(by_hand or {}))
        have = tuple(record.get(key) for key in ("version", "digest", "rubric", "gpu", "by_hand"))
        return record if have == wanted else None

    def add_result(self, record: Mapping[str, Any]) -> None:
        """Store a record."""
        write_json(self.folder / "results" / f"{record['slug']}.json", record)

    def results(self, submissions: Iterable[Submission]) -> list[dict[str, Any]]:
        """Records of these submissions, in their order, failed ones included."""
        found = [read_json(self.folder / "results" / f"{s.slug}.json") for s in submissions]
        return [record for record in found if isinstance(record, dict)]


def differing_marks(one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> list[str]:
    """Students whose marks differ between two gradings, speed marks apart."""

    def marks(record: Mapping[str, Any]) -> Any:
        kept = json.loads(json.dumps(final_marks(record)))
        for key in ("gpu", "out_of", "total"):
            kept.pop(key, None)
        for stage in kept["stages"].values():
            for key in ("speed", "total", "out_of"):
                stage.pop(key, None)
            for table in ("points", "maximum"):
                stage[table].pop("speed", None)
            stage["reasons"] = [r for r in stage["reasons"] if not r.startswith("speed:")]
        return kept

    first = {record["student"]: marks(record) for record in one}
    second = {record["student"]: marks(record) for record in other}
    return sorted(s for s in first.keys() | second.keys() if first.get(s) != second.get(s))
