#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kFilters = 8, kTaps = 9;  // a block sums the products of these
constexpr int64_t kBlocks = 1024;       // wanted in all: a constant, so that sums come out the same on every GPU
constexpr int64_t kLeast = 8;           // pixels worth a thread

// A position in the output, and how to step it by kThreads without dividing.
struct Position {
    int64_t n, y, x;

    __device__ Position(int64_t at, const Gather& g)
        : n(at / g.x.dest / g.y.dest), y(at / g.x.dest % g.y.dest), x(at % g.x.dest) {}

    __device__ void step(const Position& by, const Gather& g) {
        n += by.n;
        y += by.y;
        x += by.x;
        if (x >= g.x.dest) x -= g.x.dest, ++y;
        if (y >= g.y.dest) y -= g.y.dest, ++n;
    }
};

template <typename W>
__device__ __forceinline__ W warp_sum(W value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(0xffffffff, value, lane);
    return value;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(const T* __restrict__ grad, const T* __restrict__ source, wide_t<T>* __restrict__ sums,
                       const Gather g, int64_t splits) {
    using W = wide_t<T>;
    __shared__ Tap taps[kTaps];
    __shared__ W partial[kWarps][kFilters * kTaps];
    const int64_t plane = g.y.dest * g.x.dest, pixels = g.batch * plane, all_taps = g.weight_result;
    const int64_t filter_parts = ceil_div(g.results, kFilters), tap_parts = ceil_div(all_taps, kTaps);
    const Position step(kThreads, g);

    for (int64_t part = blockIdx.x; part < splits * filter_parts * tap_parts; part += gridDim.x) {
        const int64_t tap = part % tap_parts * kTaps, filter = part / tap_parts % filter_parts * kFilters;
        const int64_t split = part / tap_parts / filter_parts;
        const int64_t begin = pixels * split / splits, end = pixels * (split + 1) / splits;
        if (threadIdx.x < kTaps) taps[threadIdx.x] = make_tap(g, min(tap + threadIdx.x, all_taps - 1));
        __syncthreads();

        W sum[kFilters][kTaps] = {};
        Position at(begin + threadIdx.x, g);
        for (int64_t pixel = begin + threadIdx.x; pixel < end; pixel += kThreads, at.step(step, g)) {
            const T* from = grad + (at.n * g.results + filter) * plane + at.y * g.x.dest + at.x;
            const int y = int(at.y * g.y.mult + g.y.origin), x = int(at.x * g.x.mult + g.x.origin);
            const T* image = source + at.n * g.channels * g.y.source * g.x.source;
            const int64_t base = y * g.x.source + x;
            W slope[kFilters];
#pragma unroll
            for (int r = 0; r < kFilters; ++r) slope[r] = filter + r < g.results ? widen(from[r * plane]) : W(0);
#pragma unroll
            for (int t = 0; t < kTaps; ++t) {
                const bool inside = unsigned(y + taps[t].y) < unsigned(g.y.source) &&
                                    unsigned(x + taps[t].x) < unsigned(g.x.source);
                const W value = inside ? widen(image[base + taps[t].offset]) : W(0);
#pragma unroll
                for (int r = 0; r < kFilters; ++r) sum[r][t] += slope[r] * value;
            }
        }

#pragma unroll
        for (int r = 0; r < kFilters; ++r)
#pragma unroll
            for (int t = 0; t < kTaps; ++t) {
                const W total = warp_sum(sum[r][t]);
                if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][r * kTaps + t] = total;
            }
        __syncthreads();
        const int r = threadIdx.x / kTaps, t = threadIdx.x % kTaps;
        if (r < kFilters && filter + r < g.results && tap + t < all_taps) {
            W total = 0;
            for (int warp = 0; warp < kWarps; ++warp) total += partial[warp][threadIdx.x];
            sums[(split * g.results + filter + r) * all_taps + tap + t] = total;
        }
        __syncthreads();  // before the next part overwrites what is shared
    }
}

int64_t parts(const Gather& g) { return ceil_div(g.results, kFilters) * ceil_div(g.weight_result, kTaps); }

}  // namespace

int64_t weight_grad_splits(const Gather& g) {
    const int64_t pixels = g.batch * g.y.dest * g.x.dest, most = ceil_div(pixels, kThreads * kLeast);
    return std::max<int64_t>(1, std::min(most, kBlocks / std::max<int64_t>(1, parts(g))));
}

cudaError_t weight_grad_cuda(Dtype dtype, const void* grad, const void* source, void* sums, const Gather& g,
                             cudaStream_t stream) {
    const int64_t splits = weight_grad_splits(g), blocks = splits * parts(g);
    if (blocks == 0) return cudaSuccess;
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        weight_grad_kernel<T><<<grid(blocks), kThreads, 0, stream>>>(
            static_cast<const T*>(grad), static_cast<const T*>(source), static_cast<wide_t<T>*>(sums), g, splits);
        return cudaGetLastError();
    });
}

}  // namespace layerbench
