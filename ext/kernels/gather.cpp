// Convolutions whose sums stay in registers: see docs/kernels.md for the floor and for what was tried.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "kernels.h"
#include "patches.h"

namespace layerbench {
namespace {

constexpr int kResults = 4;     // results whose sums are kept in registers at once
constexpr int kTaps = 3;        // taps whose weight gradients are
constexpr int64_t kBlocks = 8;  // blocks of columns that share one list of lines at most

// What a version of the kernels computes with: vectors of B bytes, and as many sums as it has registers for: of V
// vectors for kResults results, or of F filters for kTaps weight gradients.
template <typename T, int B, int V, int F>
struct Machine {
    using Scalar = T;
    using Vector = typename Vectors<T, B>::Type;
    static constexpr int bytes = B, vectors = V, filters = F;
    static constexpr int64_t lanes = B / sizeof(T), columns = V * lanes, tile = kBlocks * columns;
};

// The weights of R results from `first` on, as [tap][result].
template <typename T>
void pack(const T* weight, const Gather& g, int64_t first, int64_t R, T* to) {
    const int64_t taps = g.y.taps * g.x.taps;
    for (int64_t c = 0; c < g.channels; ++c)
        for (int64_t t = 0; t < taps; ++t)
            for (int64_t r = first; r < first + R; ++r) *to++ = weight[r * g.weight_result + c * g.weight_channel + t];
}

// dest[r][0 .. count) for R results, summed in registers over all taps; weight is [tap][result].
template <typename M, int R, int V, typename T = typename M::Scalar>
LAYERBENCH_INLINE void block(const Patches<T>& patches, int64_t taps, int64_t column, const T* weight, const T* bias,
                             T* dest, int64_t plane, int64_t count) {
    typename M::Vector sum[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[r][v] = typename M::Vector{} + (bias ? bias[r] : T(0));
    const int64_t stride = patches.stride();
    for (const auto& line : patches.lines()) {
        const T *values = line.values + column, *w = weight + line.tap * R;
        for (int64_t j = 0; j < taps; ++j, values += stride, w += R) {
            typename M::Vector value[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) load<T, M::bytes>(value[v], values + v * M::lanes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < V; ++v) sum[r][v] += w[r] * value[v];
        }
    }
    T part[V * M::lanes];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r, dest += plane) {
        T* to = count == V * M::lanes ? dest : part;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) store<T, M::bytes>(to + v * M::lanes, sum[r][v]);
        if (to == part) std::memcpy(dest, part, count * sizeof(T));
    }
}

// The same for a whole tile, in blocks of V vectors, or fewer where it is narrow. The last one overlaps the one before.
template <typename M, int R, int V = M::vectors, typename T = typename M::Scalar>
LAYERBENCH_INLINE void blocks(const Patches<T>& patches, int64_t taps, int64_t columns, const T* weight, const T* bias,
                              T* dest, int64_t plane) {
    constexpr int64_t width = V * M::lanes;
    if (V > 1 && columns < width) {
        blocks<M, R, (V + 1) / 2>(patches, taps, columns, weight, bias, dest, plane);
    } else {
        for (int64_t next = 0; next < columns; next += width) {
            const int64_t k = std::max<int64_t>(0, std::min(next, columns - width));
            block<M, R, V>(patches, taps, k, weight, bias, dest + k, plane, std::min(width, columns));
        }
    }
}

template <typename M, typename T = typename M::Scalar>
LAYERBENCH_INLINE void gather_rows(const T* source, const T* weight, const T* bias, T* dest, const Gather& g,
                                   int64_t begin, int64_t end) {
    Patches<T> patches(g, M::lanes, M::tile);
    const int64_t plane = g.y.dest * g.x.dest, taps = g.x.taps, weights = g.channels * g.y.taps * taps;
    std::vector<T> packed(g.results * weights);
    for (int64_t r = 0; r < g.results; r += kResults)
        pack(weight, g, r, std::min<int64_t>(kResults, g.results - r), packed.data() + r * weights);
    for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.y.dest, y = row % g.y.dest;
        const T* image = source + n * g.channels * g.y.source * g.x.source;
        for (int64_t x = 0, columns = 0; x < g.x.dest; x += columns) {
            columns = patches.gather(image, y, x);
            for (int64_t r = 0; r < g.results; r += kResults) {
                const T *w = packed.data() + r * weights, *b = bias ? bias + r : nullptr;
                T* to = dest + (n * g.results + r) * plane + y * g.x.dest + x;
                switch (std::min<int64_t>(kResults, g.results - r)) {
                    case 1: blocks<M, 1>(patches, taps, columns, w, b, to, plane); break;
                    case 2: blocks<M, 2>(patches, taps, columns, w, b, to, plane); break;
                    case 3: blocks<M, 3>(patches, taps, columns, w, b, to, plane); break;
                    default: blocks<M, 4>(patches, taps, columns, w, b, to, plane);
                }
            }
        }
    }
}

// sums[r][b] += products of the gradient's line r and the source's row b, lane by lane.
template <typename M, int R, int B, typename T = typename M::Scalar>
LAYERBENCH_INLINE void dots(const T* const* grad, const T* rows, int64_t stride, int64_t columns, T* sums,
                            int64_t weights) {
    typename M::Vector sum[R][B] = {}, value;
    for (int64_t k = 0; k < columns; k += M::lanes) {
        typename M::Vector row[B];
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) load<T, M::bytes>(row[b], rows + b * stride + k);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            load<T, M::bytes>(value, grad[r] + k);
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) sum[r][b] += value * row[b];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) {
            T* to = sums + (r * weights + b) * M::lanes;
            load<T, M::bytes>(value, to);
            store<T, M::bytes>(to, value + sum[r][b]);
        }
}

template <typename M, int R, typename T = typename M::Scalar>
LAYERBENCH_INLINE void all_dots(const T* const* grad, const Patches<T>& patches, int64_t taps, int64_t columns, T* sums,
                                int64_t weights) {
    const int64_t stride = patches.stride();
    for (const auto& line : patches.lines()) {
        T* to = sums + line.tap * M::lanes;
        int64_t j = 0;
        for (; j + kTaps <= taps; j += kTaps)
            dots<M, R, kTaps>(grad, line.values + j * stride, stride, columns, to + j * M::lanes, weights);
        for (; j < taps; ++j)
            dots<M, R, 1>(grad, line.values + j * stride, stride, columns, to + j * M::lanes, weights);
    }
}

template <typename M, typename T = typename M::Scalar>
LAYERBENCH_INLINE void weight_grad_rows(const T* grad, const T* source, T* sums, const Gather& g, int64_t first,
                                        int64_t last, int64_t begin, int64_t end) {
    Patches<T> patches(g, M::lanes, M::tile);
    const int64_t plane = g.y.dest * g.x.dest, weights = g.channels * g.y.taps * g.x.taps, filters = last - first;
    std::vector<T> lanes(filters * weights * M::lanes), padded(filters * M::tile);
    std::vector<const T*> lines(filters);
    for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.y.dest, y = row % g.y.dest;
        const T* image = source + n * g.channels * g.y.source * g.x.source;
        for (int64_t x = 0, count = 0; x < g.x.dest; x += count) {
            count = patches.gather(image, y, x);
            if (patches.direct()) count -= count % M::lanes;
            const int64_t columns = round_up(count, M::lanes);
            for (int64_t r = 0; r < filters; ++r) {
                lines[r] = grad + (n * g.results + first + r) * plane + y * g.x.dest + x;
                if (count == columns) continue;
                T* copy = padded.data() + r * M::tile;
                std::fill(std::copy_n(lines[r], count, copy), copy + columns, T(0));
                lines[r] = copy;
            }
            int64_t r = 0;
            T* to = lanes.data();
            for (; r + M::filters <= filters; r += M::filters, to += M::filters * weights * M::lanes)
                all_dots<M, M::filters>(lines.data() + r, patches, g.x.taps, columns, to, weights);
            for (; r < filters; ++r, to += weights * M::lanes)
                all_dots<M, 1>(lines.data() + r, patches, g.x.taps, columns, to, weights);
        }
    }
    for (int64_t i = 0; i < filters * weights; ++i)
        for (int64_t l = 0; l < M::lanes; ++l) sums[first * weights + i] += lanes[i * M::lanes + l];
}

// One version for every kind of processor.
#define LAYERBENCH_GATHER(VERSION, T, ...)                                                                          \
    VERSION void gather(const T* source, const T* weight, const T* bias, T* dest, const Gather& g, int64_t begin,   \
                        int64_t end) {                                                                              \
        gather_rows<Machine<T, __VA_ARGS__>>(source, weight, bias, dest, g, begin, end);                            \
    }                                                                                                               \
    VERSION void weight_grad(const T* grad, const T* source, T* sums, const Gather& g, int64_t first, int64_t last, \
                             int64_t begin, int64_t end) {                                                          \
        weight_grad_rows<Machine<T, __VA_ARGS__>>(grad, source, sums, g, first, last, begin, end);                  \
    }

#ifdef LAYERBENCH_V4
LAYERBENCH_GATHER(LAYERBENCH_V4, float, 64, 4, 8)
LAYERBENCH_GATHER(LAYERBENCH_V4, double, 64, 4, 8)
#endif
#ifdef LAYERBENCH_V3
LAYERBENCH_GATHER(LAYERBENCH_V3, float, 32, 3, 4)
LAYERBENCH_GATHER(LAYERBENCH_V3, double, 32, 3, 4)
#endif
LAYERBENCH_GATHER(LAYERBENCH_V1, float, 16, 2, 2)
LAYERBENCH_GATHER(LAYERBENCH_V1, double, 16, 2, 2)

}  // namespace

void gather_cpu(const float* source, const float* weight, const float* bias, float* dest, const Gather& g,
                int64_t begin, int64_t end) {
    gather(source, weight, bias, dest, g, begin, end);
}

void gather_cpu(const double* source, const double* weight, const double* bias, double* dest, const Gather& g,
                int64_t begin, int64_t end) {
    gather(source, weight, bias, dest, g, begin, end);
}

void weight_grad_cpu(const float* grad, const float* source, float* sums, const Gather& g, int64_t first, int64_t last,
                     int64_t begin, int64_t end) {
    weight_grad(grad, source, sums, g, first, last, begin, end);
}

void weight_grad_cpu(const double* grad, const double* source, double* sums, const Gather& g, int64_t first,
                     int64_t last, int64_t begin, int64_t end) {
    weight_grad(grad, source, sums, g, first, last, begin, end);
}

}  // namespace layerbench
