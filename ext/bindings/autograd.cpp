// Gradients, in C++ so that a saved module trains without Python. Each is made of the operators themselves: the three
// of the convolution are bilinear and closed under differentiation, so gradients of any order work.
//
// The nodes are written as PyTorch writes its own: torch::autograd::Function costs three times as much per call, and
// torch.func refuses it (docs/bindings.md).
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <array>

#include "ops.h"

namespace layerbench {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::DispatchKeySet;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePointer = decltype(torch::autograd::Edge::function);

// Whether a call must be recorded. A tangent of forward-mode differentiation would be lost, so it is refused.
template <typename... Tensors>
bool tracked(const char* op, const Tensors&... inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!(torch::autograd::isFwGradDefined(inputs) || ...), "layerbench::", op,
                                ": jvp is not implemented (forward-mode differentiation)");
    return torch::autograd::compute_requires_grad(inputs...);
}

// Torch counts nodes with its own pointer from 2.12 on, before that with a shared one, which frees long chains of nodes
// by recursion unless it is told how.
template <typename T>
auto make_node() {
    if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
        return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });
    } else {
        return c10::make_intrusive<T>();
    }
}

// What `run` computes, recorded as made from `inputs` by the node that `fill` completes.
template <typename T, typename Fill, typename Run, typename... Tensors>
Tensor record(Fill fill, Run run, const Tensors&... inputs) {
    auto node = make_node<T>();
    node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
    Tensor out = [&] {
        at::AutoDispatchBelowADInplaceOrView guard;
        return run();
    }();
    fill(*node);  // after the kernel, which checks what is saved here
    torch::autograd::set_history(out, NodePointer(std::move(node)));
    return out;
}

// To the kernels: where nothing is recorded, no guard is needed either.
DispatchKeySet below(DispatchKeySet keys) { return keys & c10::after_autograd_keyset; }

struct ShiftBackward final : Node {
    int64_t k = 0;

    std::string name() const override { return "ShiftBackward"; }
    variable_list apply(variable_list&& grads) override {
        if (!grads[0].defined()) return {Tensor()};
        return {shift_op().call(grads[0], k == INT64_MIN ? INT64_MAX : -k)};
    }
};

struct VecaddBackward final : Node {
    std::string name() const override { return "VecaddBackward"; }
    variable_list apply(variable_list&& grads) override { return {grads[0], grads[0]}; }
};

// Two saved tensors and a window: what the convolution's three nodes have in common.
struct WindowNode : Node {
    void save(const Tensor& a, const Tensor& b, const Window& w) {
        first_ = SavedVariable(a, false);
        second_ = SavedVariable(b, false);
        int64_t* to = window_.data();
        for (const auto& pair : {w.kernel_size, w.stride, w.padding, w.dilation})
            to = std::copy(pair.begin(), pair.end(), to);
    }
    void release_variables() override {
        first_.reset_data();
        second_.reset_data();
    }

protected:
    Tensor first() const { return first_.unpack(); }
    Tensor second() const { return second_.unpack(); }
    Tensor conv(const Tensor& input, const Tensor& weight) const {
        return conv_op().call(input, weight, std::nullopt, pair(0), pair(1), pair(2), pair(3));
    }
    Tensor grad_input(const Tensor& grad, const Tensor& input, const Tensor& weight) const {
        return grad_input_op().call(grad, input, weight, pair(0), pair(1), pair(2), pair(3));
    }
    Tensor grad_weight(const Tensor& grad, const Tensor& input) const {
        return grad_weight_op().call(grad, input, pair(0), pair(1), pair(2), pair(3));
    }
    std::tuple<Tensor, Tensor> grad_weight_bias(const Tensor& grad, const Tensor& input) const {
        return grad_weight_bias_op().call(grad, input, pair(0), pair(1), pair(2), pair(3));
    }
    bool wanted(size_t input) const { return task_should_compute_output(input); }

private:
    IntArrayRef pair(size_t i) const { return {window_.data() + 2 * i, 2}; }

    SavedVariable first_, second_;
    std::array<int64_t, 8> window_{};
};

struct UnfoldConv2dBackward final : WindowNode {  // of input, weight
    std::string name() const override { return "UnfoldConv2dBackward"; }
    variable_list apply(variable_list&& grads) override {
        variable_list out(3);
        const Tensor &grad = grads[0], input = first(), weight = second();
        if (!grad.defined()) return out;
        if (wanted(0)) out[0] = grad_input(grad, input, weight);
        if (wanted(1) && wanted(2) && !at::GradMode::is_enabled()) {
            std::tie(out[1], out[2]) = grad_weight_bias(grad, input);
            return out;
        }
        if (wanted(1)) out[1] = grad_weight(grad, input);
        if (wanted(2)) out[2] = grad.sum({0, 2, 3});
        return out;
    }
};

struct UnfoldConv2dGradInputBackward final : WindowNode {  // of grad, weight
    std::string name() const override { return "UnfoldConv2dGradInputBackward"; }
    variable_list apply(variable_list&& grads) override {
        variable_list out(3);
        if (!grads[0].defined()) return out;
        if (wanted(0)) out[0] = conv(grads[0], second());
        if (wanted(2)) out[2] = grad_weight(first(), grads[0]);
        return out;
    }
};

struct UnfoldConv2dGradWeightBackward final : WindowNode {  // of grad, input
    std::string name() const override { return "UnfoldConv2dGradWeightBackward"; }
    variable_list apply(variable_list&& grads) override {
        variable_list out(2);
        if (!grads[0].defined()) return out;
        if (wanted(0)) out[0] = conv(second(), grads[0]);
        if (wanted(1)) out[1] = grad_input(first(), second(), grads[0]);
        return out;
    }
};

Tensor shift(DispatchKeySet keys, const Tensor& x, int64_t k) {
    const auto run = [&] { return shift_op().redispatch(below(keys), x, k); };
    if (!tracked("shift", x)) return run();
    return record<ShiftBackward>([&](auto& node) { node.k = k; }, run, x);
}

Tensor vecadd(DispatchKeySet keys, const Tensor& x, const Tensor& y) {
    const auto run = [&] { return vecadd_op().redispatch(below(keys), x, y); };
    if (!tracked("vecadd", x, y)) return run();
    return record<VecaddBackward>([](auto&) {}, run, x, y);
}

Tensor conv(DispatchKeySet keys, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
            IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const auto run = [&] {
        return conv_op().redispatch(below(keys), input, weight, bias, kernel_size, stride, padding, dilation);
    };
    if (!tracked("unfold_conv2d", input, weight, bias)) return run();
    const Window w{kernel_size, stride, padding, dilation};
    return record<UnfoldConv2dBackward>([&](auto& node) { node.save(input, weight, w); }, run, input, weight, bias);
}

// Of the input only the shape matters: it gets no gradient, and none of its own is asked for.
Tensor grad_input(DispatchKeySet keys, const Tensor& grad, const Tensor& input, const Tensor& weight,
                  IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const auto run = [&] {
        return grad_input_op().redispatch(below(keys), grad, input, weight, kernel_size, stride, padding, dilation);
    };
    if (!tracked("unfold_conv2d_grad_input", grad, weight)) return run();
    const Window w{kernel_size, stride, padding, dilation};
    return record<UnfoldConv2dGradInputBackward>([&](auto& node) { node.save(grad, weight, w); }, run, grad,
                                                 std::optional<Tensor>(), weight);
}

Tensor grad_weight(DispatchKeySet keys, const Tensor& grad, const Tensor& input, IntArrayRef kernel_size,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const auto run = [&] {
        return grad_weight_op().redispatch(below(keys), grad, input, kernel_size, stride, padding, dilation);
    };
    if (!tracked("unfold_conv2d_grad_weight", grad, input)) return run();
    const Window w{kernel_size, stride, padding, dilation};
    return record<UnfoldConv2dGradWeightBackward>([&](auto& node) { node.save(grad, input, w); }, run, grad, input);
}

// Under autocast a convolution runs in the lower precision, as torch's own does. The other operators take what comes.
template <at::DeviceType device>
Tensor conv_autocast(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
    const c10::impl::ExcludeDispatchKeyGuard guard{DispatchKeySet(key)};
    const auto cast = [](const Tensor& t) {
        return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
    };
    return conv_op().call(cast(input), cast(weight), bias ? std::optional(cast(*bias)) : bias, kernel_size, stride,
                          padding, dilation);
}

}  // namespace

TORCH_LIBRARY_IMPL(layerbench, Autograd, m) {
    m.impl("shift", TORCH_FN(shift));
    m.impl("vecadd", TORCH_FN(vecadd));
    m.impl("unfold_conv2d", TORCH_FN(conv));
    m.impl("unfold_conv2d_grad_input", TORCH_FN(grad_input));
    m.impl("unfold_conv2d_grad_weight", TORCH_FN(grad_weight));
}

// Where there is no kernel for both.
TORCH_LIBRARY_IMPL(layerbench, CompositeExplicitAutograd, m) {
    m.impl("unfold_conv2d_grad_weight_bias", [](const Tensor& grad, const Tensor& input, IntArrayRef kernel_size,
                                                IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
        Tensor weight = grad_weight_op().call(grad, input, kernel_size, stride, padding, dilation);  // checks `grad`
        return std::make_tuple(std::move(weight), grad.sum({0, 2, 3}));
    });
}

TORCH_LIBRARY_IMPL(layerbench, AutocastCPU, m) { m.impl("unfold_conv2d", TORCH_FN(conv_autocast<at::kCPU>)); }
TORCH_LIBRARY_IMPL(layerbench, AutocastCUDA, m) { m.impl("unfold_conv2d", TORCH_FN(conv_autocast<at::kCUDA>)); }

}  // namespace layerbench
