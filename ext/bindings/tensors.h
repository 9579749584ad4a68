// All that the bindings' checks and the two device files need of torch. They are compiled against ATen, and once more
// (LAYERBENCH_STABLE) against the stable ABI, where ../stable/at.h gives the same words their meaning.
#pragma once

#ifdef LAYERBENCH_STABLE
#include "../stable/at.h"
#else

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/col2im.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#ifndef LAYERBENCH_NAMESPACE  // the operators of torch.ops.layerbench, whose schemas and autograd are in C++
#define LAYERBENCH_NAMESPACE layerbench
#define LAYERBENCH_IN_CPP
#endif

// The operators of one device, in the order of schema.h.
#define LAYERBENCH_KERNELS(key, shift_fn, vecadd_fn, conv_fn, grad_input_fn, grad_weight_fn) \
    TORCH_LIBRARY_IMPL(LAYERBENCH_NAMESPACE, key, m) {                                       \
        m.impl("shift", TORCH_FN(shift_fn));                                                 \
        m.impl("vecadd", TORCH_FN(vecadd_fn));                                               \
        m.impl("unfold_conv2d", TORCH_FN(conv_fn));                                          \
        m.impl("unfold_conv2d_grad_input", TORCH_FN(grad_input_fn));                         \
        m.impl("unfold_conv2d_grad_weight", TORCH_FN(grad_weight_fn));                       \
    }

namespace layerbench {

// An empty CPU tensor without a second trip through the dispatcher, a tenth of a small call's time.
inline at::Tensor cpu_empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
    return at::detail::empty_cpu(sizes, options);
}

// Matrix products are already in the precision that was asked for.
struct WithoutAutocast : c10::impl::ExcludeDispatchKeyGuard {
    WithoutAutocast() : ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset) {}
};

}  // namespace layerbench

#endif

namespace layerbench {

// The four pairs that say how a convolution's kernel moves over its input.
struct Window {
    at::IntArrayRef kernel_size, stride, padding, dilation;
};

}  // namespace layerbench
