// What clocks need of a GPU; nothing in a build without CUDA.
#ifdef WITH_CUDA

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "../kernels/kernels.h"

namespace layerbench {
namespace {

void host_hold(const at::Tensor& state, int64_t turn, int64_t timeout) {
    TORCH_CHECK(state.scalar_type() == at::kLong && state.numel() == 2 && state.is_contiguous() && state.is_pinned(),
                "layerbench::hold: state is ", state.numel(), " x ", state.scalar_type(), " on ", state.device(),
                "; two contiguous int64 in pinned memory are accepted");
    C10_CUDA_CHECK(hold_cuda(state.mutable_data_ptr<int64_t>(), turn, timeout, c10::cuda::getCurrentCUDAStream()));
}

void cuda_spin(const at::Tensor& spun, int64_t cycles) {
    TORCH_CHECK(spun.scalar_type() == at::kLong && (spun.numel() == 2 || spun.numel() == 0) && spun.is_contiguous(),
                "layerbench::spin: spun is ", spun.numel(), " x ", spun.scalar_type(),
                "; two contiguous int64, or none, are accepted");
    const c10::cuda::CUDAGuard guard(spun.device());
    int64_t* to = spun.numel() ? spun.mutable_data_ptr<int64_t>() : nullptr;
    C10_CUDA_CHECK(spin_cuda(to, cycles, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(layerbench, CPU, m) { m.impl("hold", host_hold); }  // its one tensor lies in the host's memory
TORCH_LIBRARY_IMPL(layerbench, CUDA, m) { m.impl("spin", cuda_spin); }

}  // namespace layerbench

#endif
