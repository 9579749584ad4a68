// The operators: names, arguments, and what they mean.
#include <torch/library.h>

TORCH_LIBRARY(layerbench, m) {
    // Along the last dimension out[i] = x[i - k], zeros move in. A scalar is a row of one.
    m.def("shift(Tensor x, int k) -> Tensor");

    // x + y of one shape, dtype and device.
    m.def("vecadd(Tensor x, Tensor y) -> Tensor");

    // conv2d of input (N, C, H, W) with weight (O, C, kernel height * kernel width) and bias (O).
    m.def(
        "unfold_conv2d(Tensor input, Tensor weight, Tensor? bias, int[2] kernel_size, int[2] stride=1, "
        "int[2] padding=0, int[2] dilation=1) -> Tensor");

    // Its gradients. Of the input only the shape matters to the first.
    m.def(
        "unfold_conv2d_grad_input(Tensor grad, Tensor input, Tensor weight, int[2] kernel_size, int[2] stride, "
        "int[2] padding, int[2] dilation) -> Tensor");
    m.def(
        "unfold_conv2d_grad_weight(Tensor grad, Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, "
        "int[2] dilation) -> Tensor");

    // For clocks, in a build with CUDA. hold keeps the current stream of the current device busy until the host writes
    // `turn` (or more) into state[0]; after `timeout` ns it gives up and writes `turn` into state[1]. state is two
    // int64 in pinned memory.
    m.def("hold(Tensor(a!) state, int turn, int timeout) -> ()");

    // A kernel that spins for `cycles` of the processor's clock. spun, two int64, takes the cycles and the ns it really
    // took; empty, it takes nothing and the kernel is the shorter by a store.
    m.def("spin(Tensor(a!) spun, int cycles) -> ()");
}
