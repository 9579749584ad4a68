// Where the CPU convolutions find the source values behind a tile of a destination row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace layerbench {

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The source position behind a destination position and a tap; -1: outside, or between two positions.
inline int64_t position(const Axis& axis, int64_t dest, int64_t tap) {
    const int64_t at = dest * axis.mult + axis.origin + tap * axis.step;
    if (at % axis.div != 0) return -1;
    return at >= 0 && at / axis.div < axis.source ? at / axis.div : -1;
}

// The source values behind one tile of a destination row: a line for every channel and tap that reaches the image.
template <typename T>
class Patches {
public:
    struct Line {
        const T* values;  // behind the first tap, one for each column; those of the next tap are stride() further
        int64_t tap;      // the first tap's number among channels * taps
    };

    Patches(const Gather& g, int64_t lanes, int64_t tile) : g_(g), lanes_(lanes), tile_(tile) {
        if (g.x.mult == 1 && g.x.div == 1) {
            const auto [left, right] = std::minmax<int64_t>({0, (g.x.taps - 1) * g.x.step});
            first_ = std::max<int64_t>(0, -g.x.origin - left);
            last_ = std::clamp<int64_t>(g.x.source - g.x.origin - right, 0, g.x.dest);
            // Rather one copied tile than three that are narrow.
            if (last_ - first_ < std::min(g.x.dest, tile / 4)) first_ = last_ = -1;
        }
        copies_.resize(g.channels * g.y.taps * g.x.taps * (last_ < 0 ? tile : lanes));
        lines_.reserve(g.channels * g.y.taps);
    }

    // Finds the lines behind the tile at row y and column x, and returns its columns. Where no column needs a zero, at
    // least a vector is read where it lies; else copies are, with zeros up to a whole vector.
    int64_t gather(const T* image, int64_t y, int64_t x) {
        direct_ = x >= first_ && x + lanes_ <= last_;
        const int64_t end = direct_ ? last_ : x < first_ && first_ + lanes_ <= last_ ? first_ : g_.x.dest;
        const int64_t columns = std::min(end - x, direct_ || last_ < 0 ? tile_ : lanes_);
        stride_ = direct_ ? g_.x.step : round_up(columns, lanes_);
        lines_.clear();
        T* free = copies_.data();
        for (int64_t i = 0; i < g_.y.taps; ++i) {
            const int64_t at = position(g_.y, y, i);
            if (at < 0) continue;
            for (int64_t c = 0; c < g_.channels; ++c) {
                const T* line = image + (c * g_.y.source + at) * g_.x.source;
                lines_.push_back({direct_ ? line + x + g_.x.origin : free, (c * g_.y.taps + i) * g_.x.taps});
                if (!direct_) free = copy(line, x, columns, free);
            }
        }
        return columns;
    }

    bool direct() const { return direct_; }
    const std::vector<Line>& lines() const { return lines_; }
    int64_t stride() const { return stride_; }

private:
    T* copy(const T* line, int64_t x, int64_t columns, T* to) const {
        const Axis& a = g_.x;
        for (int64_t j = 0; j < a.taps; ++j, to += stride_) {
            std::fill(to, to + stride_, T(0));
            int64_t k = 0, at = x * a.mult + a.origin + j * a.step;
            if (at < 0) k = std::min(columns, (a.mult - 1 - at) / a.mult);
            at += k * a.mult;
            while (k < columns && a.div > 1 && at % a.div != 0) ++k, at += a.mult;
            at /= a.div;
            const T* from = line + at;
            T* into = to + k;
            const int64_t count = std::min((columns - k + a.div - 1) / a.div, (a.source - at + a.mult - 1) / a.mult);
            if (a.div == 1 && a.mult == 1) {
                for (int64_t i = 0; i < count; ++i) into[i] = from[i];
            } else if (a.div == 1 && a.mult == 2) {
                for (int64_t i = 0; i < count; ++i) into[i] = from[i * 2];  // compilers know how to halve a vector
            } else {
                for (int64_t i = 0; i < count; ++i) into[i * a.div] = from[i * a.mult];
            }
        }
        return to;
    }

    const Gather& g_;
    int64_t lanes_, tile_;
    int64_t first_ = -1, last_ = -1;  // columns of which no tap needs a zero; none where the columns are not neighbours
    int64_t stride_ = 0;
    bool direct_ = false;
    std::vector<T> copies_;
    std::vector<Line> lines_;
};

}  // namespace layerbench
