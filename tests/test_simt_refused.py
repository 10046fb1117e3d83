"""What is not simulated is refused by name and line before anything runs; nothing is skipped silently.

The instructions are written as in the PTX ISA's examples. Each stands where no thread comes.
"""

from __future__ import annotations

import numpy as np
import pytest
from simt_helpers import HEADER, kernel_text, run

from labs_common.simt.errors import PtxError, UnsupportedError
from labs_common.simt.parse import parse

FILE = '.file 1 "/lab/kernels/student.cu"\n'
TILE = ".shared .align 16 .b8 tile[128];\n"
both = pytest.mark.parametrize("engine", ["numpy", "llvm"])

INSTRUCTIONS = [
    "wgmma.fence.sync.aligned;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %d1, %d2, 1, 1, 1, 0, 0;",
    "wgmma.wait_group.sync.aligned 0;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [tile], 32;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r2], %d1, %d2, %r3, %p1;",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r2}, [%r3];",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%d0], 16, [tile+16];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%d0, "
    "{%r2, %r3}], [tile+16];",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%r2}], [tile];",
    "cp.async.bulk.wait_group 0;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [tile], 16;",
    "cp.async.mbarrier.arrive.shared.b64 [tile];",
    "mbarrier.init.shared::cta.b64 [tile], 1;",
    "mbarrier.arrive.shared.b64 %d4, [tile];",
    "mbarrier.arrive.expect_tx.shared.b64 %d4, [tile], 16;",
    "mbarrier.try_wait.parity.shared.b64 %p2, [tile], 0;",
    "barrier.cluster.arrive.aligned;",
    "barrier.cluster.wait;",
    "mapa.shared::cluster.u32 %r2, %r3, 1;",
    "getctarank.shared::cluster.u32 %r2, %r3;",
    "fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;",
    "fence.proxy.async.shared::cta;",
    "fence.mbarrier_init.release.cluster;",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;",
    "prefetch.tensormap [%d0];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], %r3, [%r4];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r2], %r3, [%r4];",
    "ld.shared::cluster.u32 %r2, [%r3];",
    "st.shared::cluster.u32 [%r3], %r2;",
    "atom.shared::cluster.add.u32 %r2, [%r3], 1;",
    "multimem.ld_reduce.global.add.f32 %f1, [%d0];",
    "multimem.st.global.f32 [%d0], %f1;",
    "setmaxnreg.dec.sync.aligned.u32 40;",
    "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d0, {%f5, %f6}];",
    "suld.b.1d.b32.trap %r2, [%d0, {%r3}];",
    "txq.width.b32 %r2, [%d0];",
    "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, "
    "{%r2, %r3, %r4, %r5}, {%r6, %r7, %r8, %r9}, {%f5, %f6, %f7, %f8}, %r10, 0x0;",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r2, %r3}, {%r4}, {%r5}, {%r6, %r7};",
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
    "{%f1, %f2, %f3, %f4}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f5, %f6, %f7, %f8}, %r8, {0, 0}, %r9, {0, 0};",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r2}, {%r3}, {%f2};",
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r2}, [tile];",
    "shfl.up.b32 %r2|%p1, %r3, 1, 0;",
    "vote.ballot.b32 %r2, %p1;",
    "vote.all.pred %p2, %p1;",
    "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2;",
    "cvt.rs.f16x2.f32 %r2, %f1, %f2, %r3;",
    "add.f32x2 %d1, %d2, %d3;",
    "fma.rn.f32x2 %d1, %d2, %d3, %d4;",
    "add.u16x2 %r2, %r3, %r4;",
    "stackrestore.u64 %d1;",
    "alloca.u64 %d1, 16;",
    "isspacep.shared::cluster %p1, %d1;",
    "cvta.shared::cluster.u64 %d1, %d2;",
    "atom.global.v4.f32.add {%f1, %f2, %f3, %f4}, [%d0], {%f5, %f6, %f7, %f8};",
    "atom.global.add.v2.f32 {%f1, %f2}, [%d0], {%f5, %f6};",
    "red.global.v2.f32.add [%d0], {%f1, %f2};",
    "atom.global.cas.b128 %d1, [%d0], %d2, %d3;",
    "ld.global.b128 %d1, [%d0];",
    "ld.global.v8.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, [%d0];",
    "redux.sync.min.f32 %f1, %f2, -1;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [tile], [tile+16];",
    "vadd.u32.u32.u32 %r2, %r3, %r4;",
    "video4.u32 %r2;",
    "vset4.u32.u32.eq %r2, %r3, %r4, %r5;",
    "fence.sync_restrict::shared::cta.release.cluster;",
    "membar.proxy.alias;",
    "nanosleep.u64 %d1;",
    "exit.uni;",
    "trap.uni;",
    "tanh.approx.f64 %g1, %g2;",
    "lg2.approx.f64 %g1, %g2;",
    "ex2.approx.ftz.bf16x2 %r2, %r3;",
    "rcp.approx.ftz.f64 %g1, %g2;",
    "testp.normal.f16 %p1, %h1;",
    "mov.b128 %d1, {%d2, %d3};",
    "mul.wide.u64 %d1, %d2, %d3;",
    "bar.red.add.u32 %r2, 0, %p1;",
    "istypep.texref %p1, %d1;",
    "cp.async.ca.shared.global [tile], [%d0], 12;",
    "cp.async.cg.shared.global [tile], [%d0], 8;",
    "cp.async.ca.shared::cluster.global [tile], [%d0], 8;",
    "match.any.sync.b16 %r2, %h1, -1;",
    "popc.b16 %r2, %h1;",
    "fns.b32 %r2, %r3, 0, 1;",
    "dp4a.u32 %r2, %r3, %r4, %r5;",
    "lop3.or.b32 %r2|%p1, %r3, %r4, %r5, 0x80, %p2;",
    "shf.l.clamp.b64 %d1, %d2, %d3, %r2;",
    "min.xorsign.abs.f32 %f1, %f2, %f3;",
    "max.u16x2 %r2, %r3, %r4;",
    "min.relu.s32 %r2, %r3, %r4;",
    "activemask.b64 %d1;",
    "bar.warp.sync;",
    "bfe.b32 %r2, %r3, 1, 2;",
    "ldu.shared.u32 %r2, [tile];",
]
MISSPELT = [
    "fence.nonsense;",
    "membar.nonsense;",
    "prefetch.global.nonsense [%d0];",
    "ld.global.nonsense.u32 %r2, [%d0];",
    "bra.nonsense END;",
]
SPECIALS = ["%is_explicit_cluster", "%envreg0", "%pm0", "%aggr_smem_size", "%current_graph_exec"]


def refusal(instruction: str, engine: str) -> UnsupportedError:
    """The error of a kernel that has the instruction in line 17, in a branch that no thread takes."""
    body = (
        "st.global.u32 [%d0], 7;\nsetp.gt.u32 %p1, %r0, 99;\n@!%p1 bra END;\n"
        f".loc 1 17 3\n{instruction}\nEND:\nret;"
    )
    array = np.zeros(1, np.uint32)
    with pytest.raises(UnsupportedError) as caught:
        run(kernel_text(body, 1, TILE) + FILE, array, engine=engine)
    assert array[0] == 0
    assert caught.value.source == ("/lab/kernels/student.cu", 17)
    return caught.value


@both
@pytest.mark.parametrize("instruction", [*INSTRUCTIONS, *MISSPELT], ids=lambda i: i.split()[0].rstrip(";"))
def test_instruction_is_refused_by_its_whole_name(instruction, engine):
    error = refusal(instruction, engine)

    assert instruction.rstrip(";").split()[0] in str(error)


@both
@pytest.mark.parametrize("register", SPECIALS)
def test_special_register_is_refused_by_its_name(register, engine):
    assert register in str(refusal(f"mov.u32 %r2, {register};", engine))


@pytest.mark.parametrize(
    "family", ["wgmma", "tcgen05", "cp.async.bulk", "cluster", "mbarrier", "tex", "multimem"]
)
def test_refusal_says_what_the_instruction_belongs_to(family):
    words = {
        "wgmma": "products of warp groups",
        "tcgen05": "Blackwell's tensor memory",
        "cp.async.bulk": "tensor memory copies",
        "cluster": "thread block clusters",
        "mbarrier": "barrier objects in shared memory",
        "tex": "list of coordinates",
        "multimem": "multicast memory",
    }[family]
    members = [i for i in INSTRUCTIONS if family in i.split()[0]]

    assert any(words in str(refusal(i, "numpy")) for i in members)


@pytest.mark.parametrize("directive", [".reqnctapercluster 2, 1, 1", ".explicitcluster", ".maxclusterrank 4"])
def test_kernels_for_clusters_are_refused_by_line(directive):
    with pytest.raises(UnsupportedError, match="clusters are not simulated") as caught:
        parse(f"{HEADER}.visible .entry k()\n{directive}\n{{\nret;\n}}\n")

    assert caught.value.line == 5


@pytest.mark.parametrize(
    "declaration", [".tex .u32 image;", ".global .texref image;", ".global .surfref image;"]
)
def test_textures_are_refused_by_line(declaration):
    with pytest.raises(PtxError) as caught:
        parse(f"{HEADER}{declaration}\n.visible .entry k()\n{{\nret;\n}}\n")

    assert caught.value.line == 4


@both
def test_a_block_is_a_cluster_of_its_own(engine):
    """PTX ISA, %clusterid: a grid that was not launched with clusters has clusters of one block each."""
    body = (
        "mov.u32 %r2, %clusterid.x;\nmov.u32 %r3, %nclusterid.x;\nmov.u32 %r4, %cluster_nctaid.x;\n"
        "mov.u32 %r5, %cluster_ctarank;\nmad.lo.u32 %r6, %r3, 10, %r2;\nmad.lo.u32 %r6, %r6, 10, %r4;\n"
        "mad.lo.u32 %r6, %r6, 10, %r5;\nmul.wide.u32 %d5, %r1, 4;\nadd.u64 %d5, %d0, %d5;\n"
        "st.global.u32 [%d5], %r6;\nret;"
    )

    (out,), _ = run(kernel_text(body), np.zeros(3, np.uint32), block=1, grid=3, engine=engine)

    assert out.tolist() == [3010, 3110, 3210]
