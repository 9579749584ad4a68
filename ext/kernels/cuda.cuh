// What the CUDA kernels share: launch sizes and dtypes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels.h"

namespace layerbench {

// As many blocks as there are parts, as far as the grid reaches: kernels step on by the grid's size, but for those of
// which a grid covers terabytes.
inline unsigned grid(int64_t parts) { return static_cast<unsigned>(std::min<int64_t>(parts, INT_MAX)); }

__host__ __device__ inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The type to add in.
template <typename T>
struct Wide {
    using type = T;
};
template <>
struct Wide<__half> {
    using type = float;
};
template <>
struct Wide<__nv_bfloat16> {
    using type = float;
};
template <typename T>
using wide_t = typename Wide<T>::type;

template <typename T>
__device__ __forceinline__ T widen(T value) {
    return value;
}
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T narrow(wide_t<T> value) {
    return value;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float value) {
    return __float2half(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
    return __float2bfloat16(value);
}

// from[offset] where it is `there`, else zero. By hand, since the compiler would branch around every such load, and
// wait for each before the next.
template <typename T>
__device__ __forceinline__ T load_if(bool there, const T* from, int offset = 0) {
#define LAYERBENCH_LOAD(BITS, CONSTRAINT, RAW)                                                       \
    RAW raw;                                                                                         \
    asm("{.reg .pred p; .reg .b64 at; setp.ne.s32 p, %3, 0; mad.wide.s32 at, %2, %4, %1; mov.b" BITS \
        " %0, 0; "                                                                                   \
        "@p ld.global.nc.b" BITS " %0, [at];}"                                                       \
        : "=" CONSTRAINT(raw)                                                                        \
        : "l"(from), "r"(offset), "r"(int(there)), "n"(sizeof(T)));                                  \
    return *reinterpret_cast<T*>(&raw)
    if constexpr (sizeof(T) == 2) {
        LAYERBENCH_LOAD("16", "h", uint16_t);
    } else if constexpr (sizeof(T) == 4) {
        LAYERBENCH_LOAD("32", "r", uint32_t);
    } else {
        LAYERBENCH_LOAD("64", "l", uint64_t);
    }
#undef LAYERBENCH_LOAD
}

// f(T()) for the floating dtype.
template <typename F>
cudaError_t with_floating(Dtype dtype, F&& f) {
    switch (dtype) {
        case Dtype::f32: return f(float());
        case Dtype::f64: return f(double());
        case Dtype::f16: return f(__half());
        case Dtype::bf16: return f(__nv_bfloat16());
        default: return cudaErrorInvalidValue;
    }
}

// Whether every tap lies inside the source, as the caller's sizes then see to.
inline bool inside(const Axis& a) { return a.origin == 0 && a.step > 0; }

// What a thread must know of a tap: how far to go in the source, in elements and along both axes.
struct Tap {
    int64_t offset;
    int y, x;
};

__device__ __forceinline__ Tap make_tap(const Gather& g, int64_t tap) {
    const int64_t j = tap % g.x.taps, i = tap / g.x.taps % g.y.taps, c = tap / g.x.taps / g.y.taps;
    const int y = int(i * g.y.step), x = int(j * g.x.step);
    const int64_t plane = c * g.y.source * g.x.source;
    // Between strided positions the way there is no sum of two parts: the kernel works it out.
    return {g.y.div * g.x.div == 1 ? plane + y * g.x.source + x : plane, y, x};
}

}  // namespace layerbench
