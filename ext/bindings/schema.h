// The operators: names, arguments, and what they mean.
#pragma once

namespace layerbench {

inline constexpr const char* kSchemas[] = {
    // Along the last dimension out[i] = x[i - k], zeros move in. A scalar is a row of one.
    "shift(Tensor x, int k) -> Tensor",

    // x + y of one shape, dtype and device.
    "vecadd(Tensor x, Tensor y) -> Tensor",

    // conv2d of input (N, C, H, W) with weight (O, C, kernel height * kernel width) and bias (O).
    "unfold_conv2d(Tensor input, Tensor weight, Tensor? bias, int[2] kernel_size, int[2] stride=1, "
    "int[2] padding=0, int[2] dilation=1) -> Tensor",

    // Its gradients. Of the input only the shape matters to the first.
    "unfold_conv2d_grad_input(Tensor grad, Tensor input, Tensor weight, int[2] kernel_size, int[2] stride, "
    "int[2] padding, int[2] dilation) -> Tensor",
    "unfold_conv2d_grad_weight(Tensor grad, Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, "
    "int[2] dilation) -> Tensor",
};

}  // namespace layerbench
