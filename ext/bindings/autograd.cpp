// Gradients, in C++ so that a saved module trains without Python. Each is made of the operators themselves: the three
// of the convolution are bilinear and closed under differentiation, so gradients of any order work.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops.h"

namespace layerbench {
namespace {

using at::IntArrayRef;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Below = at::AutoDispatchBelowADInplaceOrView;

bool tracked(const Tensor& t) {
    return t.defined() && ((t.requires_grad() && at::GradMode::is_enabled()) || t._fw_grad(/*level=*/0).defined());
}

void save(AutogradContext* ctx, const Window& w) {
    std::vector<int64_t> all;
    for (const auto& pair : {w.kernel_size, w.stride, w.padding, w.dilation})
        all.insert(all.end(), pair.begin(), pair.end());
    ctx->saved_data["window"] = all;
}

// Valid as long as `all` is.
Window window(const std::vector<int64_t>& all) {
    const IntArrayRef view(all);
    return {view.slice(0, 2), view.slice(2, 2), view.slice(4, 2), view.slice(6, 2)};
}

struct ShiftFunction : Function<ShiftFunction> {
    static Tensor forward(AutogradContext* ctx, const Tensor& x, int64_t k) {
        ctx->saved_data["k"] = k;
        Below guard;
        return shift(x, k);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const int64_t k = ctx->saved_data["k"].toInt();
        return {shift(grads[0], k == INT64_MIN ? INT64_MAX : -k), Tensor()};
    }
};

struct VecaddFunction : Function<VecaddFunction> {
    static Tensor forward(AutogradContext*, const Tensor& x, const Tensor& y) {
        Below guard;
        return vecadd(x, y);
    }
    static variable_list backward(AutogradContext*, const variable_list& grads) { return {grads[0], grads[0]}; }
};

struct ConvFunction : Function<ConvFunction> {
    static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight,
                          const std::optional<Tensor>& bias, const Window& w) {
        ctx->save_for_backward({input, weight});
        ctx->saved_data["bias"] = bias.has_value();
        save(ctx, w);
        Below guard;
        return conv(input, weight, bias, w);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const auto all = ctx->saved_data["window"].toIntVector();
        const auto saved = ctx->get_saved_variables();
        const Tensor &grad = grads[0], &input = saved[0], &weight = saved[1];
        variable_list out(4);
        if (ctx->needs_input_grad(0)) out[0] = grad_input(grad, input, weight, window(all));
        if (ctx->needs_input_grad(1)) out[1] = grad_weight(grad, input, window(all));
        if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) out[2] = grad.sum({0, 2, 3});
        return out;
    }
};

struct GradInputFunction : Function<GradInputFunction> {
    static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& input, const Tensor& weight,
                          const Window& w) {
        ctx->save_for_backward({grad, weight});
        save(ctx, w);
        Below guard;
        return grad_input(grad, input, weight, w);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const auto all = ctx->saved_data["window"].toIntVector();
        const auto saved = ctx->get_saved_variables();
        variable_list out(4);
        if (ctx->needs_input_grad(0)) out[0] = conv(grads[0], saved[1], std::nullopt, window(all));
        if (ctx->needs_input_grad(2)) out[2] = grad_weight(saved[0], grads[0], window(all));
        return out;
    }
};

struct GradWeightFunction : Function<GradWeightFunction> {
    static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& input, const Window& w) {
        ctx->save_for_backward({grad, input});
        save(ctx, w);
        Below guard;
        return grad_weight(grad, input, w);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const auto all = ctx->saved_data["window"].toIntVector();
        const auto saved = ctx->get_saved_variables();
        variable_list out(3);
        if (ctx->needs_input_grad(0)) out[0] = conv(saved[1], grads[0], std::nullopt, window(all));
        if (ctx->needs_input_grad(1)) out[1] = grad_input(saved[0], saved[1], grads[0], window(all));
        return out;
    }
};

// Where no gradient is wanted, none is prepared: no node, no saved tensors.

Tensor shift_autograd(const Tensor& x, int64_t k) {
    if (tracked(x)) return ShiftFunction::apply(x, k);
    Below guard;
    return shift(x, k);
}

Tensor vecadd_autograd(const Tensor& x, const Tensor& y) {
    if (tracked(x) || tracked(y)) return VecaddFunction::apply(x, y);
    Below guard;
    return vecadd(x, y);
}

Tensor conv_autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    if (tracked(input) || tracked(weight) || (bias && tracked(*bias)))
        return ConvFunction::apply(input, weight, bias, w);
    Below guard;
    return conv(input, weight, bias, w);
}

Tensor grad_input_autograd(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef kernel_size,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    if (tracked(grad) || tracked(weight)) return GradInputFunction::apply(grad, input, weight, w);
    Below guard;
    return grad_input(grad, input, weight, w);
}

Tensor grad_weight_autograd(const Tensor& grad, const Tensor& input, IntArrayRef kernel_size, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    if (tracked(grad) || tracked(input)) return GradWeightFunction::apply(grad, input, w);
    Below guard;
    return grad_weight(grad, input, w);
}

// Under autocast a convolution runs in the lower precision, as torch's own does. The other operators take what comes.
template <at::DeviceType device>
Tensor conv_autocast(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
    const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
    const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(key)};
    const auto cast = [](const Tensor& t) {
        return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
    };
    return conv(cast(input), cast(weight), bias ? std::optional(cast(*bias)) : bias,
                {kernel_size, stride, padding, dilation});
}

}  // namespace

TORCH_LIBRARY_IMPL(layerbench, Autograd, m) {
    m.impl("shift", shift_autograd);
    m.impl("vecadd", vecadd_autograd);
    m.impl("unfold_conv2d", conv_autograd);
    m.impl("unfold_conv2d_grad_input", grad_input_autograd);
    m.impl("unfold_conv2d_grad_weight", grad_weight_autograd);
}

TORCH_LIBRARY_IMPL(layerbench, AutocastCPU, m) { m.impl("unfold_conv2d", conv_autocast<at::kCPU>); }
TORCH_LIBRARY_IMPL(layerbench, AutocastCUDA, m) { m.impl("unfold_conv2d", conv_autocast<at::kCUDA>); }

}  // namespace layerbench
