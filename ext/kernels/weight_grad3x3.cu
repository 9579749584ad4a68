// The weight and bias gradient of a convolution of few channels by 3x3 windows that move by one. A thread goes down a
// column: of the window's nine source values six stay in registers from row to row. Every launch fetches its code anew,
// so what is short is fast: the loop over rows is not unrolled, though values then move between registers.
#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kFilters = 8, kWindow = 3, kTaps = kWindow * kWindow;
constexpr int kSums = kFilters * (kTaps + 1);  // the last are the bias's
constexpr int kMostChannels = 4;
constexpr int64_t kWarpsWanted = 1536, kLeastRows = 8;  // constants, so that sums come out the same on every GPU

// How the work is split: every warp takes 32 columns of a strip of rows, of one channel and kFilters filters. The warps
// of a block differ in channel, so that they find the gradient in the L1, and in columns.
struct Split {
    int filters, groups, across, rows, strips;
    int64_t blocks;
    explicit Split(const Gather& g)
        : filters(int(ceil_div(g.results, kFilters))),
          groups(8 / int(g.channels)),
          across(int(ceil_div(g.x.dest, 32 * groups))) {
        const int64_t warps = g.batch * ceil_div(g.x.dest, 32) * g.channels * filters;
        rows = int(std::max(kLeastRows, ceil_div(g.y.dest, ceil_div(kWarpsWanted, std::max<int64_t>(warps, 1)))));
        strips = int(ceil_div(g.y.dest, rows));
        blocks = g.batch * strips * across;
    }
};

// The sums of `value` over a warp: lane l holds those from its first() on, size() of them, in value[0 .. 3). A step
// sends away one half of what is left and keeps the other: 80 shuffles instead of 5 * 80.
struct WarpSums {
    int first = 0, size = kSums;
    template <int kLeft>
    __device__ __forceinline__ void reduce(float (&value)[kSums], int lane) {
        constexpr int half = (kLeft + 1) / 2, offset = kLeft == kSums ? 16
                                                       : kLeft == 40  ? 8
                                                       : kLeft == 20  ? 4
                                                       : kLeft == 10  ? 2
                                                                      : 1;
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float other = i + half < kLeft ? value[i + half] : 0.f;
            const float send = upper ? value[i] : other, keep = upper ? other : value[i];
            value[i] = keep + __shfl_xor_sync(0xffffffff, send, offset);
        }
        if (upper) first += half;
        if constexpr (offset > 1) reduce<half>(value, lane);
    }
};
static_assert(kSums == 80, "the steps above are 80, 40, 20, 10 and 5");

template <typename T>
__global__ void __launch_bounds__(256, 2)
    weight_grad3x3_kernel(const T* __restrict__ grad, const Strides by, const T* __restrict__ source,
                          float* __restrict__ sums, const __grid_constant__ Gather g,
                          const __grid_constant__ Split split, bool bias) {
    __shared__ float partial[8][kMostChannels][kSums];
    const int lane = threadIdx.x, channel = threadIdx.y, group = threadIdx.z, filter = blockIdx.y * kFilters;
    const int part = blockIdx.x, n = part / split.across / split.strips;
    const int y0 = part / split.across % split.strips * split.rows, y1 = min(y0 + split.rows, int(g.y.dest));
    const int x = (part % split.across * split.groups + group) * 32 + lane;
    const bool here = x < g.x.dest;
    // Of the source only what these pixels see: beside it zero, for no slope of zero makes an infinity nothing.
    const int top = y0 + int(g.y.origin), left = x + int(g.x.origin), filters = here ? int(g.results) - filter : 0,
              width = here ? int(g.x.source) : 0, height = min(int(g.y.source), max(y1 - y0 + top + kWindow - 1, 0));
    const T* image = source + ((int64_t(n) * g.channels + channel) * g.y.source + top) * g.x.source + left;
    const T* from = grad + n * by.batch + filter * by.channel + y0 * by.y + x * by.x;

    float sum[kSums] = {}, value[kWindow + 1][kWindow], slope[kFilters];
    int next = top;
    const auto load_row = [&](float (&to)[kWindow]) {
        const bool inside = unsigned(next) < unsigned(height);
#pragma unroll
        for (int k = 0; k < kWindow; ++k)
            to[k] = widen(load_if(inside & (unsigned(left + k) < unsigned(width)), image, k));
        ++next, image += g.x.source;
    };
    const auto load_slopes = [&](float (&to)[kFilters]) {
        const T* at = from;
#pragma unroll
        for (int r = 0; r < kFilters; ++r, at += by.channel) to[r] = widen(load_if(r < filters, at));
    };
#pragma unroll
    for (int i = 0; i < kWindow; ++i) load_row(value[i]);
    load_slopes(slope);
#pragma unroll 1
    for (int y = y0; y < y1; ++y) {
        // The next row and the next slopes are under way while these are added.
        float ahead[kFilters];
        load_row(value[kWindow]);
        if (y + 1 < y1) from += by.y;  // never beyond: the last are loaded twice
        load_slopes(ahead);
#pragma unroll
        for (int r = 0; r < kFilters; ++r) {
            const float s = slope[r];
#pragma unroll
            for (int t = 0; t < kTaps; ++t) sum[r * kTaps + t] += s * value[t / kWindow][t % kWindow];
            sum[kFilters * kTaps + r] += s;
            slope[r] = ahead[r];
        }
#pragma unroll
        for (int i = 0; i < kWindow; ++i)
#pragma unroll
            for (int k = 0; k < kWindow; ++k) value[i][k] = value[i + 1][k];
    }

    WarpSums in;
    in.reduce<kSums>(sum, lane);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        // The last step halved five: three here, two there.
        if (i < (lane & 1 ? 2 : 3)) partial[group][channel][in.first + i] = sum[i];
    }
    __syncthreads();
    const int64_t taps = g.channels * kTaps, row = taps + bias;
    const int threads = 32 * blockDim.y * blockDim.z;
#pragma unroll 1
    for (int i = lane + 32 * (channel + blockDim.y * group); i < kSums * g.channels; i += threads) {
        const int c = i / kSums, at = i % kSums;
        float total = 0;
#pragma unroll 1
        for (int other = 0; other < split.groups; ++other) total += partial[other][c][at];
        const int r = at < kFilters * kTaps ? at / kTaps : at - kFilters * kTaps;
        if (filter + r >= g.results) continue;
        float* to = sums + (int64_t(part) * g.results + filter + r) * row;
        if (at < kFilters * kTaps) {
            to[c * kTaps + at % kTaps] = total;
        } else if (bias && c == 0) {
            to[taps] = total;
        }
    }
}

}  // namespace

bool fits_weight_grad3x3(Dtype dtype, const Gather& g) {
    const auto fits = [](const Axis& a) { return a.taps == kWindow && a.mult == 1 && a.step == 1 && a.div == 1; };
    return dtype != Dtype::f64 && fits(g.y) && fits(g.x) && g.channels >= 1 && g.channels <= kMostChannels &&
           g.results <= 8 * kFilters;
}

int64_t weight_grad3x3_splits(const Gather& g) { return Split(g).blocks; }

cudaError_t weight_grad3x3_cuda(Dtype dtype, const void* grad, const Strides& by, const void* source, void* sums,
                                const Gather& g, bool bias, cudaStream_t stream) {
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        if constexpr (sizeof(T) > 4) {
            return cudaErrorInvalidValue;
        } else {
            const Split split(g);
            if (split.blocks == 0) return cudaSuccess;
            const dim3 blocks(unsigned(split.blocks), unsigned(split.filters)),
                threads(32, unsigned(g.channels), unsigned(split.groups));
            weight_grad3x3_kernel<T><<<blocks, threads, 0, stream>>>(static_cast<const T*>(grad), by,
                                                                     static_cast<const T*>(source),
                                                                     static_cast<float*>(sums), g, split, bias);
            return cudaGetLastError();
        }
    });
}

}  // namespace layerbench
