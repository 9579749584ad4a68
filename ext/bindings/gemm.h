// Convolutions as the vendor library's matrix products of the weight and the windows of an image. They run wherever
// ATen does, and a profile names them: aten::im2col, aten::mm, aten::addmm, aten::col2im.
#pragma once

#include "checks.h"
#include "tensors.h"

namespace layerbench {

// The windows of an image are the image itself.
inline bool is_pointwise(const Gather& g) {
    const auto plain = [](const Axis& a) { return a.taps == 1 && a.mult == 1 && a.origin == 0; };
    return plain(g.y) && plain(g.x);
}

// (channels, height, width) -> (channels * taps, output pixels).
inline at::Tensor windows(const at::Tensor& image, const Gather& g, const Window& w) {
    if (is_pointwise(g)) return image.flatten(1);
    return at::im2col(image, w.kernel_size, w.dilation, w.padding, w.stride);
}

// Contiguous tensors of one dtype, as in `unfold_conv2d`.
inline at::Tensor gemm_conv(const Conv& c, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Window& w) {
    const WithoutAutocast guard;
    at::Tensor out = at::empty(c.output(), input.options());
    for (int64_t n = 0; n < c.forward.batch; ++n) {
        at::Tensor pixels = out.select(0, n).flatten(1);
        const at::Tensor columns = windows(input.select(0, n), c.forward, w);
        if (bias) {
            at::addmm_out(pixels, bias->unsqueeze(1), weight.flatten(1), columns);
        } else {
            at::mm_out(pixels, weight.flatten(1), columns);
        }
    }
    return out;
}

// As `unfold_conv2d_grad_input`.
inline at::Tensor gemm_grad_input(const Conv& c, const at::Tensor& grad, const at::Tensor& weight, const Window& w) {
    const WithoutAutocast guard;
    const Gather& g = c.inverse;
    at::Tensor out = at::empty({g.batch, g.results, g.y.dest, g.x.dest}, grad.options());
    for (int64_t n = 0; n < g.batch; ++n) {
        at::Tensor image = out.select(0, n), pixels = image.flatten(1);
        const at::Tensor pull = grad.select(0, n).flatten(1), across = weight.flatten(1).t();
        if (is_pointwise(c.forward)) {
            at::mm_out(pixels, across, pull);
        } else {
            at::col2im_out(image, at::mm(across, pull), {g.y.dest, g.x.dest}, w.kernel_size, w.dilation, w.padding,
                           w.stride);
        }
    }
    return out;
}

// As `unfold_conv2d_grad_weight`.
inline at::Tensor gemm_grad_weight(const Conv& c, const at::Tensor& grad, const at::Tensor& input, const Window& w) {
    const WithoutAutocast guard;
    const Gather& g = c.forward;
    at::Tensor sum = at::zeros({g.results, g.weight_result}, input.options());
    for (int64_t n = 0; n < g.batch; ++n)
        at::addmm_out(sum, sum, grad.select(0, n).flatten(1), windows(input.select(0, n), g, w).t());
    return sum.view(c.weight());
}

}  // namespace layerbench
