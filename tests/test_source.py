"""Headers are inlined fresh, and every message stays on the author's own file and line."""

import pytest

from labs_common import source as source_module
from labs_common.compiler import CompileError, compile_ptx, compile_resources
from labs_common.problem import PRESETS
from labs_common.simt.parse import parse
from labs_common.source import Source
from labs_common.stages import STAGES, find_stage


def kernel(body, includes='#include "paged_attention.cuh"\n'):
    return Source("mine.cu", f'{includes}extern "C" __global__ void k(float* out) {{ {body} }}\n')


def test_an_edited_header_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "KERNELS", tmp_path)
    header = tmp_path / "constant.cuh"
    mine = kernel("out[0] = CONSTANT;", '#include "constant.cuh"\n')

    header.write_text("#define CONSTANT 2.0f\n")
    before = compile_ptx(mine)
    header.write_text("#define CONSTANT 3.0f\n")
    after = compile_ptx(mine)

    assert "1073741824" in before and "1073741824" not in after  # 2.0f as bits
    assert "1077936128" in after  # 3.0f


def test_a_header_is_inlined_once_and_lines_go_on_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "KERNELS", tmp_path)
    (tmp_path / "a.cuh").write_text("struct A { int x; };\n")
    (tmp_path / "b.cuh").write_text('#include "a.cuh"\nstruct B { A a; };\n')
    text = '#include "a.cuh"\n#include "b.cuh"\nextern "C" __global__ void k(int* out) { out[0] = oops; }\n'

    with pytest.raises(CompileError) as error:
        compile_ptx(Source("mine.cu", text))

    assert error.value.diagnostics == [("mine.cu", 3, 'identifier "oops" is undefined')]
    assert "\0" not in str(error.value)


def test_a_header_that_is_not_there_is_named_with_its_line():
    with pytest.raises(ValueError, match=r'mine\.cu, line 2: no header "nosuch\.cuh".*paged_attention\.cuh'):
        compile_ptx(kernel("", '\n#include "nosuch.cuh"\n'))
    with pytest.raises(ValueError, match="no header"):
        compile_ptx(kernel("", '#include "../labs_common/read_ceiling.cu"\n'))


def test_an_error_in_a_header_names_the_header(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "KERNELS", tmp_path)
    (tmp_path / "bad.cuh").write_text("\n\nint f() { return nothing; }\n")

    with pytest.raises(CompileError) as error:
        compile_ptx(kernel("", '#include "bad.cuh"\n'))

    assert error.value.diagnostics[0][:2] == ("bad.cuh", 3)


def test_infinity_is_there_and_missing_headers_give_a_hint():
    assert "7F800000" in compile_ptx(kernel("out[0] = out[1] - INFINITY;")).upper().replace(
        "FF800000", "7F800000"
    )
    with pytest.raises(CompileError, match="hint: NVRTC has no C\\+\\+ standard headers"):
        compile_ptx(kernel("", "#include <cmath>\n"))
    with pytest.raises(CompileError, match=r"hint: NVRTC has no mma\.h"):
        compile_ptx(kernel("", "#include <mma.h>\n"))


def test_half_precision_headers_compile():
    assert compile_ptx(kernel("out[0] = __half2float(__float2half(out[1]));", "#include <cuda_fp16.h>\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_comments_in_any_language_and_a_byte_order_mark(tmp_path, encoding):
    path = tmp_path / "моё ядро.cu"
    path.write_text('// → ≤ γ 中\nextern "C" __global__ void k() {}\n', encoding=encoding)

    source = Source.read(path)

    assert source.name == "моё ядро.cu"
    assert ".entry k" in compile_ptx(source)


def test_a_file_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "latin.cu"
    path.write_bytes("// größe\n".encode("cp1252"))

    with pytest.raises(ValueError, match=r"latin\.cu is not UTF-8"):
        Source.read(path)


def test_resources_of_each_kernel_in_a_file():
    shared = kernel("__shared__ float s[96]; s[threadIdx.x] = out[0]; __syncthreads(); out[1] = s[0];")

    resources = compile_resources(shared)["k"]

    assert resources.shared_bytes == 384
    assert resources.barriers == 1
    assert resources.spill_store_bytes == 0
    assert 1 <= resources.registers <= 255


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_every_stage_compiles_for_every_architecture(arch):
    for stage in STAGES:
        assert stage.entry in compile_resources(stage.source(), arch=arch)


def test_messages_name_files_as_their_reader_knows_them(tmp_path):
    own = source_module.KERNELS / "mine" / "03_gqa_reuse.cu"
    assert source_module.shown_path(own) == "kernels/mine/03_gqa_reuse.cu"
    assert STAGES[3].source().shown == "kernels/03_gqa_reuse.cu"
    assert source_module.shown_path(tmp_path / "attempt.cu") == "attempt.cu"
    source = Source("03_gqa_reuse.cu", "", "kernels/mine/03_gqa_reuse.cu")
    assert source == Source("03_gqa_reuse.cu", "")

    told = source.readable(
        "at /lab/kernels/03_gqa_reuse.cu:51 and /lab/kernels/page_ring.cuh:7: /lab/kernels/x.cu"
    )

    assert told == "at kernels/mine/03_gqa_reuse.cu:51 and kernels/roof/page_ring.cuh:7: x.cu"
    assert source.neutral_path in source.expanded() and "mine" not in source.expanded()


def test_neutral_paths_only():
    """What is recorded in a profile names no folder of the machine it was made on."""
    assert str(source_module.KERNELS.parent) not in STAGES[3].source().expanded()


@pytest.mark.parametrize("number", ["08", "09"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lines_behind_a_header_that_is_not_compiled_are_the_files_own(number, dtype):
    """A stage has one header for tensor cores and one without: the branch left out has lines, too."""
    stage, problem = find_stage(number), PRESETS["tiny"].replace(dtype=dtype)
    lines = stage.source().text.splitlines()

    module = parse(compile_ptx(stage.source(), stage.plan(problem).defines, "sm_90"))

    used = {
        frame.line
        for function in module.functions.values()
        for instruction in function.body
        for frame in instruction.location or ()
        if frame.file.endswith(stage.path.name)
    }
    assert used and max(used) <= len(lines)
    merges = next(n for n, line in enumerate(lines, 1) if "merge_row<MERGE_ROWS>(" in line)
    assert merges in used
