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
        const int64_t start = part * kPart, first = row == total ? start : start % row;
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

// The same in 16 bytes a thread, whatever the shift: each comes from two neighbours, of which a thread finds one in the
// L1. kWord < 0: from one. `shift` is how many whole ones the lower lies back; the first byte to store is byte
// 4 * kWord + bits / 8 of the two.
template <int kWord>
__global__ void __launch_bounds__(kThreads)
    shift_wide_kernel(const uint4* __restrict__ in, uint4* __restrict__ out, int64_t total, int64_t row, int64_t shift,
                      unsigned bits) {
    const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= total) return;
    int64_t column = at;  // a division only where it must be, and a 64-bit one only where it must
    if (row < total) column = total <= UINT32_MAX ? uint32_t(at) % uint32_t(row) : at % row;
    column -= shift;
    const uint4 low = column >= 0 && column < row ? in[at - shift] : uint4{};
    if constexpr (kWord < 0) {
        out[at] = low;
    } else {
        const uint4 high = column >= -1 && column + 1 < row ? in[at - shift + 1] : uint4{};
        const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        const auto four = [&](int i) { return __funnelshift_r(word[kWord + i], word[kWord + i + 1], bits); };
        out[at] = {four(0), four(1), four(2), four(3)};
    }
}

cudaError_t launch_wide(const void* in, void* out, const Shift& s, cudaStream_t stream) {
    const int64_t row = s.row * s.unit / 16, bytes = s.shift * s.unit, total = s.rows * row;
    const int64_t back = ceil_div(bytes + (int64_t(1) << 62), 16) - (int64_t(1) << 58);  // rounded up, also below zero
    const int rest = int(back * 16 - bytes);
    const auto run = [&](auto kernel) {
        kernel<<<grid(ceil_div(total, kThreads)), kThreads, 0, stream>>>(
            static_cast<const uint4*>(in), static_cast<uint4*>(out), total, row, back, unsigned(rest % 4 * 8));
        return cudaGetLastError();
    };
    switch (rest == 0 ? -1 : rest / 4) {
        case -1: return run(shift_wide_kernel<-1>);
        case 0: return run(shift_wide_kernel<0>);
        case 1: return run(shift_wide_kernel<1>);
        case 2: return run(shift_wide_kernel<2>);
        default: return run(shift_wide_kernel<3>);
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
    const bool aligned = reinterpret_cast<uintptr_t>(in) % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
    if (aligned && s.row * s.unit % 16 == 0) return launch_wide(in, out, s, stream);
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
