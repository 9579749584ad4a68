// The convolution of few channels by 3x3 windows that move by one: every source value is loaded into a register once
// for all the pixels and results of a thread that it takes part in.
#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
// Of a thread: neighbouring rows, and columns 32 apart, so that warps load and store whole lines.
constexpr int kRows = 4, kColumns = 2, kHeight = kRows * kWarps, kWidth = 32 * kColumns;
constexpr int kWindow = 3, kTaps = kWindow * kWindow;
constexpr int kMost = 32;     // channels, whose weights must fit, and results
constexpr int kGrid = 65535;  // of blocks, but for the first dimension

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

// A block's width or height at least, in windows that move by one.
bool fits(const Axis& a, int64_t least) {
    return a.taps == kWindow && a.mult == 1 && a.div == 1 && (a.step == 1 || a.step == -1) && a.dest >= least;
}

template <typename T, int R>
cudaError_t launch(const void* source, const void* weight, const void* bias, void* dest, const Gather& g,
                   cudaStream_t stream) {
    const dim3 blocks(unsigned(ceil_div(g.x.dest, kWidth)), unsigned(ceil_div(g.y.dest, kHeight)),
                      unsigned(g.batch * ceil_div(g.results, R)));
    const auto inside = [](const Axis& a) { return a.origin == 0 && a.step > 0; };
    const auto run = [&](auto kernel) {
        kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(source), static_cast<const T*>(weight),
                                                static_cast<const T*>(bias), static_cast<T*>(dest), g);
        return cudaGetLastError();
    };
    return inside(g.y) && inside(g.x) ? run(gather3x3_kernel<T, R, false>) : run(gather3x3_kernel<T, R, true>);
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
            return g.results <= 4 ? launch<T, 4>(source, weight, bias, dest, g, stream)
                                  : launch<T, 8>(source, weight, bias, dest, g, stream);
        }
    });
}

}  // namespace layerbench
