#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
    T value[N];
};

// A pack a thread; the last elements, fewer than a pack, are the last threads'.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    vecadd_kernel(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, int64_t packs, int64_t rest) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < packs) {
        const auto a = reinterpret_cast<const Pack<T, N>*>(x)[i], b = reinterpret_cast<const Pack<T, N>*>(y)[i];
        Pack<T, N> sum;
#pragma unroll
        for (int j = 0; j < N; ++j) sum.value[j] = narrow<T>(widen(a.value[j]) + widen(b.value[j]));
        reinterpret_cast<Pack<T, N>*>(out)[i] = sum;
    } else if (i < packs + rest) {
        const int64_t last = i + packs * (N - 1);
        out[last] = narrow<T>(widen(x[last]) + widen(y[last]));
    }
}

template <typename T>
cudaError_t launch(const void* x, const void* y, void* out, int64_t n, cudaStream_t stream) {
    const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(y);
    auto* sum = static_cast<T*>(out);
    constexpr int pack = 16 / sizeof(T);
    const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
    const int64_t packs = n / pack, rest = n % pack;
    if (aligned(x) && aligned(y) && aligned(out)) {
        vecadd_kernel<T, pack><<<grid(ceil_div(packs + rest, kThreads)), kThreads, 0, stream>>>(a, b, sum, packs, rest);
    } else {
        vecadd_kernel<T, 1><<<grid(ceil_div(n, kThreads)), kThreads, 0, stream>>>(a, b, sum, n, 0);
    }
    return cudaGetLastError();
}

}  // namespace

cudaError_t vecadd_cuda(Dtype dtype, const void* x, const void* y, void* out, int64_t n, cudaStream_t stream) {
    if (n == 0) return cudaSuccess;
    switch (dtype) {
        // Unsigned, because signed overflow is undefined; the bits are the same.
        case Dtype::i8: return launch<uint8_t>(x, y, out, n, stream);
        case Dtype::i16: return launch<uint16_t>(x, y, out, n, stream);
        case Dtype::i32: return launch<uint32_t>(x, y, out, n, stream);
        case Dtype::i64: return launch<uint64_t>(x, y, out, n, stream);
        default: return with_floating(dtype, [&](auto type) { return launch<decltype(type)>(x, y, out, n, stream); });
    }
}

}  // namespace layerbench
