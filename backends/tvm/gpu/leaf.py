"""A leaf as C++: launches over numbered values, with the machine code beside (runtime/cpp/cuda/kernel_leaf.h)."""

from __future__ import annotations

from collections.abc import Sequence

from specc.backends.toolchain import c_dtype
from specc.backends.tvm.gpu.launches import ROWS, DeviceCode, Launch, strange
from specc.backends.tvm.kernels import Kernels, Step
from specc.backends.tvm.table import drops, rows_of
from specc.ir import TensorType

_MOST_VALUES, _MOST_WORDS = 512, 32
"""What `LeafRun` has room for."""


def leaf_source(leaf: Kernels, code: DeviceCode, cubin: bytes, number: int) -> str:
    """The functions leaf{number}_create, _run and _error, as the table of leaves wants them.

    Raises BackendError (SPECC-E0442) for a leaf that is too large to be played.
    """
    words = max((len(launch.arguments) for launch in code.launches.values()), default=0)
    if len(leaf.values) > _MOST_VALUES or words > _MOST_WORDS:
        raise strange(leaf.name, f"{len(leaf.values)} values, and {words} arguments of a kernel")
    found = rows_of(leaf)
    rows = "0" if found is None else f"in[{found[0]}]->sizes[{found[1]}]"
    lines: list[str] = []
    for place, (step, dropped) in enumerate(zip(leaf.steps, drops(leaf), strict=True)):
        lines += _step(leaf.values, step, code, place)
        lines += [f"run.drop({value});" for value in dropped]
    body = "\n  ".join(lines)
    return f"""#include "kernel_leaf.h"
alignas(16) static const unsigned char code[] = {{{",".join(map(str, cubin))}}};
namespace {{
struct Leaf {{
  CUfunction kernels[{max(1, len(leaf.steps))}];
}};
void play(Leaf& leaf, specc::LeafRun& run, int64_t {ROWS}) {{
  {body}
  run.give({{{", ".join(map(str, leaf.outputs))}}});
}}
}}
extern "C" {{
int32_t leaf{number}_create(void** leaf) {{
  *leaf = new Leaf();
  return 0;
}}
int32_t leaf{number}_run(void* leaf, specc_tensor** in, int n_in, specc_tensor** out, int n_out) {{
  return specc::played("{leaf.name}", {leaf.inputs}, {len(leaf.outputs)}, {len(leaf.values)}, in, n_in, out, n_out,
                       [&](specc::LeafRun& run) {{ play(*static_cast<Leaf*>(leaf), run, {rows}); }});
}}
const char* leaf{number}_error() {{ return ""; }}
}}
"""


def _step(values: Sequence[TensorType], step: Step, code: DeviceCode, place: int) -> list[str]:
    if not step.kernel:
        source, view = step.args
        return [f"run.view({view}, {source}, {_sizes(values[view])});"]
    made = step.args[len(step.args) - step.made :]
    lines = [f"run.make({v}, {c_dtype(values[v].dtype)}, {_sizes(values[v])});" for v in made]
    return [*lines, _launch(code.launches[step.kernel], step.args, place)]


def _launch(launch: Launch, args: Sequence[int], place: int) -> str:
    words = ", ".join(a if isinstance(a, str) else f"run[{args[a]}]" for a in launch.arguments)
    grid = ", ".join(launch.grid)
    return f'run.launch(leaf.kernels[{place}], code, "{launch.kernel}", {{{grid}}}, {launch.threads}, {{{words}}});'


def _sizes(type_: TensorType) -> str:
    return f"{{{', '.join(map(str, type_.shape))}}}"
