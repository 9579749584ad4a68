// What the CPU kernels share: function multi-versioning and 16-bit floats.
#pragma once

#include <cstdint>
#include <cstring>

// One library for every x86-64 machine: the loader picks the version, and valgrind gets one without AVX-512. A function
// is written for all of them (LAYERBENCH_CLONES) or once for each (V4, V3 where defined, V1). LAYERBENCH_LEVEL limits
// them, so that tests reach every version on one machine. Older compilers lack the architecture levels.
#ifndef LAYERBENCH_LEVEL
#define LAYERBENCH_LEVEL 4
#endif

#if !defined(__x86_64__) || !defined(__linux__) || LAYERBENCH_LEVEL == 1
#define LAYERBENCH_CLONES
#define LAYERBENCH_V1
#else
#if defined(__clang__) || __GNUC__ >= 12
#define LAYERBENCH_AVX512 "arch=x86-64-v4"
#define LAYERBENCH_AVX2 "arch=x86-64-v3"
#define LAYERBENCH_F16C  // is part of that
#else
#define LAYERBENCH_AVX512 "avx512f"
#define LAYERBENCH_AVX2 "fma"
#endif
#if LAYERBENCH_LEVEL == 4
#define LAYERBENCH_V4 __attribute__((target(LAYERBENCH_AVX512)))
#define LAYERBENCH_CLONES __attribute__((target_clones(LAYERBENCH_AVX512, LAYERBENCH_AVX2, "default")))
#else
#define LAYERBENCH_CLONES __attribute__((target_clones(LAYERBENCH_AVX2, "default")))
#endif
#define LAYERBENCH_V3 __attribute__((target(LAYERBENCH_AVX2)))
#define LAYERBENCH_V1 __attribute__((target("default")))
#endif

// Clones cannot be templates. So the work is a template that must be inlined into a plain cloned function.
#define LAYERBENCH_INLINE __attribute__((always_inline)) inline

namespace layerbench {

template <typename To, typename From>
LAYERBENCH_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// Vectors of B bytes at any address. (A template argument would lose the alignment: hence the struct.)
template <typename T, int B>
struct Vectors {
    typedef T Type __attribute__((vector_size(B), aligned(alignof(T)), may_alias));
};

// Into a register for good: GCC would rather load again for each of up to three uses, though most of these loads cross
// a cache line, and make a loop of loads and stores a memcpy.
template <typename T, int B>
LAYERBENCH_INLINE void load(typename Vectors<T, B>::Type& vector, const T* from) {
    typename Vectors<T, B>::Type loaded = *reinterpret_cast<const typename Vectors<T, B>::Type*>(from);
#ifdef __x86_64__
    asm("" : "+x"(loaded));
#endif
    vector = loaded;
}

template <typename T, int B>
LAYERBENCH_INLINE void store(T* to, const typename Vectors<T, B>::Type& vector) {
    *reinterpret_cast<typename Vectors<T, B>::Type*>(to) = vector;
}

struct BFloat16 {
    uint16_t raw;
};

struct Half {
    uint16_t raw;
};

LAYERBENCH_INLINE float widen(BFloat16 value) { return bits<float>(uint32_t(value.raw) << 16); }

LAYERBENCH_INLINE void narrow(float value, BFloat16* out) {
    const uint32_t b = bits<uint32_t>(value);
    const uint32_t even = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    out->raw = value != value ? 0x7fc0 : uint16_t(even);
}

// Without branches, so that loops vectorise: the exponent is moved by an exact multiplication, which also takes care
// of denormals.
LAYERBENCH_INLINE float widen(Half value) {
    const uint32_t magnitude = uint32_t(value.raw & 0x7fff) << 13, sign = uint32_t(value.raw & 0x8000) << 16;
    const uint32_t finite = bits<uint32_t>(bits<float>(magnitude) * 0x1p112f);
    return bits<float>(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}

LAYERBENCH_INLINE void narrow(float value, Half* out) {
    const uint32_t b = bits<uint32_t>(value), sign = (b >> 16) & 0x8000, magnitude = b & 0x7fffffff;
    // Adding 0.5 aligns a denormal result's last bit with the float's last bit: the addition rounds it.
    const uint32_t denormal = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    out->raw = uint16_t(sign | (magnitude >= 0x47800000u ? special : finite));
}

}  // namespace layerbench
