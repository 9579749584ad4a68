// The convolution of many channels as one matrix product on tensor cores, whose right factor, the windows, is gathered
// tile by tile and never stored (implicit GEMM): dest[r, p] = sum over k of weight[r, k] * source[at(k, p)], with k a
// channel and a tap, and p a pixel of any image. float is multiplied as three products of TF32 parts, which keeps
// float's precision: a = high + low, b = high + low, and low * low is below its last bit. Of an infinity, and of what
// rounds to one, the parts make NaN where the sum may be none: so what comes out as NaN is worked out anew.
#include <cstdlib>

#include "mend.cuh"
#include "mma.cuh"

namespace layerbench {
namespace {

constexpr int kPixels = 128;  // of a block; its results are 32 for every row of warps
constexpr int kMostTaps = 64;

// The shared tiles: kDepth products at a time; rows are padded so that fragments load without bank conflicts.
template <typename T>
struct Tile {
    static constexpr int kDepth = 64 / sizeof(T), kStep = kDepth / 2;  // a step is one mma deep
    static constexpr int kVector = 16 / sizeof(T);
    static constexpr int kWeightRow = kDepth + 16 / sizeof(T), kSourceRow = kPixels + 8;
};

// Divides by a number that the host knows: exact for value * by < 2^32.
struct Divider {
    uint32_t by, magic;
    __host__ explicit Divider(int64_t d) : by(uint32_t(d)), magic(UINT32_MAX / uint32_t(d) + 1) {}
    __device__ int operator()(int value) const { return by == 1 ? value : int(__umulhi(uint32_t(value), magic)); }
};

// Blocks that must fit a multiprocessor: bounds the registers.
template <typename T, int kWarps>
constexpr int kBlocks = kWarps == 2      ? 3
                        : sizeof(T) == 2 ? 2
                                         : 1;

struct Problem {
    Gather g;
    int pixels;
    Divider window;
    int splits, share;  // of the sum over k: how many, and how much of it each is
};

// sum += weights * sources for one warp's 32 results x 64 pixels and one tile.
template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[2][8][4], const T* weights, const T* sources, int lane) {
    constexpr int kWeightRow = Tile<T>::kWeightRow, kSourceRow = Tile<T>::kSourceRow, kStep = Tile<T>::kStep;
#pragma unroll
    for (int k = 0; k < Tile<T>::kDepth; k += kStep) {
        uint32_t a[2][4], b[4][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
            load_matrices(a[m], weights + (m * 16 + lane % 16) * kWeightRow + k + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < 4; ++n)
            load_matrices_transposed(b[n], sources + (k + lane % 16) * kSourceRow + n * 16 + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 8; ++n) mma(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], T());
    }
}

__device__ __forceinline__ void multiply(float (&sum)[2][8][4], const float* weights, const float* sources, int lane) {
    constexpr int kWeightRow = Tile<float>::kWeightRow, kSourceRow = Tile<float>::kSourceRow,
                  kStep = Tile<float>::kStep;
    uint32_t high[2][2][4], low[2][2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                split(weights[(m * 16 + lane / 4 + i % 2 * 8) * kWeightRow + k * kStep + lane % 4 + i / 2 * 4],
                      high[k][m][i], low[k][m][i]);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        uint32_t h[2][2], l[2][2];
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                split(sources[(k * kStep + lane % 4 + i * 4) * kSourceRow + n * 8 + lane / 4], h[k][i], l[k][i]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            // Tensor cores cut off what they add; a long sum must not be made there.
            float part[4] = {};
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                mma(part, low[k][m], h[k][0], h[k][1], float());
                mma(part, high[k][m], l[k][0], l[k][1], float());
            }
#pragma unroll
            for (int k = 0; k < 2; ++k) mma(part, high[k][m], h[k][0], h[k][1], float());
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[m][n][i] += part[i];
        }
    }
}

// kWarps rows of two warps each: 32 * kWarps results x 128 pixels. kVectors: the weights lie as the tiles want them,
// and aligned.
template <typename T, int kWarps, bool kVectors>
class Block {
    static constexpr int kThreads = kWarps * 64, kResults = kWarps * 32;
    static constexpr int kDepth = Tile<T>::kDepth, kVector = Tile<T>::kVector;
    static constexpr int kWeightRow = Tile<T>::kWeightRow, kSourceRow = Tile<T>::kSourceRow;
    static constexpr int kRows = kDepth / kWarps;  // of the sources that a thread loads, for two pixels
    static constexpr int kLoads = kResults * kDepth / kVector / kThreads;  // of 16 bytes of weights, by a thread

public:
    struct Shared {
        union {
            struct {
                alignas(16) T weights[2][kResults * kWeightRow];
                alignas(16) T sources[2][kDepth * kSourceRow];
            };
            alignas(16) float sums[kResults / 2][kPixels + 8];  // on their way out
        };
        uint2 taps[kMostTaps];  // how far to go in the source, and what that takes of `inside_`
    };

    __device__ Block(Shared& shared, const T* source, const T* weight, const Problem& p, int result, int pixel,
                     int depth)
        : shared_(shared),
          p_(p),
          result_(result),
          row_(int(threadIdx.x) / 64 * kRows),
          depth_(depth),
          plane_(int(p.g.y.source * p.g.x.source)),
          weight_(weight) {
        const Gather& g = p.g;
        const int across = int(g.x.taps), width = int(g.x.dest), plane = int(g.y.dest) * width;
        if (threadIdx.x < p.window.by) {
            const int i = int(threadIdx.x) / across, j = int(threadIdx.x) % across;
            shared.taps[threadIdx.x] = {unsigned(i * int(g.y.step) * int(g.x.source) + j * int(g.x.step)),
                                        1u << i | 0x10000u << j};
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = min(pixel + int(threadIdx.x) % 64 * 2 + i, p.pixels - 1);
            const int n = at / plane, top = at % plane / width * int(g.y.mult) + int(g.y.origin);
            const int left = at % plane % width * int(g.x.mult) + int(g.x.origin);
            from_[i] = source + n * g.channels * plane_ + int64_t(top) * g.x.source + left;
            inside_[i] = mask(top, g.y) | mask(left, g.x) << 16;
        }
        __syncthreads();
    }

    // From device memory to registers.
    __device__ void load(int first) {
        const int window = int(p_.window.by);
        int k = first + row_, c = p_.window(k), t = k - c * window, plane = c * plane_;
#pragma unroll
        for (int i = 0; i < kRows; ++i, ++k) {
            const uint2 tap = shared_.taps[t];
            const uint32_t needed = k < depth_ ? tap.y : ~0u;
#pragma unroll
            for (int j = 0; j < 2; ++j)
                sources_[i][j] = load_if((inside_[j] & needed) == needed, from_[j], plane + int(tap.x));
            ++t;
            plane += t == window ? plane_ : 0;
            t = t == window ? 0 : t;
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int at = (int(threadIdx.x) + i * kThreads) * kVector, r = result_ + at / kDepth,
                      column = first + at % kDepth;
            const T* from = weight_ + r * p_.g.weight_result;
            const bool exists = r < p_.g.results;
            if constexpr (kVectors) {
                weights_[i] =
                    exists && column < depth_ ? __ldg(reinterpret_cast<const uint4*>(from + column)) : uint4{};
            } else {
                alignas(16) T one[kVector];
#pragma unroll
                for (int j = 0; j < kVector; ++j) {
                    const int channel = p_.window(column + j), tap = column + j - channel * window;
                    one[j] = load_if(exists & (column + j < depth_), from, channel * int(p_.g.weight_channel) + tap);
                }
                weights_[i] = *reinterpret_cast<const uint4*>(one);
            }
        }
    }

    // From registers to shared memory. What was loaded is looked at here and not before, or the loads would be waited
    // for before the products that are to cover them.
    __device__ void store(int buffer) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            struct alignas(2 * sizeof(T)) Two {
                T a, b;
            };
            *reinterpret_cast<Two*>(&shared_.sources[buffer][(row_ + i) * kSourceRow + threadIdx.x % 64 * 2]) =
                Two{arrived(sources_[i][0]), arrived(sources_[i][1])};
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const int at = (int(threadIdx.x) + i * kThreads) * kVector;
            *reinterpret_cast<uint4*>(&shared_.weights[buffer][at / kDepth * kWeightRow + at % kDepth]) = weights_[i];
        }
    }

    __device__ void compute(int buffer) {
        const int warp = threadIdx.x / 32;
        const T* weights = shared_.weights[buffer] + warp / 2 * 32 * kWeightRow;
        const T* sources = shared_.sources[buffer] + warp % 2 * 64;
        multiply(sum_, weights, sources, int(threadIdx.x) % 32);
    }

    // By way of shared memory, so that warps store whole lines. dest is of the input's type, or float for a partial
    // sum. Answers whether this thread wrote a NaN.
    template <typename To>
    __device__ bool write(const T* bias, To* dest, int pixel) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, results = int(p_.g.results);
        const int plane = int(p_.g.y.dest * p_.g.x.dest);
        bool any = false;
        int64_t to[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = pixel + lane + i * 32, image = at / plane;
            to[i] = (int64_t(image) * results + result_) * plane + (at - image * plane);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            __syncthreads();
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float2*>(
                        &shared_.sums[warp / 2 * 16 + half * 8 + lane / 4][warp % 2 * 64 + n * 8 + lane % 4 * 2]) =
                        make_float2(sum_[m][n][half * 2], sum_[m][n][half * 2 + 1]);
            __syncthreads();
#pragma unroll 4
            for (int row = warp; row < kResults / 2; row += kThreads / 32) {
                const int r = row / 16 * 32 + m * 16 + row % 16;
                if (result_ + r >= results) continue;
                const float start = bias ? widen(bias[result_ + r]) : 0.f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (pixel + lane + i * 32 >= p_.pixels) continue;
                    const float sum = shared_.sums[row][lane + i * 32] + start;
                    any |= isnan(sum);
                    dest[to[i] + int64_t(r) * plane] = narrow<To>(sum);
                }
            }
        }
        return any;
    }

private:
    // Which of the window's positions along an axis exist.
    static __device__ uint32_t mask(int first, const Axis& a) {
        uint32_t all = 0;
        for (int i = 0; i < int(a.taps); ++i)
            all |= uint32_t(unsigned(first + i * int(a.step)) < unsigned(a.source)) << i;
        return all;
    }

    static __device__ T arrived(T value) {
        if constexpr (sizeof(T) == 2) {
            asm volatile("" : "+h"(reinterpret_cast<uint16_t&>(value)));
        } else {
            asm volatile("" : "+r"(reinterpret_cast<uint32_t&>(value)));
        }
        return value;
    }

    Shared& shared_;
    const Problem& p_;
    const int result_, row_, depth_, plane_;
    const T* weight_;
    const T* from_[2];
    uint32_t inside_[2];
    T sources_[kRows][2];
    uint4 weights_[kLoads];
    float sum_[2][8][4] = {};
};

// Every split writes its share of the sum into `partial`, an array like `dest`; a single one writes `dest` itself.
template <typename T, int kWarps, bool kVectors>
__global__ void __launch_bounds__(kWarps * 64, kBlocks<T, kWarps>)
    gather_mma_kernel(const T* __restrict__ source, const T* __restrict__ weight, const T* __restrict__ bias,
                      T* __restrict__ dest, float* __restrict__ partial, const __grid_constant__ Problem p) {
    extern __shared__ __align__(16) unsigned char memory[];
    using B = Block<T, kWarps, kVectors>;
    // Blocks of the same pixels follow one another: all but the first find them in the L2.
    const int result_parts = int(ceil_div(p.g.results, kWarps * 32));
    const int result = int(blockIdx.x % result_parts) * kWarps * 32;
    const int pixel = int(blockIdx.x / result_parts) * kPixels;
    const int first = int(blockIdx.y) * p.share, last = min(first + p.share, int(p.g.channels) * int(p.window.by));
    B block(*reinterpret_cast<typename B::Shared*>(memory), source, weight, p, result, pixel, last);
    block.load(first);
    block.store(0);
    __syncthreads();
    int buffer = 0;
    for (int k = first + Tile<T>::kDepth; k < last; k += Tile<T>::kDepth, buffer ^= 1) {
        block.load(k);
        block.compute(buffer);
        block.store(buffer ^ 1);
        __syncthreads();
    }
    block.compute(buffer);
    if (p.splits == 1) {
        const bool any = block.write(bias, dest, pixel);
        if constexpr (sizeof(T) == 4)
            if (__syncthreads_or(any)) mend(source, weight, bias, dest, p.g, result, kWarps * 32, pixel, kPixels);
    } else {
        block.write(nullptr, partial + blockIdx.y * (p.pixels * p.g.results), pixel);
    }
}

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_splits_kernel(const float* __restrict__ partial, const T* __restrict__ source, const T* __restrict__ weight,
                      const T* __restrict__ bias, T* __restrict__ dest, int64_t all,
                      const __grid_constant__ Problem p) {
    const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= all) return;
    float sum = bias ? widen(bias[at / (p.g.y.dest * p.g.x.dest) % p.g.results]) : 0.f;
#pragma unroll 4
    for (int i = 0; i < p.splits; ++i) sum += partial[i * all + at];
    if constexpr (sizeof(T) == 4)
        if (isnan(sum)) return mend_one(source, weight, bias, dest, p.g, at);
    dest[at] = narrow<T>(sum);
}

// How the work is shared out: blocks of 64 or of 128 results, and where these are few, the sum over k in splits. By
// constants of a large GPU, so that sums come out the same on every GPU.
struct Share {
    int warps, splits = 1, share;  // `share` of k is a split's
    Share(Dtype dtype, const Gather& g) {
        constexpr int64_t kProcessors = 132, kMostSplits = 32, kLeastTiles = 4;
        const int64_t depth = g.channels * g.y.taps * g.x.taps, all = g.batch * g.results * g.y.dest * g.x.dest;
        const int64_t tile = dtype == Dtype::f32 ? Tile<float>::kDepth : Tile<__half>::kDepth,
                      tiles = ceil_div(depth, tile);
        const int64_t parts = ceil_div(g.batch * g.y.dest * g.x.dest, kPixels), wide = parts * ceil_div(g.results, 128);
        warps = g.results > 64 && wide >= kProcessors / 3 ? 4 : 2;
        const int64_t blocks = warps == 4 ? wide : parts * ceil_div(g.results, 64),
                      fit = warps == 4 ? kProcessors : 2 * kProcessors;
        // In tiles of a block, about a microsecond each, in which 3 MB of partial sums can be written and read.
        const auto cost = [&](int64_t n) {
            return double(ceil_div(blocks * n, fit) * ceil_div(tiles, n)) + (n > 1 ? 3 + double(n * all) * 8 / 3e6 : 0);
        };
        for (int n = 2; n <= kMostSplits && n * kLeastTiles <= tiles; ++n)
            if (cost(n) < cost(splits)) splits = n;
        share = int(ceil_div(tiles, splits) * tile);
        splits = int(ceil_div(depth, share));
    }
};

template <typename T, int kWarps, bool kVectors>
cudaError_t launch(const void* source, const void* weight, const void* bias, void* dest, float* partial,
                   const Problem& p, cudaStream_t stream) {
    constexpr int shared = sizeof(typename Block<T, kWarps, kVectors>::Shared);
    const auto kernel = gather_mma_kernel<T, kWarps, kVectors>;
    static_assert(shared <= 48 << 10, "more would have to be asked for");
    const dim3 blocks(unsigned(ceil_div(p.pixels, kPixels) * ceil_div(p.g.results, kWarps * 32)), unsigned(p.splits));
    const auto *s = static_cast<const T*>(source), *w = static_cast<const T*>(weight), *b = static_cast<const T*>(bias);
    auto* to = static_cast<T*>(dest);
    kernel<<<blocks, kWarps * 64, shared, stream>>>(s, w, b, to, partial, p);
    if (p.splits > 1) {
        const int64_t all = p.pixels * p.g.results;
        add_splits_kernel<<<unsigned(ceil_div(all, kThreads)), kThreads, 0, stream>>>(partial, s, w, b, to, all, p);
    }
    return cudaGetLastError();
}

}  // namespace

bool fits_gather_mma(Dtype dtype, const Gather& g) {
    const int64_t window = g.y.taps * g.x.taps, most = INT_MAX / 2;
    return dtype != Dtype::f64 && has_mma() && g.y.div == 1 && g.x.div == 1 && g.y.taps < 16 && g.x.taps < 16 &&
           window <= kMostTaps && g.results > 16 && g.channels * window >= 32 &&
           g.channels * window < most / kMostTaps && g.batch * g.y.dest * g.x.dest < most &&
           g.channels * g.y.source * g.x.source < most && g.results * g.weight_result < most &&
           g.channels * g.weight_channel < most && g.y.taps * std::abs(g.y.step) * g.x.source < most;
}

int64_t gather_mma_scratch(Dtype dtype, const Gather& g) {
    const Share share(dtype, g);
    return share.splits > 1 ? share.splits * g.batch * g.results * g.y.dest * g.x.dest : 0;
}

cudaError_t gather_mma_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                            float* scratch, const Gather& g, cudaStream_t stream) {
    const int64_t window = g.y.taps * g.x.taps;
    const Share share(dtype, g);
    const Problem p{g, int(g.batch * g.y.dest * g.x.dest), Divider(window), share.splits, share.share};
    return with_floating(dtype, [&](auto type) {
        using T = decltype(type);
        if constexpr (sizeof(T) > 4) {
            return cudaErrorInvalidValue;
        } else {
            const bool vectors = g.weight_channel == window && g.weight_result % Tile<T>::kVector == 0 &&
                                 reinterpret_cast<uintptr_t>(weight) % 16 == 0;
            const auto run = [&](auto function) { return function(source, weight, bias, dest, scratch, p, stream); };
            if (share.warps == 2) return vectors ? run(launch<T, 2, true>) : run(launch<T, 2, false>);
            return vectors ? run(launch<T, 4, true>) : run(launch<T, 4, false>);
        }
    });
}

}  // namespace layerbench
