// Results that came out as NaN, worked out anew by plain products.
#pragma once

#include "cuda.cuh"

namespace layerbench {

// The result at an index of dest. `div` is 1.
static __host__ __device__ __noinline__ float plain_result(const float* source, const float* weight, const float* bias,
                                                           const Gather& g, int64_t index) {
    const int64_t plane = g.y.dest * g.x.dest, at = index % plane, r = index / plane % g.results;
    const int64_t top = at / g.x.dest * g.y.mult + g.y.origin, left = at % g.x.dest * g.x.mult + g.x.origin;
    const float* image = source + index / plane / g.results * g.channels * g.y.source * g.x.source;
    float sum = bias ? bias[r] : 0.f;
    for (int64_t c = 0; c < g.channels; ++c)
        for (int64_t i = 0; i < g.y.taps; ++i)
            for (int64_t j = 0; j < g.x.taps; ++j) {
                const int64_t y = top + i * g.y.step, x = left + j * g.x.step;
                const bool there = y >= 0 && x >= 0 && y < g.y.source && x < g.x.source;
                const float value = there ? image[(c * g.y.source + y) * g.x.source + x] : 0.f;
                sum += value * weight[r * g.weight_result + c * g.weight_channel + i * g.x.taps + j];
            }
    return sum;
}

// By all threads of a block: those of its `results` x `pixels` that are NaN, from a result and a pixel of any image on.
static __device__ __noinline__ void mend(const float* source, const float* weight, const float* bias, float* dest,
                                         const Gather& g, int result, int results, int pixel, int pixels) {
    const int64_t plane = g.y.dest * g.x.dest;
    for (int i = int(threadIdx.x); i < results * pixels; i += int(blockDim.x)) {
        const int64_t r = result + i / pixels, at = pixel + i % pixels;
        if (r >= g.results || at >= g.batch * plane) continue;
        const int64_t index = (at / plane * g.results + r) * plane + at % plane;
        if (isnan(dest[index])) dest[index] = plain_result(source, weight, bias, g, index);
    }
}

}  // namespace layerbench
