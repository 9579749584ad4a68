#include "cuda.cuh"

namespace layerbench {
namespace {

constexpr int kThreads = 256, kItems = 8, kPart = kThreads * kItems;

// The column of a unit is its number modulo the row, and a 64-bit modulo for each would outlast the copy. So a block
// takes one for its part; inside the part a row wraps once, or is so short that 32 bits do.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    shift_kernel(const T* __restrict__ in, T* __restrict__ out, int64_t total, int64_t row, int64_t shift) {
    for (int64_t part = blockIdx.x; part * kPart < total; part += gridDim.x) {
        const int64_t start = part * kPart, first = start % row;
        T value[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int64_t at = start + threadIdx.x + i * kThreads;
            int64_t column = first + threadIdx.x + i * kThreads;
            if (column >= row) column = row >= kPart ? column - row : uint32_t(column) % uint32_t(row);
            column -= shift;
            value[i] = at < total && column >= 0 && column < row ? in[at - shift] : T{};
        }
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int64_t at = start + threadIdx.x + i * kThreads;
            if (at < total) out[at] = value[i];
        }
    }
}

template <typename T>
cudaError_t launch(const void* in, void* out, const Shift& s, cudaStream_t stream) {
    const int64_t total = s.rows * s.row;
    shift_kernel<<<grid(ceil_div(total, kPart)), kThreads, 0, stream>>>(static_cast<const T*>(in), static_cast<T*>(out),
                                                                        total, s.row, s.shift);
    return cudaGetLastError();
}

}  // namespace

cudaError_t shift_cuda(const void* in, void* out, const Shift& s, cudaStream_t stream) {
    if (s.rows == 0 || s.row == 0) return cudaSuccess;
    switch (s.unit) {
        case 1: return launch<uint8_t>(in, out, s, stream);
        case 2: return launch<uint16_t>(in, out, s, stream);
        case 4: return launch<uint32_t>(in, out, s, stream);
        case 8: return launch<uint64_t>(in, out, s, stream);
        case 16: return launch<uint4>(in, out, s, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace layerbench
