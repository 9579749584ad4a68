// Results that came out as NaN, worked out anew by plain products.
#pragma once

#include "cuda.cuh"

namespace layerbench {

// The result at an index of dest, bias and all. An image and a filter are below 2^31 elements; `div` is 1. A function
// that is called, and stores by itself: whoever asks for it keeps its registers for what is not NaN.
static __host__ __device__ __noinline__ void mend_one(const float* source, const float* weight, const float* bias,
                                                      float* dest, const Gather& g, int64_t index) {
    const int64_t plane = g.y.dest * g.x.dest, r = index / plane % g.results;
    const int at = int(index % plane), width = int(g.x.dest), across = int(g.x.taps);
    const int top = at / width * int(g.y.mult) + int(g.y.origin), left = at % width * int(g.x.mult) + int(g.x.origin);
    const int rows = int(g.y.source), columns = int(g.x.source);
    const float* image = source + index / plane / g.results * g.channels * g.y.source * g.x.source;
    const float* filter = weight + r * g.weight_result;
    float sum = bias ? bias[r] : 0.f;
    for (int c = 0; c < int(g.channels); ++c, image += rows * columns, filter += g.weight_channel)
        for (int tap = 0; tap < int(g.y.taps) * across; ++tap) {
            const int y = top + tap / across * int(g.y.step), x = left + tap % across * int(g.x.step);
            const bool there = y >= 0 && x >= 0 && y < rows && x < columns;
            sum += (there ? image[y * columns + x] : 0.f) * filter[tap];
        }
    dest[index] = sum;
}

// By all threads of a block: those of its `results` x `pixels` that are NaN, from a result and a pixel of any image on.
static __device__ __noinline__ void mend(const float* source, const float* weight, const float* bias, float* dest,
                                         const Gather& g, int result, int results, int pixel, int pixels) {
    const int64_t plane = g.y.dest * g.x.dest;
    for (int i = int(threadIdx.x); i < results * pixels; i += int(blockDim.x)) {
        const int64_t r = result + i / pixels, at = pixel + i % pixels;
        if (r >= g.results || at >= g.batch * plane) continue;
        const int64_t index = (at / plane * g.results + r) * plane + at % plane;
        if (isnan(dest[index])) mend_one(source, weight, bias, dest, g, index);
    }
}

}  // namespace layerbench
