#include "cuda.cuh"

namespace layerbench {

// In gather3x3.cu and gather_mma.cu.
bool fits_gather3x3(Dtype dtype, const Gather& g);
cudaError_t gather3x3_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                           const Gather& g, cudaStream_t stream);
bool fits_gather_mma(Dtype dtype, const Gather& g);
int64_t gather_mma_scratch(Dtype dtype, const Gather& g);
cudaError_t gather_mma_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                            float* scratch, const Gather& g, cudaStream_t stream);

namespace {

constexpr int kThreads = 128;
constexpr int kPixels = 4;                  // destination pixels of a thread
constexpr int kTaps = 64;                   // taps whose weights lie in shared memory at once
constexpr int kAhead = 3;                   // taps whose loads are under way together
enum Reach { kInside, kPadded, kStrided };  // taps may leave the source; and may fall between its positions

// The source value behind a pixel and a tap; `y` and `x` are where the pixel's first tap lies.
template <typename T, Reach reach>
__device__ __forceinline__ wide_t<T> fetch(const T* image, const Gather& g, int64_t base, int y, int x,
                                           const Tap& tap) {
    if (reach == kInside) return widen(image[base + tap.offset]);
    y += tap.y;
    x += tap.x;
    if (reach == kPadded) {
        const bool inside = unsigned(y) < unsigned(g.y.source) && unsigned(x) < unsigned(g.x.source);
        return inside ? widen(image[base + tap.offset]) : wide_t<T>(0);
    }
    const int dy = int(g.y.div), dx = int(g.x.div);
    if (y < 0 || x < 0 || y % dy != 0 || x % dx != 0) return 0;
    y /= dy;
    x /= dx;
    if (y >= g.y.source || x >= g.x.source) return 0;
    return widen(image[tap.offset + y * g.x.source + x]);
}

// Blocks that must fit a multiprocessor: bounds the registers.
template <typename T, int R>
constexpr int kResident = (R > 4 ? 16 : 32) / sizeof(wide_t<T>);

// A block makes kThreads * kPixels pixels of R results of one image. Weights of kTaps taps at a time lie in shared
// memory; every source value that a thread loads serves R sums, every weight kPixels.
template <typename T, Reach reach, int R>
__global__ void __launch_bounds__(kThreads, kResident<T, R>)
    gather_kernel(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                  T* __restrict__ dest, const Gather g) {
    using W = wide_t<T>;
    __shared__ Tap taps[kTaps];
    __shared__ alignas(16) W weights[kTaps][R];
    const int64_t pixels = g.y.dest * g.x.dest, window = g.y.taps * g.x.taps, all_taps = g.channels * window;
    const int64_t pixel_parts = ceil_div(pixels, kThreads * kPixels), result_parts = ceil_div(g.results, R);

    for (int64_t part = blockIdx.x; part < g.batch * result_parts * pixel_parts; part += gridDim.x) {
        const int64_t pixel = part % pixel_parts * kThreads * kPixels + threadIdx.x;
        const int64_t result = part / pixel_parts % result_parts * R, n = part / pixel_parts / result_parts;
        const T* image = source + n * g.channels * g.y.source * g.x.source;

        int y[kPixels], x[kPixels];
        int64_t base[kPixels];
        W sum[kPixels][R];
#pragma unroll
        for (int p = 0; p < kPixels; ++p) {
            // Beyond the last pixel: the last one once more, which is not stored.
            const int64_t at = min(pixel + p * kThreads, pixels - 1);
            y[p] = int(at / g.x.dest * g.y.mult + g.y.origin);
            x[p] = int(at % g.x.dest * g.x.mult + g.x.origin);
            base[p] = y[p] * g.x.source + x[p];
#pragma unroll
            for (int r = 0; r < R; ++r) sum[p][r] = bias && result + r < g.results ? widen(bias[result + r]) : W(0);
        }

        for (int64_t first = 0; first < all_taps; first += kTaps) {
            const int count = int(min(int64_t(kTaps), all_taps - first));
            __syncthreads();  // the taps before are done with
            for (int i = threadIdx.x; i < count * R; i += kThreads) {
                const int t = i / R, r = i % R;
                const int64_t c = (first + t) / window, in = (first + t) % window;
                const int64_t at = (result + r) * g.weight_result + c * g.weight_channel + in;
                weights[t][r] = result + r < g.results ? widen(weight[at]) : W(0);
                if (r == 0) taps[t] = make_tap(g, first + t);
            }
            __syncthreads();
            const auto add = [&](int t) {
                const Tap tap = taps[t];
                W value[kPixels];
#pragma unroll
                for (int p = 0; p < kPixels; ++p) value[p] = fetch<T, reach>(image, g, base[p], y[p], x[p], tap);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const W w = weights[t][r];
#pragma unroll
                    for (int p = 0; p < kPixels; ++p) sum[p][r] += value[p] * w;
                }
            };
            // By hand: of this loop under `#pragma unroll 3` nvcc 13.0 left out the remainder, and read past `taps`.
            int t = 0;
            if (reach != kStrided)
                for (; t + kAhead <= count; t += kAhead)
#pragma unroll
                    for (int ahead = 0; ahead < kAhead; ++ahead) add(t + ahead);
#pragma unroll 1
            for (; t < count; ++t) add(t);
        }

        T* to = dest + (n * g.results + result) * pixels;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (result + r >= g.results) break;
#pragma unroll
            for (int p = 0; p < kPixels; ++p)
                if (pixel + p * kThreads < pixels) to[r * pixels + pixel + p * kThreads] = narrow<T>(sum[p][r]);
        }
    }
}

template <typename T, Reach reach>
cudaError_t launch(const void* source, const void* weight, const void* bias, void* dest, const Gather& g,
                   cudaStream_t stream) {
    const auto run = [&](auto kernel, int results) {
        const int64_t pixel_parts = ceil_div(g.y.dest * g.x.dest, kThreads * kPixels);
        kernel<<<grid(g.batch * ceil_div(g.results, results) * pixel_parts), kThreads, 0, stream>>>(
            static_cast<const T*>(source), static_cast<const T*>(weight), static_cast<const T*>(bias),
            static_cast<T*>(dest), g);
        return cudaGetLastError();
    };
    return g.results <= 4 ? run(gather_kernel<T, reach, 4>, 4) : run(gather_kernel<T, reach, 16>, 16);
}

}  // namespace

int64_t gather_scratch(Dtype dtype, const Gather& g) {
    return !fits_gather3x3(dtype, g) && fits_gather_mma(dtype, g) ? gather_mma_scratch(dtype, g) : 0;
}

cudaError_t gather_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                        float* scratch, const Gather& g, cudaStream_t stream) {
    if (g.batch * g.results * g.y.dest * g.x.dest == 0) return cudaSuccess;
    if (fits_gather3x3(dtype, g)) return gather3x3_cuda(dtype, source, weight, bias, dest, g, stream);
    if (fits_gather_mma(dtype, g)) return gather_mma_cuda(dtype, source, weight, bias, dest, scratch, g, stream);
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        if (g.y.div != 1 || g.x.div != 1) return launch<T, kStrided>(source, weight, bias, dest, g, stream);
        if (inside(g.y) && inside(g.x)) return launch<T, kInside>(source, weight, bias, dest, g, stream);
        return launch<T, kPadded>(source, weight, bias, dest, g, stream);
    });
}

}  // namespace layerbench
