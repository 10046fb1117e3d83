"""What a kernel may not contain: no file of the machine can be reached through the preprocessor."""

import pytest

from labs_common.grading.marking import headers_of
from labs_common.grading.safety import MAX_SOURCE_BYTES, normalised, refusals
from labs_common.stages import ALL_STAGES

# Each reads, or asks for, /etc/passwd in a compiler that follows the C++ phases of translation.
REACHES_A_FILE = {
    "plain": '#include "/etc/passwd"\n',
    "angled": "#include </etc/passwd>\n",
    "spliced": '#inc\\\nlude "/etc/pas\\\nswd"\n',
    "spliced with blanks": '#inc\\  \nlude "/etc/passwd"\n',
    "behind a comment": '/* a */ # /* b\n */ include "/etc/passwd"\n',
    "digraph": '%:include "/etc/passwd"\n',
    "trigraph": '??=include "/etc/passwd"\n',
    "trigraph splice": '// why??/\n#include "/etc/passwd"\n',
    "macro": '#define FILE "/etc/passwd"\n#include FILE\n',
    "carriage return": '// a \r#include "/etc/passwd"\n',
    "hidden in a raw string": 'const char* a = R"(/*)";\n#include "/etc/passwd"\n// */\n',
    "hidden by a lone quote": '#define A \' /*\n#include "/etc/passwd"\n#define B */\n',
    "hidden by a lone quote in code": 'int a = \' /* ;\n#include "/etc/passwd"\n// */\n',
    "after a string with a comment": 'const char* a = "/*";\n#include "/etc/passwd"\n// */\n',
    "has_include": '#if __has_include("/etc/passwd")\n#endif\n',
    "has_include in a macro": '#define ASK __has_include("/etc/passwd")\n',
    "embed": '#embed "/etc/passwd"\n',
    "import": '#import "/etc/passwd"\n',
    "line": '#line 1 "/etc/passwd"\nint a = ;\n',
    "line marker": '# 1 "/etc/passwd"\nint a = ;\n',
    "include_next": "#include_next <stdio.h>\n",
    "parent folder": '#include "../../../etc/passwd"\n',
    "a lab header's name elsewhere": '#include "/tmp/paged_attention.cuh"\n',
    "pasted": '#define P(a, b) a##b\n#if P(__has_, include)("/etc/passwd")\n#endif\n',
    "pasted in three": '#define P(a, b, c) a##b %:%: c\n#if P(_, _has_incl, ude)("/etc/passwd")\n#endif\n',
    "pasted behind a splice": '#define P(a) __has_inc#\\\n#a\n#if P(lude)("/etc/passwd")\n#endif\n',
    "last line without an end": '#include "/etc/passwd"',
}

ALLOWED = {
    "lab header": '#include "paged_attention.cuh"\n',
    "with a comment": '#include "paged_attention.cuh"  // Kopfdatei, заголовок /* x\nint a;\n',
    "cuda header": "# include <cuda_fp16.h> /* half */\n",
    "in a comment": '/*\n#include "/etc/passwd"\n*/\n// #include <cmath>\nint a;\n',
    "in a string": 'const char* a = "\\n#include \\"/etc/passwd\\"\\n";\n',
    "digit separators": "constexpr int a = 1'000'000; // it's\n",
    "apostrophe in an error": "#if 0\n#error don't\n#endif\n",
    "a macro over lines": "#define ADD(a, b) \\\n  ((a) + \\\n   (b))\n#pragma unroll 4\n",
    "null directive": "#\nint a;\n",
    "pasting": "#define CONCAT(a, b) a##b\nint CONCAT(has, _key);\n",
    "writing from right to left": "// \u05e9\u05dc\u05d5\u05dd \u200f(\u05de\u05e4\u05ea\u05d7)\nint a;\f\n",
    "stringised": "#define NAME(x) #x\n",
}


@pytest.mark.parametrize("text", REACHES_A_FILE.values(), ids=REACHES_A_FILE)
def test_no_way_to_a_file(text):
    assert refusals("int first;\n" + text)


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_what_kernels_need_is_allowed(text):
    assert refusals(text) == []


UNREADABLE = {
    "NUL": "int a;\0/* the rest is not compiled\n",
    "escape": "// \x1b[2J\n",
    "right-to-left override": "/* \u202e} */ return;\n",
    "isolate": "/* \u2066 */\n",
    "half of a character": "// \ud800\n",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_person_reads_what_the_compiler_reads(text):
    (refusal,) = refusals("int first;\n" + text)

    assert refusal.line == 2
    assert "U+" in refusal.message


@pytest.mark.parametrize("name", ["__TIME__", "__DATE__", "__TIMESTAMP__"])
def test_marks_do_not_depend_on_the_time_of_day(name):
    (refusal,) = refusals(f"int a = {name}[4];\n")

    assert "when it is graded" in refusal.message
    assert refusals(f"#define P(a, b) a##b\nint a = P({name[:4]}, {name[4:]})[4];\n")


def test_the_line_is_the_authors_own():
    (refusal,) = refusals("int a;\n#define B \\\n  2\n/* c\n d */\n#include <stdio.h>\n")

    assert refusal.line == 6
    assert "'stdio.h'" in refusal.message
    assert "<cuda_fp16.h>" in refusal.message


def test_a_file_that_is_too_large_is_refused_unread():
    (refusal,) = refusals("//" + "x" * MAX_SOURCE_BYTES)

    assert "256 KiB" in refusal.message


def test_what_is_judged_is_what_is_compiled():
    assert normalised("a\r\nb\rc\\ \t\nd") == "a\nb\nc\\\nd"


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda s: s.id)
def test_a_stages_own_headers_may_be_included_and_no_later_stages(stage):
    assert refusals(stage.source().text, headers_of(stage)) == []
    if stage.id[:2] < "08":
        assert refusals('#include "tile_mma.cuh"', headers_of(stage))
