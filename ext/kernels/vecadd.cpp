#include "cpu.h"
#include "kernels.h"
#ifdef LAYERBENCH_F16C
#include <immintrin.h>
#endif

namespace layerbench {
namespace {

template <typename T>
LAYERBENCH_INLINE void add(const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(y);
    auto* sum = static_cast<T*>(out);
    for (int64_t i = begin; i < end; ++i) sum[i] = T(a[i] + b[i]);
}

template <typename T>
LAYERBENCH_INLINE void add_narrow(const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    const auto *a = static_cast<const T*>(x), *b = static_cast<const T*>(y);
    auto* sum = static_cast<T*>(out);
    for (int64_t i = begin; i < end; ++i) narrow(widen(a[i]) + widen(b[i]), sum + i);
}

LAYERBENCH_INLINE void add_exact(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    switch (dtype) {
        case Dtype::f32: return add<float>(x, y, out, begin, end);
        case Dtype::f64: return add<double>(x, y, out, begin, end);
        // Unsigned, because signed overflow is undefined; the bits are the same.
        case Dtype::i8: return add<uint8_t>(x, y, out, begin, end);
        case Dtype::i16: return add<uint16_t>(x, y, out, begin, end);
        case Dtype::i32: return add<uint32_t>(x, y, out, begin, end);
        default: return add<uint64_t>(x, y, out, begin, end);
    }
}

// Not with AVX-512: its loads cross a cache line each, and take 7 to 13 % longer on a Zen 4, from 1 MiB on.
#ifdef LAYERBENCH_V3
LAYERBENCH_V3 void exact(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    add_exact(dtype, x, y, out, begin, end);
}
#endif
LAYERBENCH_V1 void exact(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    add_exact(dtype, x, y, out, begin, end);
}

// Here AVX-512 is worth a third.
LAYERBENCH_CLONES
void bfloat16(const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    add_narrow<BFloat16>(x, y, out, begin, end);
}

// Every processor with AVX2 has instructions that convert, 25 times as fast as the arithmetic that stands for them.
#ifdef LAYERBENCH_F16C
LAYERBENCH_V3 void half(const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    for (; begin + 8 <= end; begin += 8) {
        __m128i a, b;
        std::memcpy(&a, static_cast<const Half*>(x) + begin, sizeof a);
        std::memcpy(&b, static_cast<const Half*>(y) + begin, sizeof b);
        const __m128i sum = _mm256_cvtps_ph(_mm256_cvtph_ps(a) + _mm256_cvtph_ps(b), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(static_cast<Half*>(out) + begin, &sum, sizeof sum);
    }
    add_narrow<Half>(x, y, out, begin, end);
}
LAYERBENCH_V1
#else
LAYERBENCH_CLONES
#endif
void half(const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    add_narrow<Half>(x, y, out, begin, end);
}

}  // namespace

void vecadd_cpu(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    if (dtype == Dtype::bf16) return bfloat16(x, y, out, begin, end);
    if (dtype == Dtype::f16) return half(x, y, out, begin, end);
    exact(dtype, x, y, out, begin, end);
}

}  // namespace layerbench
