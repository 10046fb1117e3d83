"""Kernels that may begin before the launch before them has ended: what the driver is told, who must wait."""

import ctypes
import types

import numpy as np
import pytest

from labs_common import dependent_launch
from labs_common.compiler import compile_ptx
from labs_common.dependent_launch import DependentKernel
from labs_common.engines import CheckedModule, SimulatorEngine
from labs_common.inputs import make_inputs
from labs_common.plans import Device
from labs_common.problem import Problem
from labs_common.simt.errors import LaunchError
from labs_common.simt.parse import parse
from labs_common.source import Source
from labs_common.stages import find_stage

STAGE = find_stage("09")
PROBLEM = Problem(6, 2, 64, 16, (300, 17, 0, 1), "float16")
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


class DriverError(Exception):
    pass


@pytest.fixture
def driver(monkeypatch):
    """A driver that writes down what it is told and answers with ``status``."""

    def launch(config, function, parameters, extra):
        one = ctypes.cast(config, ctypes.POINTER(dependent_launch._Config)).contents
        attribute = one.attributes[0]
        told.calls.append(
            {
                "grid": tuple(one.grid),
                "block": tuple(one.block),
                "shared": one.shared_bytes,
                "stream": one.stream,
                "attributes": [(attribute.id, attribute.value[0])][: one.attribute_count],
                "function": function.value,
                "parameters": [ctypes.string_at(parameters[n], size) for n, size in enumerate(told.sizes)],
                "extra": extra,
            }
        )
        return told.status

    told = types.SimpleNamespace(calls=[], sizes=[], status=0, cuLaunchKernelEx=launch)
    monkeypatch.setattr(dependent_launch, "_driver", lambda: told)
    return told


def kernel(**attributes):
    cuda = types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(ptr=0xABC),
        driver=types.SimpleNamespace(CUDADriverError=DriverError),
    )
    raw = types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=0x1234), num_regs=40, **attributes)
    return DependentKernel(raw, types.SimpleNamespace(cuda=cuda))


def test_the_driver_gets_launch_arguments_and_attribute(driver):
    """Attribute 6 with value 1 is programmatic stream serialization, by cuda.h; addresses are 8 bytes."""
    struct = np.array((7, 2.5), np.dtype([("a", np.int32), ("b", np.float32)]))[()]
    array = types.SimpleNamespace(data=types.SimpleNamespace(ptr=0xDEADBEEF00))
    driver.sizes = [8, 8, 4]

    kernel()((3, 4, 1), (16, 8, 1), (struct, array, np.float32(1.5)), shared_mem=96)

    assert driver.calls == [
        {
            "grid": (3, 4, 1),
            "block": (16, 8, 1),
            "shared": 96,
            "stream": 0xABC,
            "attributes": [(6, 1)],
            "function": 0x1234,
            "parameters": [
                struct.tobytes(),
                (0xDEADBEEF00).to_bytes(8, "little"),
                np.float32(1.5).tobytes(),
            ],
            "extra": None,
        }
    ]


def test_structures_are_as_cuda_h_has_them():
    """CUlaunchAttribute is 4 + 4 + 64 bytes; CUlaunchConfig 7 ints, padding, two pointers and a count."""
    assert ctypes.sizeof(dependent_launch._Attribute) == 72
    assert dependent_launch._Attribute.value.offset == 8
    assert [getattr(dependent_launch._Config, name).offset for name in ("shared_bytes", "stream")] == [24, 32]
    assert [getattr(dependent_launch._Config, name).offset for name in ("attributes", "attribute_count")] == [
        40,
        48,
    ]
    assert ctypes.sizeof(dependent_launch._Config) == 56


def test_what_the_driver_refuses_is_an_error(driver):
    driver.status = 700
    with pytest.raises(DriverError, match="700"):
        kernel()((1, 1, 1), (1, 1, 1), ())


def test_all_else_is_the_kernels():
    one = kernel(max_dynamic_shared_size_bytes=0)
    one.max_dynamic_shared_size_bytes = 100_000

    assert one.num_regs == 40
    assert object.__getattribute__(one, "_kernel").max_dynamic_shared_size_bytes == 100_000


def cut_plan(device=None):
    return STAGE.plan(PROBLEM, device or Device(), whole=False, blocks=3)


def test_the_merge_begins_early_where_the_gpu_can():
    older = Device(name="older", compute_capability=(8, 0))

    assert [launch.early for launch in cut_plan().launches] == [False, True]
    assert [launch.early for launch in cut_plan(older).launches] == [False, False]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_only_code_for_gpus_that_can_waits(capability):
    arch = f"sm_{capability[0]}{capability[1]}"
    ptx = compile_ptx(STAGE.source(), cut_plan().defines, arch)

    assert (
        ("griddepcontrol.wait" in ptx)
        == ("griddepcontrol.launch_dependents" in ptx)
        == (capability >= (9, 0))
    )


def test_a_merge_that_does_not_wait_is_refused_in_the_simulator():
    source = Source(STAGE.path.name, STAGE.source().text.replace(WAIT, ""))

    with pytest.raises(ValueError, match=r"memory_roof_merge.*no griddepcontrol\.wait"):
        SimulatorEngine().run(STAGE, PROBLEM, make_inputs(PROBLEM), source, cut_plan())


def test_a_merge_that_does_not_wait_is_refused_before_it_reaches_a_gpu(driver):
    defines = cut_plan().defines
    entry = f"{STAGE.entry}_merge"
    raw = types.SimpleNamespace(get_function=lambda name: types.SimpleNamespace(kernel=None))
    texts = STAGE.source().text, STAGE.source().text.replace(WAIT, "")
    waits, hurries = (
        CheckedModule(raw, parse(compile_ptx(Source(STAGE.path.name, text), defines)).functions).get_function(
            entry
        )
        for text in texts
    )

    with pytest.raises(ValueError, match=rf"{entry}.*no griddepcontrol\.wait"):
        hurries.early(None)
    with pytest.raises(LaunchError, match="takes 5 arguments"):
        waits.early(None)((1, 1, 1), (1, 1, 1), ())
    assert driver.calls == []
