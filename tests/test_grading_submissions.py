"""Reading submissions: archives that attack, every editor's encoding, notebooks in every state of damage."""

import errno
import io
import json
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import PurePath

import pytest

from labs_common.check import CHECK_PROBLEMS, check
from labs_common.grading import archives
from labs_common.grading.answers import mark_answers
from labs_common.grading.check_report import report_json
from labs_common.grading.notebook_cells import read_notebook
from labs_common.grading.rubric import AnswerKey
from labs_common.grading.safety import refusals
from labs_common.grading.submissions import Submission, find_submissions
from labs_common.source import Source
from labs_common.stages import find_stage

STAGE = find_stage("02")
KERNEL = (
    'extern "C" __global__ void paged_attention_vectorized(Problem problem, Inputs in, float* output) {}\n'
)


def write_zip(path, entries, links=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        for name, target in links:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)


def add_tar(archive, name, data=b"", kind=tarfile.REGTYPE, target=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, len(data), target
    archive.addfile(entry, io.BytesIO(data))


def only(folder):
    (submission,) = find_submissions(folder)
    return submission


def notebook(*cells):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def cell(source, kind="code", **metadata):
    return {"cell_type": kind, "metadata": metadata, "source": source}


# ---- what a submission may be ----------------------------------------------------------------------------


def test_a_folder_an_archive_a_notebook_a_kernel_and_a_report(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "02_vectorized.cu").write_text(KERNEL)
    write_zip(tmp_path / "ben.zip", {"work/02_vectorized.cu": KERNEL})
    with tarfile.open(tmp_path / "carla.tar.gz", "w:gz") as archive:
        add_tar(archive, "02_vectorized.cu", KERNEL.encode())
    (tmp_path / "dora.ipynb").write_text(notebook(cell("%%writefile 02_vectorized.cu\n" + KERNEL)))
    (tmp_path / "emil.cu").write_text(KERNEL)
    report = {"format": "palab check report 1", "stage": STAGE.id, "source": KERNEL, "ok": True}
    (tmp_path / "fay.json").write_text(json.dumps(report))

    found = find_submissions(tmp_path)

    assert [s.student for s in found] == ["anna", "ben", "carla", "dora", "emil", "fay"]
    assert all(s.kernels[STAGE.id].text == KERNEL for s in found)


def test_nbgraders_layout(tmp_path):
    for student in ("anna", "ben"):
        folder = tmp_path / "submitted" / student / "lab2"
        folder.mkdir(parents=True)
        (folder / "WMS q3.ipynb").write_text(notebook(cell("%%writefile 02_vectorized.cu\n" + KERNEL)))
    (tmp_path / "submitted" / "carla" / "lab1").mkdir(parents=True)
    (tmp_path / "submitted" / "carla" / "lab3").mkdir(parents=True)

    anna, ben, carla = find_submissions(tmp_path, "lab2")

    assert (anna.student, ben.student, carla.student) == ("anna", "ben", "carla")
    assert STAGE.id in anna.kernels and STAGE.id in ben.kernels
    assert carla.kernels == {}
    assert "no folder 'lab2'; there are lab1, lab3" in carla.notes[0]


def test_two_submissions_of_one_name_stay_apart(tmp_path):
    (tmp_path / "anna.cu").write_text(KERNEL)
    (tmp_path / "anna.zip").write_bytes(b"")

    found = find_submissions(tmp_path)

    assert [s.student for s in found] == ["anna.cu", "anna.zip"]
    assert len({s.slug for s in found}) == 2


def test_no_name_can_be_found_that_takes_anothers_files():
    """Of the 14 million names tried in 40 s one had the letters of the other and 24 bits of its hash."""
    one, other = Submission("anna").slug, Submission("anna||#*{").slug

    assert one[:11] == other[:11] == "anna-55579b"
    assert one != other
    assert len(one.removeprefix("anna-")) == 16


def test_names_that_read_alike_stay_apart(tmp_path):
    """The same letters, composed and decomposed: one would be graded in the other's place."""
    for name in ("Ren\u00e9", "Rene\u0301"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "02_vectorized.cu").write_text(KERNEL)

    found = find_submissions(tmp_path)

    assert len({s.student for s in found}) == len({s.slug for s in found}) == 2
    assert all("reads Ren\u00e9 too" in s.suspicious[0] for s in found)


def test_a_student_called_submitted_hides_nobody(tmp_path):
    for name in ("submitted", "anna"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "02_vectorized.cu").write_text(KERNEL)

    assert [s.student for s in find_submissions(tmp_path)] == ["anna", "submitted"]


HOSTILE_TEXTS = {
    "entries": "__global__ void paged_attention_" * 30_000,
    "keywords": "__global__ " * 90_000,
    "newlines": "__global__ void f() {}\n" + "\n" * 1_000_000,
    "quotes": '"""__global__' * 60_000 + "'''" * 60_000,
    "backslashes": "__global__" + "\\ " * 400_000,
    "blanks": "__global__" + " " * 1_000_000,
    "stars": "__global__" + "/*" * 500_000,
    "digits": "1" * 1_000_000,
    "writefile": "%%writefile " + "a" * 1_000_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_no_text_takes_long_to_read(tmp_path, text):
    """A megabyte is read in a blink unless an expression goes over it again for every position."""
    (tmp_path / "a.cu").write_text(text)
    (tmp_path / "b.ipynb").write_text(
        notebook(
            cell(text, tags=["palab:kernel:02"]), cell(text, "markdown"), cell(text, tags=["palab:answer:a"])
        )
    )

    for submission in find_submissions(tmp_path):
        for kernel in submission.kernels.values():
            refusals(kernel.text)
        mark_answers(submission.answers, {"a": AnswerKey(1, "number", value=1, factor=2)})


@pytest.mark.parametrize("name", ["Анна Петрова", "山田", "a b", "=cmd()", "x" * 200, "a\nb", "é", "e\u0301"])
def test_any_name_makes_a_file_name(tmp_path, name):
    (tmp_path / name[:60]).mkdir()

    submission = only(tmp_path)

    assert submission.slug.isascii() and "/" not in submission.slug and len(submission.slug) < 60


def test_the_students_own_kernel_goes_before_the_editions(tmp_path):
    cut = KERNEL.replace("{}", "{ /* TODO */ }")
    write_zip(tmp_path / "a.zip", {"kernels/02_vectorized.cu": cut, "kernels/mine/02_vectorized.cu": KERNEL})

    submission = only(tmp_path)

    assert submission.kernels[STAGE.id].text == KERNEL
    assert any(
        "kernels/mine/02_vectorized.cu is graded, not kernels/02_vectorized.cu" in n for n in submission.notes
    )


@pytest.mark.parametrize(
    "name", ["02_vectorized (1).cu", "my kernel.cu", "02 vectorized final FINAL.cu", "Kopie.CU"]
)
def test_a_renamed_kernel_is_taken_by_its_number_or_its_entry(tmp_path, name):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / name).write_text(KERNEL)

    submission = only(tmp_path)

    assert submission.kernels[STAGE.id].text == KERNEL
    assert any(name in note and "02_vectorized.cu" in note for note in submission.notes)


def test_a_kernel_of_no_stage_is_named(tmp_path):
    (tmp_path / "anna.cu").write_text("__global__ void mine() {}\n")

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert "belongs to no stage" in submission.notes[0]


def test_nothing_to_grade_is_said(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "report.pdf").write_bytes(b"%PDF")

    assert "no kernel and no answer was found" in only(tmp_path).notes


@pytest.mark.parametrize("name", ["grades.csv", "kernel.txt", "solution.rar", "03_gqa_reuse"])
def test_a_file_of_another_kind_is_named_as_such(tmp_path, name):
    (tmp_path / name).write_bytes(b"Rar!\x1a\x07\x00")

    (note, nothing) = only(tmp_path).notes

    assert note.startswith(f"{name}: no kind of file that is read (.cu, .ipynb, .json, .zip")
    assert nothing == "no kernel and no answer was found"


def test_an_empty_or_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no submissions"):
        find_submissions(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        find_submissions(tmp_path / "nowhere")


# ---- attacks by files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../../evil.cu", "/etc/evil.cu", "a/../../evil.cu", "..\\..\\evil.cu", "C:\\evil.cu"]
)
def test_no_path_outside_from_a_zip(tmp_path, name):
    folder = tmp_path / "class"
    folder.mkdir()
    write_zip(folder / "a.zip", {name: KERNEL, "02_vectorized.cu": KERNEL})

    submission = only(folder)

    assert "path outside" in submission.suspicious[0]
    assert submission.kernels[STAGE.id].origin == "02_vectorized.cu"
    assert [p.name for p in tmp_path.rglob("*")] == ["class", "a.zip"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_no_link_and_no_device_from_a_tar(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add_tar(archive, "02_vectorized.cu", kind=kind, target="/etc/passwd")
        add_tar(archive, "03_gqa_reuse.cu", KERNEL.encode())

    submission = only(tmp_path)

    assert len(submission.suspicious) == 1 and "02_vectorized.cu" in submission.suspicious[0]
    assert list(submission.kernels) == ["03_gqa_reuse"]


def test_no_link_from_a_zip(tmp_path):
    write_zip(tmp_path / "a.zip", {}, links=[("02_vectorized.cu", "/etc/passwd")])

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert "links are not followed" in submission.suspicious[0]


def test_no_link_and_no_pipe_from_a_folder(tmp_path):
    secret = tmp_path / "secret.cu"
    secret.write_text(KERNEL)
    folder = tmp_path / "class" / "anna"
    folder.mkdir(parents=True)
    (folder / "02_vectorized.cu").symlink_to(secret)
    (folder / "more").symlink_to(tmp_path)
    os.mkfifo(folder / "03_gqa_reuse.cu")

    submission = only(tmp_path / "class")

    assert submission.kernels == {}
    assert len(submission.suspicious) == 3


def test_a_submission_that_is_a_link_is_not_read(tmp_path):
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "02_vectorized.cu").write_text(KERNEL)
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "anna").symlink_to(tmp_path / "solution")

    submission = only(folder)

    assert submission.kernels == {}
    assert "links are not followed" in submission.suspicious[0]


def test_a_zip_bomb_ends_at_the_limit(tmp_path):
    write_zip(tmp_path / "a.zip", {"02_vectorized.cu": b"\0" * (20 << 20)})

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert "more than 8 MiB" in submission.suspicious[0]


def test_a_zip_that_lies_about_its_sizes(tmp_path):
    write_zip(tmp_path / "a.zip", {"02_vectorized.cu": b"x" * (archives.MAX_FILE_BYTES + 1)})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    size = (archives.MAX_FILE_BYTES + 1).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(bytes(data.replace(size, (10).to_bytes(4, "little"))))

    submission = only(tmp_path)

    assert submission.kernels == {} or len(submission.kernels[STAGE.id].text) <= 10


def test_a_tar_bomb_of_files_that_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_SKIPPED_BYTES", 1 << 20)
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as archive:
        add_tar(archive, "data.bin", b"\0" * (2 << 20))
        add_tar(archive, "02_vectorized.cu", KERNEL.encode())

    assert "unpacks to more than 1 MiB" in only(tmp_path).suspicious[0]


def test_too_many_entries(tmp_path):
    write_zip(tmp_path / "a.zip", {f"{i}.txt": b"" for i in range(archives.MAX_ENTRIES + 1)})

    assert "entries" in only(tmp_path).suspicious[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and no more",
        b"\x1f\x8bnothing",
        b"\xfd7zXZ\0nothing",
        b"BZh9nothing",
        os.urandom(500),
    ],
)
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tar.xz", ".ipynb", ".json", ".cu"])
def test_a_damaged_file_is_a_note_and_never_an_error(tmp_path, data, suffix):
    (tmp_path / f"a{suffix}").write_bytes(data)

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert submission.notes


@pytest.mark.parametrize("error", [MemoryError, struct.error, lzma.LZMAError, RecursionError, IndexError])
def test_no_error_of_an_archive_stops_a_class(tmp_path, monkeypatch, error):
    """What the readers of archives raise is no fixed list: a corrupt .tar.xz once ended the whole run."""

    def fails(*_):
        raise error("broken")

    monkeypatch.setattr(archives, "_read_zip", fails)
    write_zip(tmp_path / "anna.zip", {"02_vectorized.cu": KERNEL})
    (tmp_path / "ben.cu").write_text(KERNEL)

    anna, ben = find_submissions(tmp_path)

    assert "anna.zip: cannot be read (broken)" in anna.notes
    assert STAGE.id in ben.kernels


def encrypted(data):
    """The same zip, with the flag in both headers of its first entry that asks for a password."""
    changed = bytearray(data)
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        changed[changed.index(signature) + flags] |= 1
    return bytes(changed)


def test_an_encrypted_archive_is_named(tmp_path):
    write_zip(tmp_path / "a.zip", {"02_vectorized.cu": KERNEL})
    (tmp_path / "a.zip").write_bytes(encrypted((tmp_path / "a.zip").read_bytes()))

    assert "password required" in only(tmp_path).notes[0]


@pytest.mark.parametrize("layout", ["folders", "nbgrader"])
def test_a_folder_that_may_not_be_read_is_named_and_the_others_are_graded(tmp_path, monkeypatch, layout):
    """Refused by the test, not by chmod, which does not hold for root."""
    root = tmp_path / "submitted" if layout == "nbgrader" else tmp_path / "class"
    for student in ("anna", "ben"):
        (root / student / "lab2").mkdir(parents=True)
        (root / student / "lab2" / "02_vectorized.cu").write_text(KERNEL)
    real = os.scandir

    def scandir(path="."):
        if "ben" in PurePath(path).parts:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "listdir", lambda path=".": [entry.name for entry in scandir(path)])

    anna, ben = find_submissions(root, "lab2")

    assert STAGE.id in anna.kernels
    assert ben.kernels == {} and any("cannot be read (Permission denied)" in note for note in ben.notes)


def test_terminals_and_pages_are_not_told_what_to_do(tmp_path):
    """Escape sequences and a right-to-left override in tags, which notes repeat."""
    name = "\x1b[2J\u202e"
    cells = [cell("4", "markdown", tags=[f"palab:answer:{name}"]) for _ in range(2)]
    (tmp_path / "anna.ipynb").write_text(notebook(*cells))

    notes = " ".join(only(tmp_path).notes)

    assert "\\x1b[2J\\x202e" in notes
    assert notes.isprintable()


def test_an_archive_in_an_archive_is_named(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("02_vectorized.cu", KERNEL)
    write_zip(tmp_path / "a.zip", {"mine.zip": inner.getvalue()})

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert "an archive inside a submission" in submission.notes[0]


def test_a_file_twice_in_an_archive(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add_tar(archive, "02_vectorized.cu", KERNEL.encode())
        add_tar(archive, "02_vectorized.cu", b"other")

    submission = only(tmp_path)

    assert submission.kernels[STAGE.id].text == KERNEL
    assert any("twice" in note for note in submission.notes)


# ---- encodings (D8) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "comment"),
    [
        ("utf-8", "→ ≤ γ 中"),
        ("utf-8-sig", "→ ≤ γ 中"),
        ("utf-16", "→ ≤ γ 中"),
        ("cp1252", "Größe – naïve"),
        ("ascii", "plain"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_editors_text(tmp_path, encoding, comment, end):
    text = f"// {comment}\n{KERNEL}"
    folder = tmp_path / "Группа 1" / "Анна Петрова"
    folder.mkdir(parents=True)
    (folder / "02_vectorized.cu").write_bytes(text.replace("\n", end).encode(encoding))

    submission = only(tmp_path / "Группа 1")

    assert submission.kernels[STAGE.id].text == text
    assert any("Windows-1252" in note for note in submission.notes) == (encoding == "cp1252")


def test_a_binary_file_is_named(tmp_path):
    (tmp_path / "02_vectorized.cu").write_bytes(b"\x7fELF\0\0\0")

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert "02_vectorized.cu: binary" in submission.notes[0]


def test_names_in_an_old_zip_encoding(tmp_path):
    write_zip(tmp_path / "a.zip", {"Работа/02_vectorized.cu": KERNEL})
    data = (tmp_path / "a.zip").read_bytes()
    old = data.replace("Работа".encode(), "Работа".encode("cp866").ljust(12, b"_"))
    (tmp_path / "a.zip").write_bytes(old.replace(b"\x00\x08", b"\x00\x00"))

    assert STAGE.id in only(tmp_path).kernels


# ---- notebooks (D1, D2, D5, D6) --------------------------------------------------------------------------


def answers(text):
    found = read_notebook(text, "lab.ipynb")
    return {key: [body for body, _ in given] for key, given in found.answers.items()}, found.notes


def test_answers_by_tag_grade_id_and_first_line():
    text = notebook(
        cell("four times", "markdown", tags=["palab:answer:03-requests"]),
        cell("latency", "markdown", nbgrader={"grade_id": "palab:answer:03-limiter", "schema_version": 3}),
        cell("<!-- palab:answer:03-blocks -->\n5", "markdown"),
        cell("# palab:answer:03-tokens\n2400"),
    )

    found, notes = answers(text)

    assert found == {
        "03-requests": ["four times"],
        "03-limiter": ["latency"],
        "03-blocks": ["5"],
        "03-tokens": ["2400"],
    }
    assert len(notes) == 2 and all("lost its tag" in note for note in notes)


def test_a_copied_cell_is_named_and_the_others_are_graded(tmp_path):
    text = notebook(
        cell("1", "markdown", tags=["palab:answer:a"]),
        cell("2", "markdown", tags=["palab:answer:a"]),
        cell("3", "markdown", tags=["palab:answer:b"]),
    )
    (tmp_path / "anna.ipynb").write_text(text)

    submission = only(tmp_path)

    assert submission.answers == {"a": "1", "b": "3"}
    assert any("palab:answer:a stands in cell 1, cell 2" in note for note in submission.notes)


def test_an_empty_copy_does_not_hide_an_answer(tmp_path):
    text = notebook(
        cell(" \n", "markdown", tags=["palab:answer:a"]), cell("5", "markdown", tags=["palab:answer:a"])
    )
    (tmp_path / "anna.ipynb").write_text(text)

    assert only(tmp_path).answers == {"a": "5"}


@pytest.mark.parametrize("kind", ["markdown", "raw", "heading", None])
def test_a_kernel_cell_turned_into_another_kind(kind):
    text = notebook(cell(f"```cuda\n{KERNEL}```", kind))

    found = read_notebook(text, "lab.ipynb")

    ((_, _, kernel, where),) = found.kernels
    assert kernel.strip() == KERNEL.strip()
    assert where == "lab.ipynb, cell 1"
    assert "graded all the same" in found.notes[0]


def test_nothing_of_a_notebook_is_run(tmp_path):
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\nimport os\nos._exit(0)"
    magic = f"!touch {marker}\n%run x.py\nsource = r'''\n{KERNEL}'''"
    (tmp_path / "anna.ipynb").write_text(notebook(cell(code), cell(magic)))

    submission = only(tmp_path)

    assert submission.kernels[STAGE.id].text.strip() == KERNEL.strip()
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"cells": ' + "[" * 50_000,
        "{}",
        '{"cells": 5}',
        '{"cells": [5, null, [], {"cell_type": 3, "source": 7, "metadata": 4}]}',
        '{"cells": [{"source": [1, 2], "metadata": {"tags": "palab:answer:x", "nbgrader": []}}]}',
        '{"worksheets": 3}',
        "null",
        "",
    ],
)
def test_a_broken_notebook_gives_nothing_and_no_error(text):
    found = read_notebook(text, "lab.ipynb")

    assert (found.kernels, found.answers) == ([], {})


def test_a_notebook_of_format_3():
    text = json.dumps(
        {"worksheets": [{"cells": [{"cell_type": "code", "input": f"%%writefile 02.cu\n{KERNEL}"}]}]}
    )

    ((name, _, kernel, _),) = read_notebook(text, "lab.ipynb").kernels

    assert (name, kernel) == ("02.cu", KERNEL)


@pytest.mark.parametrize("quotes", ['"""', "'''"])
@pytest.mark.parametrize("raw", [True, False])
def test_a_kernel_in_a_string(quotes, raw):
    body = KERNEL + '// "a\\n"\n'
    shown = body if raw else body.replace("\\", "\\\\")
    text = notebook(cell(f"code = {'r' if raw else ''}{quotes}\n{shown}{quotes}\n"))

    ((_, _, kernel, _),) = read_notebook(text, "lab.ipynb").kernels

    assert kernel == "\n" + body


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": "palab check report 1", "sou', "damaged JSON"),
        ('{"format": "palab check report 1", "source": "a", "source": "b"}', "a key stands in it twice"),
        ('{"format": "palab check report 2", "stage": "02", "source": "a"}', "of another version"),
        ('{"format": "palab check report 1", "stage": 2, "source": "a"}', "without a stage or a source"),
        ('{"format": "palab check report 1", "stage": "02"}', "without a stage or a source"),
        ("[" * 100_000, "damaged JSON"),
    ],
)
def test_a_report_that_cannot_be_read_is_named(tmp_path, text, said):
    (tmp_path / "anna.json").write_text(text)

    submission = only(tmp_path)

    assert submission.kernels == {}
    assert submission.notes[0].startswith("anna.json: ") and said in submission.notes[0]


def test_what_check_writes_can_be_handed_in(tmp_path, simulator):
    """Its kernel is taken; that it says the kernel is right is not."""
    wrong = Source("02_vectorized.cu", STAGE.source().text.replace("* problem.scale", ""))
    text = report_json(check(wrong, STAGE, simulator, CHECK_PROBLEMS[:1]), wrong)
    (tmp_path / "anna.json").write_text(text.replace('"ok": false', '"ok": true'))

    submission = only(tmp_path)

    assert submission.kernels[STAGE.id].text == wrong.text
    assert any("what it claims is not read" in note for note in submission.notes)
