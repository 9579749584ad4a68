// The operators as C++ functions that go through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace layerbench {

// The four pairs that say how a convolution's kernel moves over its input.
struct Window {
    at::IntArrayRef kernel_size, stride, padding, dilation;
};

using ShiftSignature = at::Tensor(const at::Tensor&, int64_t);
using VecaddSignature = at::Tensor(const at::Tensor&, const at::Tensor&);
using ConvSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                 at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef);
using GradInputSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                                      at::IntArrayRef, at::IntArrayRef, at::IntArrayRef);
using GradWeightSignature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                                       at::IntArrayRef, at::IntArrayRef);

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline at::Tensor shift(const at::Tensor& x, int64_t k) {
    static const auto op = find<ShiftSignature>("layerbench::shift");
    return op.call(x, k);
}

inline at::Tensor vecadd(const at::Tensor& x, const at::Tensor& y) {
    static const auto op = find<VecaddSignature>("layerbench::vecadd");
    return op.call(x, y);
}

inline at::Tensor conv(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const Window& w) {
    static const auto op = find<ConvSignature>("layerbench::unfold_conv2d");
    return op.call(input, weight, bias, w.kernel_size, w.stride, w.padding, w.dilation);
}

inline at::Tensor grad_input(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                             const Window& w) {
    static const auto op = find<GradInputSignature>("layerbench::unfold_conv2d_grad_input");
    return op.call(grad, input, weight, w.kernel_size, w.stride, w.padding, w.dilation);
}

inline at::Tensor grad_weight(const at::Tensor& grad, const at::Tensor& input, const Window& w) {
    static const auto op = find<GradWeightSignature>("layerbench::unfold_conv2d_grad_weight");
    return op.call(grad, input, w.kernel_size, w.stride, w.padding, w.dilation);
}

}  // namespace layerbench
