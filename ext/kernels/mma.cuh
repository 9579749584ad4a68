// Tensor cores.
#pragma once

#include <iterator>

#include "cuda.cuh"

namespace layerbench {

// Whether the current device has those that take half, bfloat16 and TF32, and runs code of ours that was compiled for
// them.
inline bool has_mma() {
    constexpr int compiled[] = {__CUDA_ARCH_LIST__};
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return false;
    return std::any_of(std::begin(compiled), std::end(compiled),
                       [&](int arch) { return arch >= 800 && arch <= major * 100 + minor * 10; });
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Four 8x8 matrices of 16 bits from shared memory, a row at each lane's address, into fragments.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(from)));
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(from)));
}

#if __CUDA_ARCH__ >= 800
#define LAYERBENCH_MMA(SHAPE)                                                                       \
    asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
#define LAYERBENCH_MMA(SHAPE)  // has_mma() is false there
#endif

// c += a * b of a warp, in the layout of the instruction's fragments.

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
    LAYERBENCH_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16) {
    LAYERBENCH_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float) {
    LAYERBENCH_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef LAYERBENCH_MMA

__device__ __forceinline__ uint32_t as_tf32(float value) {
    uint32_t out = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
#endif
    return out;
}

// value = high + low, to float's last bit but two.
__device__ __forceinline__ void split(float value, uint32_t& high, uint32_t& low) {
    high = as_tf32(value);
    low = as_tf32(value - __uint_as_float(high));
}

}  // namespace layerbench
