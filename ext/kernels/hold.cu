#include "cuda.cuh"

namespace layerbench {
namespace {

// The last commands the host sent before it let go are still on their way when the flag arrives.
constexpr int64_t kLinger = 5000;  // ns

__device__ __forceinline__ int64_t now_ns() {
    int64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void hold_kernel(volatile int64_t* state, int64_t turn, int64_t timeout) {
    const int64_t start = now_ns();
    while (state[0] < turn) {
        if (now_ns() - start > timeout) {
            state[1] = turn;
            __threadfence_system();
            return;
        }
    }
    const int64_t released = now_ns();
    while (now_ns() - released < kLinger) {
    }
}

__global__ void spin_kernel(int64_t* spun, int64_t cycles) {
    const int64_t start_ns = now_ns(), start = clock64();
    int64_t passed = 0;
    while (passed < cycles) passed = clock64() - start;
    if (spun) {
        spun[0] = passed;
        spun[1] = now_ns() - start_ns;
    }
}

}  // namespace

cudaError_t hold_cuda(int64_t* state, int64_t turn, int64_t timeout, cudaStream_t stream) {
    void* seen_from_device = nullptr;
    if (const cudaError_t error = cudaHostGetDevicePointer(&seen_from_device, state, 0)) return error;
    hold_kernel<<<1, 1, 0, stream>>>(static_cast<volatile int64_t*>(seen_from_device), turn, timeout);
    return cudaGetLastError();
}

cudaError_t spin_cuda(int64_t* spun, int64_t cycles, cudaStream_t stream) {
    spin_kernel<<<1, 1, 0, stream>>>(spun, cycles);
    return cudaGetLastError();
}

}  // namespace layerbench
