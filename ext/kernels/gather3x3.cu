// The convolution of few channels by 3x3 windows that move by one: every source value is loaded into a register once
// for all the pixels and results of a thread that it takes part in.
#include <type_traits>

#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
// Of a thread: neighbouring rows, and columns 32 apart, so that warps load and store whole lines.
constexpr int kRows = 4, kColumns = 2, kHeight = kRows * kWarps, kWidth = 32 * kColumns;
constexpr int kWindow = 3, kTaps = kWindow * kWindow;
constexpr int kMost = 32;                                   // channels, whose weights must fit, and results
constexpr int kFew = 4;                                     // channels, whose values fit a thread's registers
constexpr int64_t kBlocksWanted = 264, kCached = 64 << 20;  // blocks for a large GPU; bytes that its L2 may hold
constexpr int kGrid = 65535;                                // of blocks, but for the first dimension

// A block makes 16 rows x 64 columns of R results of an image. The last ones lie so that they end with the image, and
// make a part of it twice: no thread needs to ask whether a pixel exists.
template <typename T, int R, bool kPadded>
__global__ void __launch_bounds__(kThreads, 4)
    gather3x3_kernel(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                     T* __restrict__ dest, const Gather g) {
    __shared__ alignas(16) float weights[kMost * kTaps][R];
    const int channels = int(g.channels), width = int(g.x.source), height = int(g.y.source);
    const int parts = (int(g.results) + R - 1) / R, n = blockIdx.z / parts, result = blockIdx.z % parts * R;
    // Backwards steps read the window backwards.
    const bool flip_y = g.y.step < 0, flip_x = g.x.step < 0;
    for (int i = threadIdx.x; i < channels * kTaps * R; i += kThreads) {
        const int r = i % R, t = i / R % kTaps, c = i / R / kTaps;
        const int ty = flip_y ? kWindow - 1 - t / kWindow : t / kWindow;
        const int tx = flip_x ? kWindow - 1 - t % kWindow : t % kWindow;
        const int at = (result + r) * int(g.weight_result) + c * int(g.weight_channel) + ty * kWindow + tx;
        weights[c * kTaps + t][r] = widen(load_if(result + r < g.results, weight, at));
    }
    __syncthreads();

    const int y0 = min(int(blockIdx.y) * kHeight + int(threadIdx.x) / 32 * kRows, int(g.y.dest) - kRows);
    const int x0 = min(int(blockIdx.x) * kWidth, int(g.x.dest) - kWidth) + int(threadIdx.x) % 32;
    const int top = y0 + int(g.y.origin) - (flip_y ? kWindow - 1 : 0);
    const int left = x0 + int(g.x.origin) - (flip_x ? kWindow - 1 : 0);
    const int64_t plane = g.y.source * g.x.source;
    const T* from = source + n * channels * plane + int64_t(top) * width + left;

    float sum[kRows][kColumns][R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const float start = bias && result + r < g.results ? widen(bias[result + r]) : 0.f;
#pragma unroll
        for (int i = 0; i < kRows * kColumns; ++i) sum[i / kColumns][i % kColumns][r] = start;
    }

#pragma unroll 1
    for (int c = 0; c < channels; ++c, from += plane) {
        float value[kRows + kWindow - 1][kColumns][kWindow];
        const T* row = from;
#pragma unroll
        for (int i = 0; i < kRows + kWindow - 1; ++i, row += width)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
#pragma unroll
                for (int k = 0; k < kWindow; ++k) {
                    const bool there =
                        unsigned(top + i) < unsigned(height) & unsigned(left + 32 * j + k) < unsigned(width);
                    value[i][j][k] = widen(kPadded ? load_if(there, row + 32 * j + k) : row[32 * j + k]);
                }
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
            float w[R];
#pragma unroll
            for (int r = 0; r < R; r += 4) {
                const float4 four = *reinterpret_cast<const float4*>(&weights[c * kTaps + t][r]);
                w[r] = four.x, w[r + 1] = four.y, w[r + 2] = four.z, w[r + 3] = four.w;
            }
#pragma unroll
            for (int i = 0; i < kRows; ++i)
#pragma unroll
                for (int j = 0; j < kColumns; ++j)
#pragma unroll
                    for (int r = 0; r < R; ++r) sum[i][j][r] += value[i + t / kWindow][j][t % kWindow] * w[r];
        }
    }

    T* to = dest + ((n * g.results + result) * g.y.dest + y0) * g.x.dest + x0;
#pragma unroll
    for (int r = 0; r < R; ++r, to += g.y.dest * g.x.dest) {
        if (result + r >= g.results) break;
        T* row = to;
#pragma unroll
        for (int i = 0; i < kRows; ++i, row += g.x.dest)
#pragma unroll
            for (int j = 0; j < kColumns; ++j) row[32 * j] = narrow<T>(sum[i][j][r]);
    }
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
    T first, second;
};

// to = from, one value: floats past the registers where the GPU can, so that the thread goes on.
template <typename T>
__device__ __forceinline__ void stage(float* to, const T* from) {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, float>) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
                     "l"(from));
        return;
    }
#endif
    *to = widen(*from);
}

__device__ __forceinline__ void wait_for_staged() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

// The same tile of few channels, without borders: a thread keeps the source values of 4 rows x 2 neighbouring columns,
// loads and stores in pairs, and makes one result after the other. So stores are under way all the time, and the code
// of a result, little as it is, is fetched once.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kThreads, 4)
    gather3x3_few_kernel(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                         T* __restrict__ dest, const Gather g, int parts) {
    constexpr int kCount = 1 + kChannels * kTaps;  // of a result: its bias, then its weights
    __shared__ alignas(16) float weights[kMost][(kCount + 3) / 4 * 4];
    const int part = blockIdx.z % parts, first = int(g.results) * part / parts,
              results = int(g.results) * (part + 1) / parts - first;
#pragma unroll 1
    for (int i = threadIdx.x; i < results * kCount; i += kThreads) {
        const int r = i / kCount, at = i % kCount, c = (at - 1) / kTaps, t = (at - 1) % kTaps;
        const T* from = at == 0 ? bias : weight + c * int(g.weight_channel) + t;
        const int by = at == 0 ? 1 : int(g.weight_result);
        if (from) {
            stage(&weights[r][at], from + (first + r) * by);
        } else {
            weights[r][at] = 0;
        }
    }

    const int y0 = min(int(blockIdx.y) * kHeight + int(threadIdx.x) / 32 * kRows, int(g.y.dest) - kRows);
    const int x0 = min(int(blockIdx.x) * kWidth, int(g.x.dest) - kWidth) + int(threadIdx.x) % 32 * kColumns;
    const int64_t n = blockIdx.z / parts, width = g.x.source;
    const T* row = source + n * kChannels * g.y.source * width + y0 * width + x0;
    float value[kChannels][kRows + kWindow - 1][kColumns + kWindow - 1];
#pragma unroll
    for (int c = 0; c < kChannels; ++c, row += (g.y.source - (kRows + kWindow - 1)) * width)
#pragma unroll
        for (int i = 0; i < kRows + kWindow - 1; ++i, row += width)
#pragma unroll
            for (int k = 0; k < kColumns + kWindow - 1; k += 2) {
                const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(row + k);
                value[c][i][k] = widen(pair.first), value[c][i][k + 1] = widen(pair.second);
            }
    wait_for_staged();

    T* to = dest + ((n * g.results + first) * g.y.dest + y0) * g.x.dest + x0;
#pragma unroll 1
    for (int r = 0; r < results; ++r, to += g.y.dest * g.x.dest) {
        float sum[kRows][kColumns];
#pragma unroll
        for (int at = 0; at < kCount; ++at) {
            // The compiler makes a load of four.
            const float w = weights[r][at];
            const int c = (at - 1) / kTaps, t = (at - 1) % kTaps;
#pragma unroll
            for (int i = 0; i < kRows; ++i)
#pragma unroll
                for (int j = 0; j < kColumns; ++j)
                    sum[i][j] = at == 0 ? w : sum[i][j] + value[c][i + t / kWindow][j + t % kWindow] * w;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            *reinterpret_cast<Pair<T>*>(to + i * g.x.dest) = {narrow<T>(sum[i][0]), narrow<T>(sum[i][1])};
    }
}

// A block's width or height at least, in windows that move by one.
bool fits(const Axis& a, int64_t least) {
    return a.taps == kWindow && a.mult == 1 && a.div == 1 && (a.step == 1 || a.step == -1) && a.dest >= least;
}

// Whether every row of both images can be read in pairs.
template <typename T>
bool paired(const void* source, const void* dest, const Gather& g) {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(Pair<T>) == 0; };
    return g.x.source % 2 == 0 && g.x.dest % 2 == 0 && aligned(source) && aligned(dest);
}

// Into how many parts the results of few channels go, each a block's: enough blocks for a large GPU. What the L2 cannot
// hold goes to memory sooner if a block writes to few planes.
int64_t few_parts(const Gather& g, int64_t itemsize) {
    const int64_t tiles = g.batch * ceil_div(g.x.dest, kWidth) * ceil_div(g.y.dest, kHeight);
    const bool cached = g.batch * g.results * g.y.dest * g.x.dest * itemsize <= kCached;
    const int64_t parts =
        cached ? std::min(kBlocksWanted / tiles, ceil_div(g.results, 4)) : ceil_div(g.results, 2 * g.channels);
    return std::clamp<int64_t>(parts, 1, kGrid / g.batch);
}

template <typename T>
cudaError_t launch(const void* source, const void* weight, const void* bias, void* dest, const Gather& g,
                   cudaStream_t stream) {
    const auto run = [&](auto kernel, int64_t parts, auto... more) {
        const dim3 blocks(unsigned(ceil_div(g.x.dest, kWidth)), unsigned(ceil_div(g.y.dest, kHeight)),
                          unsigned(g.batch * parts));
        kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(source), static_cast<const T*>(weight),
                                                static_cast<const T*>(bias), static_cast<T*>(dest), g, more...);
        return cudaGetLastError();
    };
    const bool plain = inside(g.y) && inside(g.x);
    if (g.channels >= 1 && g.channels <= kFew && plain && paired<T>(source, dest, g)) {
        const int64_t parts = few_parts(g, sizeof(T));
        switch (g.channels) {
            case 1: return run(gather3x3_few_kernel<T, 1>, parts, int(parts));
            case 2: return run(gather3x3_few_kernel<T, 2>, parts, int(parts));
            case 3: return run(gather3x3_few_kernel<T, 3>, parts, int(parts));
            default: return run(gather3x3_few_kernel<T, kFew>, parts, int(parts));
        }
    }
    if (g.results <= 4) return run(plain ? gather3x3_kernel<T, 4, false> : gather3x3_kernel<T, 4, true>, 1);
    return run(plain ? gather3x3_kernel<T, 8, false> : gather3x3_kernel<T, 8, true>, ceil_div(g.results, 8));
}

}  // namespace

bool fits_gather3x3(Dtype dtype, const Gather& g) {
    return dtype != Dtype::f64 && fits(g.y, kRows) && fits(g.x, kWidth) && g.channels <= kMost && g.results <= kMost &&
           g.batch * ceil_div(g.results, 4) <= kGrid && ceil_div(g.y.dest, kHeight) <= kGrid;
}

cudaError_t gather3x3_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                           const Gather& g, cudaStream_t stream) {
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        if constexpr (sizeof(T) > 4) {
            return cudaErrorInvalidValue;
        } else {
            return launch<T>(source, weight, bias, dest, g, stream);
        }
    });
}

}  // namespace layerbench
