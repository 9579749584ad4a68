// Compiled only into a build with CUDA.
#include "checks.h"
#include "tensors.h"

#ifndef LAYERBENCH_STABLE
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace layerbench {
namespace {

at::Tensor cuda_shift(const at::Tensor& x, int64_t k) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor in = x.contiguous();
    at::Tensor out = at::empty(x.sizes(), x.options());
    if (out.numel() == 0) return out;
    const void* from = in.const_data_ptr();
    void* to = out.mutable_data_ptr();
    C10_CUDA_CHECK(shift_cuda(from, to, make_shift(x, k, from, to), c10::cuda::getCurrentCUDAStream()));
    return out;
}

at::Tensor cuda_vecadd(const at::Tensor& x, const at::Tensor& y) {
    const Dtype dtype = check_vecadd(x, y);
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor a = x.contiguous(), b = y.contiguous();
    at::Tensor out = at::empty(x.sizes(), x.options());
    C10_CUDA_CHECK(vecadd_cuda(dtype, a.const_data_ptr(), b.const_data_ptr(), out.mutable_data_ptr(), out.numel(),
                               c10::cuda::getCurrentCUDAStream()));
    return out;
}

at::Tensor gather(const Conv& c, const Gather& g, const at::Tensor& source, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
    const c10::cuda::CUDAGuard guard(source.device());
    const at::Tensor in = source.contiguous(), w = weight.contiguous(), b = bias ? bias->contiguous() : at::Tensor();
    at::Tensor out = at::empty({g.batch, g.results, g.y.dest, g.x.dest}, source.options());
    const int64_t scratch_size = gather_scratch(c.dtype, g);
    at::Tensor scratch;
    if (scratch_size) scratch = at::empty({scratch_size}, in.options().dtype(at::kFloat));
    C10_CUDA_CHECK(gather_cuda(c.dtype, in.const_data_ptr(), w.const_data_ptr(), bias ? b.const_data_ptr() : nullptr,
                               out.mutable_data_ptr(), scratch_size ? scratch.mutable_data_ptr<float>() : nullptr, g,
                               c10::cuda::getCurrentCUDAStream()));
    return out;
}

at::Tensor cuda_conv(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation) {
    const Conv c = check_forward(input, weight, bias, {kernel_size, stride, padding, dilation});
    return gather(c, c.forward, input, weight, bias);
}

at::Tensor cuda_grad_input(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                           at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation) {
    const Conv c = check_grad_input(grad, input, weight, {kernel_size, stride, padding, dilation});
    return gather(c, c.inverse, grad, weight, std::nullopt);
}

// The gradients of the weight and, if there is one to write to, of the bias. `grad` may have any strides.
at::Tensor grad_weight(const at::Tensor& grad, const at::Tensor& input, const Window& w, const at::Tensor* bias) {
    const Conv c = check_grad_weight(grad, input, w);
    const Gather& g = c.forward;
    const c10::cuda::CUDAGuard guard(grad.device());
    const at::Tensor in = input.contiguous();
    const auto wide = grad.options().dtype(c.dtype == Dtype::f64 ? at::kDouble : at::kFloat);
    at::Tensor sums = at::empty({weight_grad_sums(c.dtype, g, bias != nullptr)}, wide);
    at::Tensor out = at::empty({g.results, g.channels, g.weight_channel}, grad.options());
    const Strides by{grad.stride(0), grad.stride(1), grad.stride(2), grad.stride(3)};
    C10_CUDA_CHECK(weight_grad_cuda(c.dtype, grad.const_data_ptr(), by, in.const_data_ptr(), sums.mutable_data_ptr(),
                                    out.mutable_data_ptr(), bias ? bias->mutable_data_ptr() : nullptr, g,
                                    c10::cuda::getCurrentCUDAStream()));
    return out;
}

at::Tensor cuda_grad_weight(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef kernel_size,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
    return grad_weight(grad, input, {kernel_size, stride, padding, dilation}, nullptr);
}

}  // namespace

LAYERBENCH_KERNELS(CUDA, cuda_shift, cuda_vecadd, cuda_conv, cuda_grad_input, cuda_grad_weight)

#ifdef LAYERBENCH_IN_CPP
TORCH_LIBRARY_IMPL(layerbench, CUDA, m) {
    m.impl("unfold_conv2d_grad_weight_bias",
           [](const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
              at::IntArrayRef padding, at::IntArrayRef dilation) {
               TORCH_CHECK(grad.dim() == 4, "layerbench::unfold_conv2d_grad_weight_bias: grad has shape ", grad.sizes(),
                           "; (batch, filters, height, width) is accepted");
               at::Tensor bias = at::empty({grad.size(1)}, grad.options());
               at::Tensor weight = grad_weight(grad, input, {kernel_size, stride, padding, dilation}, &bias);
               return std::make_tuple(std::move(weight), std::move(bias));
           });
}
#endif

}  // namespace layerbench
