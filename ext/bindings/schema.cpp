#include "schema.h"

#include <torch/library.h>

TORCH_LIBRARY(layerbench, m) {
    for (const char* schema : layerbench::kSchemas) m.def(schema);

    // The gradients of weight and bias in one reading of `grad`, of which no gradient is taken.
    m.def(
        "unfold_conv2d_grad_weight_bias(Tensor grad, Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, "
        "int[2] dilation) -> (Tensor, Tensor)");

    // For clocks, in a build with CUDA. hold keeps the current stream of the current device busy until the host writes
    // `turn` (or more) into state[0]; after `timeout` ns it gives up and writes `turn` into state[1]. state is two
    // int64 in pinned memory.
    m.def("hold(Tensor(a!) state, int turn, int timeout) -> ()");

    // A kernel that spins for `cycles` of the processor's clock. spun, two int64, takes the cycles and the ns it really
    // took; empty, it takes nothing and the kernel is the shorter by a store.
    m.def("spin(Tensor(a!) spun, int cycles) -> ()");
}
