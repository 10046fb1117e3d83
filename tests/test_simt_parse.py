"""PTX text to Module: names, scopes, literals, source positions, layout; and errors with their line."""

from __future__ import annotations

import struct

import pytest
from simt_helpers import HEADER

from labs_common.simt.errors import PtxError, UnsupportedError
from labs_common.simt.parse import (
    Address,
    Frame,
    Immediate,
    Label,
    Negated,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    layout,
    parse,
)
from labs_common.simt.program import build, reads, writes


def body_of(text: str, declarations: str = ".reg .b32 %r<9>;\n.reg .pred %p<9>;\n.reg .b64 %d<9>;\n"):
    module = parse(f"{HEADER}.visible .entry k(.param .u64 p0)\n{{\n{declarations}{text}\n}}\n")
    return module.functions["k"].body


def one(text: str):
    (instruction,) = body_of(text)
    return instruction


def test_instruction_is_split_into_opcode_modifiers_and_types():
    load = one("ld.global.nc.L2::128B.v2.u32 {%r1, _}, [%d1+-8];")

    assert (load.opcode, load.types) == ("ld", ("u32",))
    assert load.modifiers == ("global", "nc", "L2::128B", "v2", "u32")
    target, address = load.operands
    assert isinstance(target, Vector) and isinstance(target.elements[1], Sink)
    assert (address.base.name, address.offset) == ("%d1", -8)


def test_guards_pairs_negation_and_specials():
    first, second = body_of("@!%p1 setp.lt.and.s32 %p2|%p3, %r1, -5, !%p4;\nmov.u32 %r2, %tid.x;")

    assert (first.guard[0].name, first.guard[1]) == ("%p1", True)
    pair, source, number, third = first.operands
    assert isinstance(pair, Pair) and (pair.first.name, pair.second.name) == ("%p2", "%p3")
    assert isinstance(source, Register) and number == Immediate(-5)
    assert isinstance(third, Negated) and third.register.name == "%p4"
    assert second.operands[1] == Special("tid.x")
    assert [r.name for r in writes(first)] == ["%p2", "%p3"]
    assert {r.name for r in reads(first)} == {"%r1", "%p4", "%p1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Immediate(0)),
        ("-17", Immediate(-17)),
        ("0x1F", Immediate(31)),
        ("0XFFU", Immediate(255)),
        ("017", Immediate(15)),
        ("0b101", Immediate(5)),
        ("42U", Immediate(42)),
        ("0f3F800000", Immediate(0x3F800000, "f32")),
        ("0F3F800000", Immediate(0x3F800000, "f32")),
        ("-0f3F800000", Immediate(0xBF800000, "f32")),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
        ("1.5", Immediate(struct.unpack("<Q", struct.pack("<d", 1.5))[0], "f64")),
        ("2e3", Immediate(struct.unpack("<Q", struct.pack("<d", 2000.0))[0], "f64")),
    ],
)
def test_literals(text, expected):
    assert one(f"mov.b32 %r1, {text};").operands[1] == expected


def test_registers_of_overlapping_ranges_are_told_apart():
    body = body_of("mov.b32 %r12, %r1;\nmov.b16 %rs12, %rs1;", ".reg .b32 %r<20>;\n.reg .b16 %rs<20>;\n")

    types = {o.name: o.type for i in body for o in i.operands}
    assert types == {"%r12": "b32", "%r1": "b32", "%rs12": "b16", "%rs1": "b16"}
    assert len({o.index for i in body for o in i.operands}) == 4


def test_nested_scopes_hide_and_give_back_names():
    body = body_of(
        "{ .reg .b32 x; mov.b32 x, 1;\n{.reg.b64 x;\n mov.b64 x, 2; }\nmov.b32 x, 3; }\n"
        "{ .reg .b32 x; mov.b32 x, 4; }"
    )

    registers = [i.operands[0] for i in body]
    assert [r.type for r in registers] == ["b32", "b64", "b32", "b32"]
    assert registers[0].index == registers[2].index
    assert len({r.index for r in registers}) == 3


def test_labels_belong_to_their_scope_and_may_come_later():
    body = body_of("bra OUT;\n{ LOOP: add.u32 %r1, %r1, 1; bra LOOP; }\n{ LOOP: bra LOOP; }\nOUT: ret;")

    targets = [i.operands[0] for i in body if i.opcode == "bra"]
    assert [t.index for t in targets] == [4, 1, 3]
    assert all(isinstance(t, Label) for t in targets)


def test_comments_and_odd_spacing():
    body = body_of("add.u32 /* a\nb */ %r1 , %r2,// c\n %r3 ;;\n\tret ;")

    assert [i.name for i in body] == ["add.u32", "ret"]
    assert body[1].line == body[0].line + 3


def test_source_positions_keep_the_whole_inlined_chain():
    text = (
        ".loc 1 10 3\n.loc 2 20 5, function_name NAME, inlined_at 1 10 3\n"
        ".loc 2 30 7, function_name NAME+4, inlined_at 2 20 5\nadd.u32 %r1, %r1, 1;\n.loc 1 11 1\nret;"
    )
    module = parse(
        f"{HEADER}.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{text}\n}}\n"
        '.file 1 "/lab/a.cu"\n.file 2 "/lab/b.cuh", 123, 456\n'
        ".section .debug_str\n{\nNAME:\n.b8 102,111,111,0,98,97,114,0\n}\n"
    )

    first, second = (i.location for i in module.functions["k"].body)

    assert first == (
        Frame("/lab/b.cuh", 30, 7, "bar"),
        Frame("/lab/b.cuh", 20, 5, "foo"),
        Frame("/lab/a.cu", 10, 3, ""),
    )
    assert second == (Frame("/lab/a.cu", 11, 1, ""),)


def test_variables_with_their_bytes():
    module = parse(
        HEADER + ".const .align 8 .b8 bytes[5] = {1, 0x2, 255};\n.global .u32 word = 7;\n"
        ".global .f32 list[3] = {0f3F800000, 2.5};\n"
        ".global .align 8 .u64 links[2] = {word, generic(bytes)+3};\n"
        ".extern .shared .align 16 .b8 dynamic[];\n.shared .align 4 .b8 fixed[2][12];\n"
        ".global .u16 sized[] = {1, 2, 3};\n"
    )
    v = module.variables

    assert (v["bytes"].data, v["bytes"].align, v["bytes"].size) == (b"\x01\x02\xff\0\0", 8, 5)
    assert v["word"].data == (7).to_bytes(4, "little")
    assert v["list"].data == struct.pack("<3f", 1.0, 2.5, 0.0)
    assert v["links"].relocations == ((0, "word", 0), (8, "bytes", 3))
    assert (v["dynamic"].extern, v["dynamic"].size, v["dynamic"].align) == (True, 0, 16)
    assert v["fixed"].size == 24
    assert v["sized"].size == 6


def test_parameters_are_laid_out_like_a_c_struct():
    module = parse(
        HEADER + ".visible .entry k(.param .u8 a, .param .align 4 .b8 b[12], .param .f32 c, "
        ".param .u64 .ptr .global .align 4 d,"
        " .param .u16 e)\n.maxntid 128, 1, 1\n.minnctapersm 2\n{\nret;\n}\n"
    )
    function = module.functions["k"]

    offsets, size = layout(function.params)

    assert offsets == {"a": 0, "b": 4, "c": 16, "d": 24, "e": 32}
    assert size == 34
    assert function.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}


def test_calls_and_declared_functions():
    module = parse(
        HEADER
        + ".extern .func (.param .b32 r) outside(.param .b64 a);\n.func helper(.param .b32 a)\n{\nret;\n}\n"
        ".visible .entry k()\n{\n.reg .b32 %r<2>;\n{\n.reg .b32 temp_param_reg;\n.param .b32 x;\n"
        "st.param.b32 [x+0], %r1;\n"
        "call.uni \nhelper, \n(\nx\n);\n}\n{\n.param .b32 x;\n.param .align 8 .b8 y[16];\n"
        "st.param.b32 [x+0], %r1;\n}\nret;\n}\n"
    )
    kernel = module.functions["k"]

    assert module.entries == ["k"]
    assert module.functions["outside"].declared_only
    assert len(kernel.variables) == 3  # both x are variables of their own
    assert isinstance(kernel.body[1].operands[0], Symbol)


def test_recursion_and_function_pointers_are_refused():
    recursive = (
        HEADER
        + ".func again()\n{\ncall.uni again;\nret;\n}\n.visible .entry k()\n{\ncall.uni again;\nret;\n}\n"
    )

    with pytest.raises(UnsupportedError, match="recursive"):
        build(parse(recursive), "k")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("add.u32 %r1, %r2", "expected", 10),
        ("add.u32 %r1, %r99;", "%r99", 9),
        ("add.u32 %r1, nothing;", "nothing", 9),
        ("bra NOWHERE;", "NOWHERE", 9),
        ("@%r1 bra X;\nX:", "no predicate", 9),
        ("\n\nADD %r1;", "ADD", 11),
        ("X: X: ret;", "twice", 9),
        ("ld.global.u32 %r1, [%d1*4];", r"expected '\]'", 9),
        ("mov.b32 %r1, 0x1FFFFFFFFFFFFFFFFF;", "64 bits", 9),
        (".surprise 4;", "surprise", 9),
        ("ret; }\n}", "directive", 10),
        ("mov.b32 %r1, `;", "unexpected character", 9),
    ],
)
def test_errors_name_the_line(text, message, line):
    with pytest.raises(PtxError, match=message) as caught:
        body_of(text)

    assert caught.value.line == line


def test_errors_name_the_source_line_where_it_is_known():
    text = f'{HEADER}.visible .entry k()\n{{\n.loc 1 42 3\nadd.u32 %r1, %r1, 1;\n}}\n.file 1 "/lab/a.cu"\n'

    with pytest.raises(PtxError) as caught:
        parse(text)

    assert caught.value.source == ("/lab/a.cu", 42)


def test_liveness_and_constants_of_a_small_loop():
    module = parse(
        f"{HEADER}.visible .entry k(.param .u64 p, .param .u32 n)\n{{\n.reg .b32 %r<9>;\n"
        f".reg .pred %p<2>;\n.reg .b64 %d<4>;\n"
        "ld.param.u64 %d1, [p];\nld.param.u32 %r1, [n];\nshl.b32 %r2, %r1, 2;\nmov.u32 %r3, 0;\n"
        "mov.u32 %r4, 5;\n"
        "LOOP:\nadd.u32 %r3, %r3, %r4;\nsetp.lt.u32 %p1, %r3, %r2;\n@%p1 bra LOOP;\n"
        "st.global.u32 [%d1], %r3;\nret;\n}\n"
    )

    program = build(module, "k")

    by_name = {r.name: r.index for r in program.registers}
    loop = program.executed_in[5]
    live = {name for name, index in by_name.items() if program.live_in[loop] >> index & 1}
    assert live == {"%r2", "%r3", "%r4", "%d1"}
    constants = {program.instructions[i].name for i in program.launch_constants}
    assert {"ld.param.u64", "ld.param.u32", "shl.b32"} <= constants
    assert program.aliases[by_name["%r4"]] == Immediate(5)
    assert by_name["%r3"] not in program.aliases
    assert program.access[8].space == "global" and isinstance(program.access[8].address, Address)
