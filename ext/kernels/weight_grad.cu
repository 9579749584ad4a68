#include "cuda.cuh"

namespace layerbench {

// In weight_grad3x3.cu.
bool fits_weight_grad3x3(Dtype dtype, const Gather& g);
int64_t weight_grad3x3_splits(const Gather& g);
cudaError_t weight_grad3x3_cuda(Dtype dtype, const void* grad, const Strides& by, const void* source, void* sums,
                                const Gather& g, bool bias, cudaStream_t stream);

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

// The bias's gradient is that of one more tap, behind which there is always a one.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(const T* __restrict__ grad, const Strides by, const T* __restrict__ source,
                       wide_t<T>* __restrict__ sums, const Gather g, int64_t splits, bool bias) {
    using W = wide_t<T>;
    __shared__ Tap taps[kTaps];
    __shared__ W partial[kWarps][kFilters * kTaps];
    const int64_t pixels = g.batch * g.y.dest * g.x.dest, weights = g.weight_result, all_taps = weights + bias;
    const int64_t filter_parts = ceil_div(g.results, kFilters), tap_parts = ceil_div(all_taps, kTaps);
    const Position step(kThreads, g);

    for (int64_t part = blockIdx.x; part < splits * filter_parts * tap_parts; part += gridDim.x) {
        const int64_t tap = part % tap_parts * kTaps, filter = part / tap_parts % filter_parts * kFilters;
        const int64_t split = part / tap_parts / filter_parts;
        const int64_t begin = pixels * split / splits, end = pixels * (split + 1) / splits;
        if (threadIdx.x < kTaps) taps[threadIdx.x] = make_tap(g, max(min(tap + threadIdx.x, weights - 1), int64_t(0)));
        __syncthreads();

        W sum[kFilters][kTaps] = {};
        Position at(begin + threadIdx.x, g);
        for (int64_t pixel = begin + threadIdx.x; pixel < end; pixel += kThreads, at.step(step, g)) {
            const T* from = grad + at.n * by.batch + filter * by.channel + at.y * by.y + at.x * by.x;
            const int y = int(at.y * g.y.mult + g.y.origin), x = int(at.x * g.x.mult + g.x.origin);
            const T* image = source + at.n * g.channels * g.y.source * g.x.source;
            const int64_t base = y * g.x.source + x;
            W slope[kFilters];
#pragma unroll
            for (int r = 0; r < kFilters; ++r) slope[r] = filter + r < g.results ? widen(from[r * by.channel]) : W(0);
#pragma unroll
            for (int t = 0; t < kTaps; ++t) {
                const bool inside = tap + t < weights && unsigned(y + taps[t].y) < unsigned(g.y.source) &&
                                    unsigned(x + taps[t].x) < unsigned(g.x.source);
                const W value = inside ? widen(image[base + taps[t].offset]) : W(tap + t == weights);
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

constexpr int kAdders = 16;  // threads that share the splits of one sum

template <typename T>
__global__ void __launch_bounds__(32 * kAdders)
    add_splits_kernel(const wide_t<T>* __restrict__ sums, T* __restrict__ weight, T* __restrict__ bias, int64_t results,
                      int64_t taps, int64_t splits) {
    __shared__ wide_t<T> partial[kAdders][32];
    const int64_t row = taps + (bias != nullptr), all = results * row;
    for (int64_t first = int64_t(blockIdx.x) * 32; first < all; first += int64_t(gridDim.x) * 32) {
        const int64_t at = first + threadIdx.x;
        wide_t<T> total = 0;
        if (at < all)
            for (int64_t split = threadIdx.y; split < splits; split += kAdders) total += sums[split * all + at];
        partial[threadIdx.y][threadIdx.x] = total;
        __syncthreads();
        if (threadIdx.y == 0 && at < all) {
            for (int i = 1; i < kAdders; ++i) total += partial[i][threadIdx.x];
            T* to = at % row < taps ? weight + at / row * taps + at % row : bias + at / row;
            *to = narrow<T>(total);
        }
        __syncthreads();
    }
}

int64_t parts(const Gather& g, bool bias) {
    return ceil_div(g.results, kFilters) * ceil_div(g.weight_result + bias, kTaps);
}

int64_t splits_of(Dtype dtype, const Gather& g, bool bias) {
    if (fits_weight_grad3x3(dtype, g)) return weight_grad3x3_splits(g);
    const int64_t pixels = g.batch * g.y.dest * g.x.dest, most = ceil_div(pixels, kThreads * kLeast);
    return std::max<int64_t>(1, std::min(most, kBlocks / std::max<int64_t>(1, parts(g, bias))));
}

}  // namespace

int64_t weight_grad_sums(Dtype dtype, const Gather& g, bool bias) {
    return splits_of(dtype, g, bias) * g.results * (g.weight_result + bias);
}

cudaError_t weight_grad_cuda(Dtype dtype, const void* grad, const Strides& by, const void* source, void* sums,
                             void* weight, void* bias, const Gather& g, cudaStream_t stream) {
    const int64_t splits = splits_of(dtype, g, bias), results = g.results * (g.weight_result + (bias != nullptr));
    if (results == 0) return cudaSuccess;
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        auto* wide = static_cast<wide_t<T>*>(sums);
        cudaError_t error = cudaSuccess;
        if (fits_weight_grad3x3(dtype, g)) {
            error = weight_grad3x3_cuda(dtype, grad, by, source, sums, g, bias, stream);
        } else {
            weight_grad_kernel<T><<<grid(splits * parts(g, bias)), kThreads, 0, stream>>>(
                static_cast<const T*>(grad), by, static_cast<const T*>(source), wide, g, splits, bias);
            error = cudaGetLastError();
        }
        if (error) return error;
        add_splits_kernel<T><<<grid(ceil_div(results, 32)), dim3(32, kAdders), 0, stream>>>(
            wide, static_cast<T*>(weight), static_cast<T*>(bias), g.results, g.weight_result, splits);
        return cudaGetLastError();
    });
}

}  // namespace layerbench
