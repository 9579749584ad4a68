// From torch's arguments to the kernels': every check of a user's input, the same on every device.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "../kernels/kernels.h"
#include "tensors.h"

namespace layerbench {

inline bool is_floating(Dtype dtype) { return dtype <= Dtype::bf16; }

inline std::optional<Dtype> find_dtype(at::ScalarType type) {
    switch (type) {
        case at::kFloat: return Dtype::f32;
        case at::kDouble: return Dtype::f64;
        case at::kHalf: return Dtype::f16;
        case at::kBFloat16: return Dtype::bf16;
        case at::kByte:
        case at::kChar: return Dtype::i8;
        case at::kShort: return Dtype::i16;
        case at::kInt: return Dtype::i32;
        case at::kLong: return Dtype::i64;
        default: return std::nullopt;
    }
}

// `name` must agree with `other` in dtype and device.
inline void check_same(const char* op, const char* name, const at::Tensor& t, const char* other, const at::Tensor& o) {
    TORCH_CHECK(t.scalar_type() == o.scalar_type(), "layerbench::", op, ": ", name, " is ", t.scalar_type(), ", ",
                other, " is ", o.scalar_type(), "; one dtype for both is accepted");
    TORCH_CHECK(t.device() == o.device(), "layerbench::", op, ": ", name, " is on ", t.device(), ", ", other, " is on ",
                o.device(), "; one device for both is accepted");
}

inline void check_shape(const char* op, const char* name, const at::Tensor& t, at::IntArrayRef accepted) {
    TORCH_CHECK(t.sizes() == accepted, "layerbench::", op, ": ", name, " has shape ", t.sizes(), "; ", accepted,
                " is accepted");
}

// A shift in the widest units (up to 16 bytes) that fit the rows, the shift and, on a GPU, both addresses.
inline Shift make_shift(const at::Tensor& x, int64_t k, const void* in, const void* out) {
    const int64_t n = x.dim() == 0 ? 1 : x.size(-1), bytes = x.element_size();
    const int64_t row = n * bytes, shift = std::clamp(k, -n, n) * bytes;
    const auto bits = static_cast<uint64_t>(row) | static_cast<uint64_t>(shift) | reinterpret_cast<uintptr_t>(in) |
                      reinterpret_cast<uintptr_t>(out) | 16;
    const auto unit = static_cast<int64_t>(bits & (~bits + 1));  // the lowest bit set
    return {x.numel() / n, row / unit, shift / unit, static_cast<int>(unit)};
}

inline Dtype check_vecadd(const at::Tensor& x, const at::Tensor& y) {
    check_same("vecadd", "y", y, "x", x);
    check_shape("vecadd", "y", y, x.sizes());
    const auto dtype = find_dtype(x.scalar_type());
    TORCH_CHECK(dtype, "layerbench::vecadd: x is ", x.scalar_type(),
                "; floating dtypes, uint8 and signed integers are accepted");
    return *dtype;
}

inline void check_pair(const char* op, const char* name, at::IntArrayRef pair, int64_t least) {
    const bool fits = pair.size() == 2 && std::all_of(pair.begin(), pair.end(), [&](int64_t value) {
                          return value >= least && value <= std::numeric_limits<int>::max();
                      });
    TORCH_CHECK(fits, "layerbench::", op, ": ", name, " is ", pair, "; two integers of at least ", least,
                " (and below 2^31) are accepted");
}

// A convolution whose arguments have been checked.
struct Conv {
    Dtype dtype;
    Gather forward;  // input -> output
    Gather inverse;  // output gradient -> input gradient

    at::DimVector output() const { return {forward.batch, forward.results, forward.y.dest, forward.x.dest}; }
    at::DimVector weight() const { return {forward.results, forward.channels, forward.y.taps * forward.x.taps}; }
};

inline Axis make_axis(const char* op, const char* name, int64_t size, const Window& w, int i) {
    const int64_t padded = size + 2 * w.padding[i], reach = w.dilation[i] * (w.kernel_size[i] - 1) + 1;
    TORCH_CHECK(padded >= reach && padded <= std::numeric_limits<int>::max(), "layerbench::", op, ": ", name, " is ",
                padded, " with padding; at least the dilated kernel's ", reach, " (and below 2^31) is accepted");
    return {size, (padded - reach) / w.stride[i] + 1, w.kernel_size[i], w.stride[i], -w.padding[i], w.dilation[i], 1};
}

inline Axis invert(const Axis& a) { return {a.dest, a.source, a.taps, 1, -a.origin, -a.step, a.mult}; }

// The geometry of a convolution of `input` with `filters` filters.
inline Conv check_conv(const char* op, const at::Tensor& input, int64_t filters, const Window& w) {
    TORCH_CHECK(input.dim() == 4, "layerbench::", op, ": input has shape ", input.sizes(),
                "; (batch, channels, height, width) is accepted");
    const auto dtype = find_dtype(input.scalar_type());
    TORCH_CHECK(dtype && is_floating(*dtype), "layerbench::", op, ": input is ", input.scalar_type(),
                "; float32, float64, float16 and bfloat16 are accepted");
    check_pair(op, "kernel_size", w.kernel_size, 1);
    check_pair(op, "stride", w.stride, 1);
    check_pair(op, "padding", w.padding, 0);
    check_pair(op, "dilation", w.dilation, 1);
    const int64_t channels = input.size(1), taps = w.kernel_size[0] * w.kernel_size[1];
    const Axis y = make_axis(op, "the input's height", input.size(2), w, 0);
    const Axis x = make_axis(op, "the input's width", input.size(3), w, 1);
    return {*dtype,
            {input.size(0), filters, channels, channels * taps, taps, y, x},
            {input.size(0), channels, filters, taps, channels * taps, invert(y), invert(x)}};
}

// The same with a weight, whose shape says how many filters there are.
inline Conv check_conv(const char* op, const at::Tensor& input, const at::Tensor& weight, const Window& w) {
    TORCH_CHECK(weight.dim() == 3, "layerbench::", op, ": weight has shape ", weight.sizes(),
                "; (filters, channels, kernel height * kernel width) is accepted");
    const Conv c = check_conv(op, input, weight.size(0), w);
    check_same(op, "weight", weight, "input", input);
    check_shape(op, "weight", weight, c.weight());
    return c;
}

inline Conv check_forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                          const Window& w) {
    const Conv c = check_conv("unfold_conv2d", input, weight, w);
    if (bias) {
        check_same("unfold_conv2d", "bias", *bias, "input", input);
        check_shape("unfold_conv2d", "bias", *bias, {weight.size(0)});
    }
    return c;
}

inline Conv check_grad_input(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                             const Window& w) {
    const Conv c = check_conv("unfold_conv2d_grad_input", input, weight, w);
    check_same("unfold_conv2d_grad_input", "grad", grad, "input", input);
    check_shape("unfold_conv2d_grad_input", "grad", grad, c.output());
    return c;
}

inline Conv check_grad_weight(const at::Tensor& grad, const at::Tensor& input, const Window& w) {
    TORCH_CHECK(grad.dim() == 4, "layerbench::unfold_conv2d_grad_weight: grad has shape ", grad.sizes(),
                "; (batch, filters, height, width) is accepted");
    const Conv c = check_conv("unfold_conv2d_grad_weight", input, grad.size(1), w);
    check_same("unfold_conv2d_grad_weight", "grad", grad, "input", input);
    check_shape("unfold_conv2d_grad_weight", "grad", grad, c.output());
    return c;
}

}  // namespace layerbench
