#include "checks.h"
#include "gemm.h"
#include "tensors.h"

namespace layerbench {
namespace {

constexpr int64_t kGrain = 1 << 15;  // least bytes, elements or multiplications worth a thread

at::Tensor cpu_shift(const at::Tensor& x, int64_t k) {
    const at::Tensor in = x.contiguous();
    at::Tensor out = cpu_empty(x.sizes(), x.options());
    if (out.numel() == 0) return out;
    const Shift s = make_shift(x, k, nullptr, nullptr);
    const void* from = in.const_data_ptr();
    void* to = out.mutable_data_ptr();
    at::parallel_for(0, static_cast<int64_t>(out.nbytes()), kGrain,
                     [&](int64_t begin, int64_t end) { shift_cpu(from, to, s, begin, end); });
    return out;
}

at::Tensor cpu_vecadd(const at::Tensor& x, const at::Tensor& y) {
    const Dtype dtype = check_vecadd(x, y);
    const at::Tensor a = x.contiguous(), b = y.contiguous();
    at::Tensor out = cpu_empty(x.sizes(), x.options());
    const void *pa = a.const_data_ptr(), *pb = b.const_data_ptr();
    void* to = out.mutable_data_ptr();
    at::parallel_for(0, out.numel(), kGrain,
                     [&](int64_t begin, int64_t end) { vecadd_cpu(dtype, pa, pb, to, begin, end); });
    return out;
}

// The kernels know float and double: half and bfloat16 go through float, in which they must be summed anyway.
at::ScalarType wide(const Conv& c) { return c.dtype == Dtype::f64 ? at::kDouble : at::kFloat; }

at::Tensor widened(const at::Tensor& t, const Conv& c) { return t.to(wide(c)).contiguous(); }

template <typename F>
void with_type(const Conv& c, F&& f) {
    if (c.dtype == Dtype::f64) {
        f(double());
    } else {
        f(float());
    }
}

at::Tensor gather(const Conv& c, const Gather& g, const at::Tensor& source, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
    at::Tensor out = cpu_empty({g.batch, g.results, g.y.dest, g.x.dest}, source.options());
    const int64_t work = g.x.dest * g.results * g.channels * g.y.taps * g.x.taps;  // of one row
    with_type(c, [&](auto type) {
        using T = decltype(type);
        const T *from = source.const_data_ptr<T>(), *pw = weight.const_data_ptr<T>();
        const T* pb = bias ? bias->const_data_ptr<T>() : nullptr;
        T* to = out.mutable_data_ptr<T>();
        at::parallel_for(0, g.batch * g.y.dest, kGrain / std::max<int64_t>(work, 1) + 1,
                         [&](int64_t begin, int64_t end) { gather_cpu(from, pw, pb, to, g, begin, end); });
    });
    return out;
}

at::Tensor weight_grad(const Conv& c, const at::Tensor& grad, const at::Tensor& input) {
    const Gather& g = c.forward;
    // Parts of a fixed number, whatever the number of threads: the sums come out the same on every machine.
    // A part adds up its lanes at its end, which costs as much as several rows do.
    constexpr int64_t filters = 16, parts = 64, least_rows = 8;
    const int64_t blocks = (g.results + filters - 1) / filters, rows = g.batch * g.y.dest;
    const int64_t chunks =
        std::clamp<int64_t>(rows / least_rows, 1, std::max<int64_t>(parts / std::max<int64_t>(blocks, 1), 1));
    const int64_t size = g.results * g.weight_result;
    at::Tensor sums = at::zeros({chunks, g.results, g.channels, g.weight_channel}, input.options());
    with_type(c, [&](auto type) {
        using T = decltype(type);
        const T *pg = grad.const_data_ptr<T>(), *from = input.const_data_ptr<T>();
        T* to = sums.mutable_data_ptr<T>();
        at::parallel_for(0, chunks * blocks, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t chunk = i / blocks, first = i % blocks * filters;
                weight_grad_cpu(pg, from, to + chunk * size, g, first, std::min(first + filters, g.results),
                                rows * chunk / chunks, rows * (chunk + 1) / chunks);
            }
        });
    });
    return sums.sum(0);
}

enum class Pass { forward, grad_input, grad_weight };

// Whether the vendor library's matrix product is the faster path, as measured (docs/kernels.md); the profile shows it.
bool prefers_gemm(const Conv& c, Pass pass) {
    const Gather& g = c.forward;
    if (g.channels == 0) return false;  // im2col and col2im know no such image
    const bool deep = g.results >= 32 && g.channels >= 32;
    if (deep && (g.y.taps * g.x.taps == 1 || g.x.dest <= 8)) return true;  // no copies; rows too short for vectors
    if (pass == Pass::grad_input) return g.x.mult > 1;                     // ours multiplies the zeros in between
    return pass == Pass::grad_weight && g.weight_result >= 256;            // our partial sums outgrow the cache
}

at::Tensor cpu_conv(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                    at::IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    const Conv c = check_forward(input, weight, bias, w);
    const at::Tensor in = widened(input, c), we = widened(weight, c);
    const auto b = bias ? std::optional(widened(*bias, c)) : std::nullopt;
    const bool gemm = prefers_gemm(c, Pass::forward);
    return (gemm ? gemm_conv(c, in, we, b, w) : gather(c, c.forward, in, we, b)).to(input.scalar_type());
}

at::Tensor cpu_grad_input(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                          at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding,
                          at::IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    const Conv c = check_grad_input(grad, input, weight, w);
    const at::Tensor gr = widened(grad, c), we = widened(weight, c);
    const bool gemm = prefers_gemm(c, Pass::grad_input);
    const at::Tensor out = gemm ? gemm_grad_input(c, gr, we, w) : gather(c, c.inverse, gr, we, std::nullopt);
    return out.to(input.scalar_type());
}

at::Tensor cpu_grad_weight(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef kernel_size,
                           at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
    const Window w{kernel_size, stride, padding, dilation};
    const Conv c = check_grad_weight(grad, input, w);
    const at::Tensor gr = widened(grad, c), in = widened(input, c);
    const bool gemm = prefers_gemm(c, Pass::grad_weight);
    return (gemm ? gemm_grad_weight(c, gr, in, w) : weight_grad(c, gr, in)).to(input.scalar_type());
}

}  // namespace

LAYERBENCH_KERNELS(CPU, cpu_shift, cpu_vecadd, cpu_conv, cpu_grad_input, cpu_grad_weight)

}  // namespace layerbench
