#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cpu.h"
#include "kernels.h"

namespace layerbench {
namespace {

constexpr int kFilters = 4;     // results whose sums are kept in registers, each for kColumns columns
constexpr int kTaps = 6;        // taps whose weight gradients are kept in registers, each for kLanes filters
constexpr int64_t kTile = 128;  // destination columns whose source values are gathered at once

template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <typename T>
constexpr int64_t kColumns = 2 * kLanes<T>;

static_assert(kTile % kColumns<float> == 0 && kTile % kColumns<double> == 0, "whole blocks must not outgrow a tile");

// The source position behind a destination position and a tap; -1: outside, or between two positions.
inline int64_t position(const Axis& axis, int64_t dest, int64_t tap) {
    int64_t at = dest * axis.mult + axis.origin + tap * axis.step;
    if (axis.div != 1) {
        if (at % axis.div != 0) return -1;
        at /= axis.div;
    }
    return at >= 0 && at < axis.source ? at : -1;
}

// The source values behind one tile of a destination row: for every tap that reaches the image vertically, a
// zero-filled row as long as the tile (rounded up to whole blocks), and where that tap's weight lies.
template <typename T>
class Patches {
public:
    explicit Patches(const Gather& g) : g_(g), dense_(g.x.mult == 1 && g.x.div == 1) {
        spread_ = (g.x.taps - 1) * std::abs(g.x.step);
        values_.resize(g.channels * g.y.taps * (dense_ ? kTile + spread_ : kTile * g.x.taps));
        rows_.reserve(g.channels * g.y.taps * g.x.taps);
        weights_.reserve(rows_.capacity());
    }

    void gather(const T* image, int64_t y, int64_t x, int64_t columns) {
        rows_.clear();
        weights_.clear();
        T* to = values_.data();
        for (int64_t c = 0; c < g_.channels; ++c) {
            for (int64_t i = 0; i < g_.y.taps; ++i) {
                const int64_t at = position(g_.y, y, i);
                if (at < 0) continue;
                const T* line = image + (c * g_.y.source + at) * g_.x.source;
                to = dense_ ? copy(line, x, columns, to) : pick(line, x, columns, to);
                for (int64_t j = 0; j < g_.x.taps; ++j) weights_.push_back(c * g_.weight_channel + i * g_.x.taps + j);
            }
        }
    }

    int64_t taps() const { return static_cast<int64_t>(rows_.size()); }
    const T* const* rows() const { return rows_.data(); }
    const int64_t* weights() const { return weights_.data(); }

private:
    // Neighbouring columns read neighbouring values, so that the taps can share one copy of the line.
    T* copy(const T* line, int64_t x, int64_t columns, T* to) {
        const int64_t back = std::min<int64_t>(0, (g_.x.taps - 1) * g_.x.step);
        const int64_t length = columns + spread_, start = x + g_.x.origin + back;
        const int64_t first = std::clamp<int64_t>(-start, 0, length);
        const int64_t last = std::clamp<int64_t>(g_.x.source - start, first, length);
        std::fill(to, to + first, T(0));
        std::copy(line + start + first, line + start + last, to + first);
        std::fill(to + last, to + length, T(0));
        for (int64_t j = 0; j < g_.x.taps; ++j) rows_.push_back(to - back + j * g_.x.step);
        return to + length;
    }

    T* pick(const T* line, int64_t x, int64_t columns, T* to) {
        for (int64_t j = 0; j < g_.x.taps; ++j, to += columns) {
            rows_.push_back(to);
            for (int64_t k = 0; k < columns; ++k) {
                const int64_t at = position(g_.x, x + k, j);
                to[k] = at < 0 ? T(0) : line[at];
            }
        }
        return to;
    }

    const Gather& g_;
    bool dense_;
    int64_t spread_;
    std::vector<T> values_;
    std::vector<const T*> rows_;
    std::vector<int64_t> weights_;
};

template <typename T>
LAYERBENCH_INLINE int64_t whole_blocks(int64_t columns) {
    return (columns + kColumns<T> - 1) / kColumns<T> * kColumns<T>;
}

// dest[r][0 .. count) for R results, summed in registers over all taps.
template <typename T, int R>
LAYERBENCH_INLINE void block(const T* const* rows, const int64_t* at, int64_t taps, int64_t column, const T* weight,
                             int64_t weight_result, const T* bias, T* dest, int64_t dest_result, int64_t count) {
    constexpr int64_t lanes = kColumns<T>;
    T sum[R][lanes];
    for (int r = 0; r < R; ++r)
        for (int64_t l = 0; l < lanes; ++l) sum[r][l] = bias ? bias[r] : T(0);
    for (int64_t t = 0; t < taps; ++t) {
        const T* row = rows[t] + column;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const T w = weight[r * weight_result + at[t]];
#pragma omp simd
            for (int64_t l = 0; l < lanes; ++l) sum[r][l] += w * row[l];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int64_t l = 0; l < count; ++l) dest[r * dest_result + l] = sum[r][l];
}

template <typename T>
LAYERBENCH_INLINE void gather_rows(const T* source, const T* weight, const T* bias, T* dest, const Gather& g,
                                   int64_t begin, int64_t end) {
    Patches<T> patches(g);
    const int64_t plane = g.y.dest * g.x.dest;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.y.dest, y = row % g.y.dest;
        const T* image = source + n * g.channels * g.y.source * g.x.source;
        T* line = dest + n * g.results * plane + y * g.x.dest;
        for (int64_t x = 0; x < g.x.dest; x += kTile) {
            const int64_t columns = std::min(kTile, g.x.dest - x);
            patches.gather(image, y, x, whole_blocks<T>(columns));
            for (int64_t r = 0; r < g.results; r += kFilters) {
                const T* w = weight + r * g.weight_result;
                const T* b = bias ? bias + r : nullptr;
                for (int64_t k = 0; k < columns; k += kColumns<T>) {
                    T* to = line + r * plane + x + k;
                    const int64_t count = std::min(kColumns<T>, columns - k);
#define LAYERBENCH_BLOCK(R) \
    block<T, R>(patches.rows(), patches.weights(), patches.taps(), k, w, g.weight_result, b, to, plane, count)
                    switch (std::min<int64_t>(kFilters, g.results - r)) {
                        case 1: LAYERBENCH_BLOCK(1); break;
                        case 2: LAYERBENCH_BLOCK(2); break;
                        case 3: LAYERBENCH_BLOCK(3); break;
                        default: LAYERBENCH_BLOCK(4);
                    }
#undef LAYERBENCH_BLOCK
                }
            }
        }
    }
}

// sums[l][at[b]] += sum over columns of grad[column][l] * rows[b][column], for B taps and up to kLanes filters l.
template <typename T, int B>
LAYERBENCH_INLINE void dots(const T* grad, const T* const* rows, const int64_t* at, int64_t columns, T* sums,
                            int64_t sums_result, int64_t filters) {
    constexpr int64_t lanes = kLanes<T>;
    T sum[B][lanes];
    for (int b = 0; b < B; ++b)
        for (int64_t l = 0; l < lanes; ++l) sum[b][l] = T(0);
    for (int64_t k = 0; k < columns; ++k)
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) {
            const T value = rows[b][k];
#pragma omp simd
            for (int64_t l = 0; l < lanes; ++l) sum[b][l] += value * grad[k * lanes + l];
        }
    for (int b = 0; b < B; ++b)
        for (int64_t l = 0; l < filters; ++l) sums[l * sums_result + at[b]] += sum[b][l];
}

template <typename T>
LAYERBENCH_INLINE void weight_grad_rows(const T* grad, const T* source, T* sums, const Gather& g, int64_t first,
                                        int64_t last, int64_t begin, int64_t end) {
    Patches<T> patches(g);
    const int64_t plane = g.y.dest * g.x.dest;
    std::vector<T> tile(kTile * kLanes<T>);  // of the gradient, as [column][filter]
    for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / g.y.dest, y = row % g.y.dest;
        const T* image = source + n * g.channels * g.y.source * g.x.source;
        const T* line = grad + n * g.results * plane + y * g.x.dest;
        for (int64_t x = 0; x < g.x.dest; x += kTile) {
            const int64_t columns = std::min(kTile, g.x.dest - x);
            patches.gather(image, y, x, columns);
            for (int64_t r = first; r < last; r += kLanes<T>) {
                const int64_t filters = std::min(kLanes<T>, last - r);
                for (int64_t l = 0; l < filters; ++l)
                    for (int64_t k = 0; k < columns; ++k) tile[k * kLanes<T> + l] = line[(r + l) * plane + x + k];
                const T* const* rows = patches.rows();
                const int64_t* at = patches.weights();
                for (int64_t t = 0; t < patches.taps(); t += kTaps) {
#define LAYERBENCH_DOTS(B) \
    dots<T, B>(tile.data(), rows + t, at + t, columns, sums + r * g.weight_result, g.weight_result, filters)
                    switch (std::min<int64_t>(kTaps, patches.taps() - t)) {
                        case 1: LAYERBENCH_DOTS(1); break;
                        case 2: LAYERBENCH_DOTS(2); break;
                        case 3: LAYERBENCH_DOTS(3); break;
                        case 4: LAYERBENCH_DOTS(4); break;
                        case 5: LAYERBENCH_DOTS(5); break;
                        default: LAYERBENCH_DOTS(6);
                    }
#undef LAYERBENCH_DOTS
                }
            }
        }
    }
}

}  // namespace

// Overloads rather than instances, because clones cannot be templates.
#define LAYERBENCH_GATHER(T)                                                                                         \
    LAYERBENCH_CLONES                                                                                                \
    void gather_cpu(const T* source, const T* weight, const T* bias, T* dest, const Gather& g, int64_t begin,        \
                    int64_t end) {                                                                                   \
        gather_rows<T>(source, weight, bias, dest, g, begin, end);                                                   \
    }                                                                                                                \
    LAYERBENCH_CLONES                                                                                                \
    void weight_grad_cpu(const T* grad, const T* source, T* sums, const Gather& g, int64_t first, int64_t last,      \
                         int64_t begin, int64_t end) {                                                               \
        weight_grad_rows<T>(grad, source, sums, g, first, last, begin, end);                                         \
    }

LAYERBENCH_GATHER(float)
LAYERBENCH_GATHER(double)

}  // namespace layerbench
