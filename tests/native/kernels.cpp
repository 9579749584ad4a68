// Every CPU kernel on many sizes against a plain loop, on arrays without a spare byte, for the sanitizers to watch.
// With one argument: the seed. Prints how many cases agreed; exits with 1 at the first that does not.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "../../ext/kernels/kernels.h"

using namespace layerbench;

namespace {

std::mt19937 engine;
int64_t cases = 0;

int64_t any(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }

template <typename T>
std::vector<T> some(int64_t n, bool finite = true) {
    std::vector<T> values(n);
    for (T& value : values) value = T(any(-9, 9));  // small integers: sums are exact in any order
    // A NaN must reach nothing but what it belongs to.
    if (n && !finite && any(0, 3) == 0) values[any(0, n - 1)] = std::numeric_limits<T>::quiet_NaN();
    return values;
}

template <typename T>
void expect(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
    for (size_t i = 0; i < want.size(); ++i) {
        if (got[i] == want[i] || (std::isnan(double(got[i])) && std::isnan(double(want[i])))) continue;
        std::printf("%s: element %zu of %zu is %g, not %g\n", what, i, want.size(), double(got[i]), double(want[i]));
        std::exit(1);
    }
    ++cases;
}

// [0, n) in parts, as threads would share it.
template <typename F>
void in_parts(int64_t n, F&& work) {
    for (int64_t begin = 0, end; begin < n; begin = end) work(begin, end = any(begin, n));
    work(n, n);
}

void try_shift() {
    const int unit = 1 << any(0, 4);
    const int64_t row = any(0, 1) ? any(1, 9) : any(1, 900), rows = any(0, 5), shift = any(-row, row);
    std::vector<char> in(rows * row * unit), out(in.size(), 'x'), want(in.size());
    for (char& byte : in) byte = char(any(1, 99));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = std::max<int64_t>(0, shift); i < std::min(row, row + shift); ++i)
            std::memcpy(&want[(r * row + i) * unit], &in[(r * row + i - shift) * unit], unit);
    const Shift s{rows, row, shift, unit};
    in_parts(in.size(), [&](auto begin, auto end) { shift_cpu(in.data(), out.data(), s, begin, end); });
    expect(out, want, "shift");
}

template <typename T>
void try_vecadd(Dtype dtype) {
    const int64_t n = any(0, 200);
    std::vector<T> x(n), y(n), out(n), want(n);
    for (int64_t i = 0; i < n; ++i) {
        x[i] = T(any(-100, 100)), y[i] = T(any(-100, 100));
        if (i == 0) x[i] = std::numeric_limits<T>::max();  // wraps where it is an integer
        using U = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::common_type<T>>;
        want[i] = T(typename U::type(x[i]) + typename U::type(y[i]));
    }
    in_parts(n, [&](auto begin, auto end) { vecadd_cpu(dtype, x.data(), y.data(), out.data(), begin, end); });
    expect(out, want, "vecadd");
}

// Every pattern of a 16-bit float; the values are tests/test_ops.py's business.
void try_vecadd_16bit(Dtype dtype) {
    std::vector<uint16_t> x(1 << 16), y(x.size()), out(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = uint16_t(i), y[i] = uint16_t(any(0, 0xffff));
    vecadd_cpu(dtype, x.data(), y.data(), out.data(), 0, int64_t(x.size()));
    ++cases;
}

Axis any_axis(int64_t most) {
    while (true) {
        const int64_t size = any(1, most), taps = any(1, 5), stride = any(0, 1) ? 1 : any(1, 4);
        const int64_t pad = any(0, 3) * any(0, 2), dilation = any(1, 3), reach = dilation * (taps - 1) + 1;
        if (size + 2 * pad < reach) continue;
        return {size, (size + 2 * pad - reach) / stride + 1, taps, stride, -pad, dilation, 1};
    }
}

int64_t position(const Axis& axis, int64_t dest, int64_t tap) {
    const int64_t at = dest * axis.mult + axis.origin + tap * axis.step;
    return at >= 0 && at % axis.div == 0 && at / axis.div < axis.source ? at / axis.div : -1;
}

// Calls f(dest, weight, source) with the offsets of every product.
template <typename F>
void each_product(const Gather& g, F&& f) {
    for (int64_t n = 0; n < g.batch; ++n)
        for (int64_t r = 0; r < g.results; ++r)
            for (int64_t y = 0; y < g.y.dest; ++y)
                for (int64_t x = 0; x < g.x.dest; ++x)
                    for (int64_t c = 0; c < g.channels; ++c)
                        for (int64_t i = 0; i < g.y.taps; ++i)
                            for (int64_t j = 0; j < g.x.taps; ++j) {
                                const int64_t v = position(g.y, y, i), u = position(g.x, x, j);
                                if (v >= 0 && u >= 0)
                                    f(((n * g.results + r) * g.y.dest + y) * g.x.dest + x,
                                      r * g.weight_result + c * g.weight_channel + i * g.x.taps + j,
                                      ((n * g.channels + c) * g.y.source + v) * g.x.source + u);
                            }
}

template <typename T>
void try_gather(const Gather& g, const char* what) {
    const auto source = some<T>(g.batch * g.channels * g.y.source * g.x.source, false);
    const auto bias = some<T>(g.results, false);
    const auto weight = some<T>(g.results * g.channels * g.y.taps * g.x.taps);
    std::vector<T> out(g.batch * g.results * g.y.dest * g.x.dest);
    std::vector<T> want(out.size());
    const bool biased = any(0, 1) != 0;
    for (size_t i = 0; biased && i < want.size(); ++i) want[i] = bias[i / (g.y.dest * g.x.dest) % g.results];
    each_product(g, [&](auto d, auto w, auto s) { want[d] += weight[w] * source[s]; });
    in_parts(g.batch * g.y.dest, [&](auto begin, auto end) {
        gather_cpu(source.data(), weight.data(), biased ? bias.data() : nullptr, out.data(), g, begin, end);
    });
    expect(out, want, what);
}

template <typename T>
void try_weight_grad(const Gather& g) {
    const auto source = some<T>(g.batch * g.channels * g.y.source * g.x.source, false);
    const auto grad = some<T>(g.batch * g.results * g.y.dest * g.x.dest);
    std::vector<T> sums(g.results * g.weight_result), want(sums.size());
    each_product(g, [&](auto d, auto w, auto s) { want[w] += grad[d] * source[s]; });
    in_parts(g.results, [&](auto first, auto last) {
        in_parts(g.batch * g.y.dest, [&](auto begin, auto end) {
            weight_grad_cpu(grad.data(), source.data(), sums.data(), g, first, last, begin, end);
        });
    });
    expect(sums, want, "weight gradient");
}

Axis inverse(const Axis& a) { return {a.dest, a.source, a.taps, 1, -a.origin, -a.step, a.mult}; }

template <typename T>
void try_conv() {
    const Axis y = any_axis(7), x = any_axis(any(0, 5) ? 40 : 700);
    const int64_t batch = any(0, 2), results = any(0, 9), channels = any(0, 3), taps = y.taps * x.taps;
    const Gather forward{batch, results, channels, channels * taps, taps, y, x};
    try_gather<T>(forward, "convolution");
    try_gather<T>({batch, channels, results, taps, channels * taps, inverse(y), inverse(x)}, "input gradient");
    try_weight_grad<T>(forward);
}

}  // namespace

int main(int, char** arguments) {
    engine.seed(unsigned(std::atoi(arguments[1])));
    for (int i = 0; i < 150; ++i) {
        try_shift();
        try_vecadd<float>(Dtype::f32);
        try_vecadd<double>(Dtype::f64);
        try_vecadd<int8_t>(Dtype::i8);
        try_vecadd<int16_t>(Dtype::i16);
        try_vecadd<int32_t>(Dtype::i32);
        try_vecadd<int64_t>(Dtype::i64);
        try_conv<float>();
        try_conv<double>();
    }
    try_vecadd_16bit(Dtype::f16);
    try_vecadd_16bit(Dtype::bf16);
    std::printf("%lld cases agree\n", static_cast<long long>(cases));
}
