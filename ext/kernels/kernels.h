// Every kernel of layerbench. No torch here: raw pointers, int64_t sizes, a stream. Arrays are contiguous.
// CPU kernels work on a [begin, end) part, so that the caller decides how to share the work out.
// CUDA launchers enqueue on `stream`, launch nothing when there is nothing to do, and return the launch status.
#pragma once

#include <cstdint>

#if defined(WITH_CUDA) || defined(__CUDACC__)
#include <cuda_runtime_api.h>
#endif

namespace layerbench {

enum class Dtype { f32, f64, f16, bf16, i8, i16, i32, i64 };  // unsigned integers add as signed ones do

// out[r, i] = in[r, i - shift] where that exists, else zero; rows of `row` units of `unit` bytes (1, 2, 4, 8 or 16).
struct Shift {
    int64_t rows, row, shift;  // |shift| <= row
    int unit;
};

// One image axis of a Gather: destination position d and tap t read the source position
// (d * mult + origin + t * step) / div, where that is whole and inside [0, source), and zero elsewhere.
struct Axis {
    int64_t source, dest, taps;
    int64_t mult, origin, step, div;
};

// A convolution and its input gradient alike (the gradient has its channels swapped and the axes inverted):
//     dest[n, r, y, x] = bias[r] + sum over c, i, j of weight[r * weight_result + c * weight_channel + i * x.taps + j]
//                                                     * source[n, c, at(y, i), at(x, j)]
// with r < results and c < channels. Positions fit an int (the caller checks).
struct Gather {
    int64_t batch, results, channels;
    int64_t weight_result, weight_channel;
    Axis y, x;
};

// --- CPU ---

// Bytes [begin, end) of the output.
void shift_cpu(const void* in, void* out, const Shift& s, int64_t begin, int64_t end);

// Elements [begin, end).
void vecadd_cpu(Dtype dtype, const void* x, const void* y, void* out, int64_t begin, int64_t end);

// Destination rows [begin, end) of batch * y.dest. bias may be null.
void gather_cpu(const float* source, const float* weight, const float* bias, float* dest, const Gather& g,
                int64_t begin, int64_t end);
void gather_cpu(const double* source, const double* weight, const double* bias, double* dest, const Gather& g,
                int64_t begin, int64_t end);

// The weight gradient of filters [first, last) over destination rows [begin, end), added into sums[results, channels,
// taps]; g is the forward Gather and grad lies as its destination.
void weight_grad_cpu(const float* grad, const float* source, float* sums, const Gather& g, int64_t first, int64_t last,
                     int64_t begin, int64_t end);
void weight_grad_cpu(const double* grad, const double* source, double* sums, const Gather& g, int64_t first,
                     int64_t last, int64_t begin, int64_t end);

// --- CUDA ---

#if defined(WITH_CUDA) || defined(__CUDACC__)

cudaError_t shift_cuda(const void* in, void* out, const Shift& s, cudaStream_t stream);

cudaError_t vecadd_cuda(Dtype dtype, const void* x, const void* y, void* out, int64_t n, cudaStream_t stream);

// How many floats of scratch memory gather_cuda needs.
int64_t gather_scratch(Dtype dtype, const Gather& g);

// Floating dtypes; half and bfloat16 accumulate in float. bias may be null.
cudaError_t gather_cuda(Dtype dtype, const void* source, const void* weight, const void* bias, void* dest,
                        float* scratch, const Gather& g, cudaStream_t stream);

// How far apart the elements of an image lie.
struct Strides {
    int64_t batch, channel, y, x;
};

// How many partial sums (float, or double for f64) the weight gradient needs room for.
int64_t weight_grad_sums(Dtype dtype, const Gather& g, bool bias);

// The gradients of weight[results, channels, taps] and, unless null, of bias[results]; g is the forward Gather. `grad`
// lies as `by` says, so that the gradient of a sum, one value over and over, needs not be written out.
cudaError_t weight_grad_cuda(Dtype dtype, const void* grad, const Strides& by, const void* source, void* sums,
                             void* weight, void* bias, const Gather& g, cudaStream_t stream);

// Keeps `stream` busy until the host writes `turn` (or more) into state[0], or for `timeout` ns at most: then state[1]
// becomes `turn`. `state` is pinned host memory.
cudaError_t hold_cuda(int64_t* state, int64_t turn, int64_t timeout, cudaStream_t stream);

// Spins for `cycles` of the processor's own clock; spun[2], unless null, takes the cycles and the ns that it really
// took.
cudaError_t spin_cuda(int64_t* spun, int64_t cycles, cudaStream_t stream);

#endif

}  // namespace layerbench
