#include "cpu.h"
#include "kernels.h"

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

}  // namespace

LAYERBENCH_CLONES
void vecadd_cpu(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end) {
    switch (dtype) {
        case Dtype::f32: return add<float>(x, y, out, begin, end);
        case Dtype::f64: return add<double>(x, y, out, begin, end);
        case Dtype::f16: return add_narrow<Half>(x, y, out, begin, end);
        case Dtype::bf16: return add_narrow<BFloat16>(x, y, out, begin, end);
        // Unsigned, because signed overflow is undefined; the bits are the same.
        case Dtype::i8: return add<uint8_t>(x, y, out, begin, end);
        case Dtype::i16: return add<uint16_t>(x, y, out, begin, end);
        case Dtype::i32: return add<uint32_t>(x, y, out, begin, end);
        case Dtype::i64: return add<uint64_t>(x, y, out, begin, end);
    }
}

}  // namespace layerbench
