// The operators as C++ functions that go through the dispatcher: each looks its operator up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "tensors.h"

namespace layerbench {

using ShiftSignature = at::Tensor(const at::Tensor&, int64_t);
using VecaddSignature = at::Tensor(const at::Tensor&, const at::Tensor&);
using ConvSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                 at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef);
using GradInputSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                                      at::IntArrayRef, at::IntArrayRef, at::IntArrayRef);
using GradWeightSignature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                                       at::IntArrayRef, at::IntArrayRef);

using GradWeightBiasSignature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                   at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                                                   at::IntArrayRef);

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline const auto& shift_op() {
    static const auto op = find<ShiftSignature>("layerbench::shift");
    return op;
}

inline const auto& vecadd_op() {
    static const auto op = find<VecaddSignature>("layerbench::vecadd");
    return op;
}

inline const auto& conv_op() {
    static const auto op = find<ConvSignature>("layerbench::unfold_conv2d");
    return op;
}

inline const auto& grad_input_op() {
    static const auto op = find<GradInputSignature>("layerbench::unfold_conv2d_grad_input");
    return op;
}

inline const auto& grad_weight_op() {
    static const auto op = find<GradWeightSignature>("layerbench::unfold_conv2d_grad_weight");
    return op;
}

inline const auto& grad_weight_bias_op() {
    static const auto op = find<GradWeightBiasSignature>("layerbench::unfold_conv2d_grad_weight_bias");
    return op;
}

}  // namespace layerbench
