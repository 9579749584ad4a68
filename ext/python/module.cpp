// A binding by pybind11, as an extension written before TORCH_LIBRARY has it: the caller makes the output, and gradients
// are Python's business. torch.ops.layerbench_py lies in the same library (its device files are those of the operators).
#include <torch/csrc/utils/pybind.h>

#include "../bindings/checks.h"
#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace layerbench {
namespace {

constexpr int64_t kGrain = 1 << 15;  // least bytes or elements worth a thread

void check_out(const char* op, const at::Tensor& x, const at::Tensor& out) {
    check_same(op, "out", out, "x", x);
    check_shape(op, "out", out, x.sizes());
    TORCH_CHECK(out.is_contiguous(), "layerbench::", op, ": out has strides ", out.strides(),
                "; a contiguous one is accepted");
    TORCH_CHECK(x.is_cpu() || x.is_cuda(), "layerbench::", op, ": x is on ", x.device(), "; cpu and cuda are accepted");
#ifndef WITH_CUDA
    TORCH_CHECK(x.is_cpu(), "layerbench::", op, ": x is on ", x.device(), "; this library was built without CUDA");
#endif
}

// As a pointer has it: no dispatcher has seen to what is conjugated or negated only when it is read.
at::Tensor read(const at::Tensor& x) { return x.resolve_conj().resolve_neg().contiguous(); }

void shift(const at::Tensor& x, int64_t k, at::Tensor& out) {
    check_out("shift", x, out);
    if (out.numel() == 0) return;
    const at::Tensor in = read(x);
    const void* from = in.const_data_ptr();
    void* to = out.mutable_data_ptr();
    if (x.is_cpu()) {
        const Shift s = make_shift(x, k, nullptr, nullptr);
        at::parallel_for(0, int64_t(out.nbytes()), kGrain,
                         [&](int64_t begin, int64_t end) { shift_cpu(from, to, s, begin, end); });
        return;
    }
#ifdef WITH_CUDA
    const c10::cuda::CUDAGuard guard(x.device());
    C10_CUDA_CHECK(shift_cuda(from, to, make_shift(x, k, from, to), c10::cuda::getCurrentCUDAStream()));
#endif
}

void vecadd(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
    const Dtype dtype = check_vecadd(x, y);
    check_out("vecadd", x, out);
    const at::Tensor a = read(x), b = read(y);
    const void *pa = a.const_data_ptr(), *pb = b.const_data_ptr();
    void* to = out.mutable_data_ptr();
    if (x.is_cpu()) {
        at::parallel_for(0, out.numel(), kGrain,
                         [&](int64_t begin, int64_t end) { vecadd_cpu(dtype, pa, pb, to, begin, end); });
        return;
    }
#ifdef WITH_CUDA
    const c10::cuda::CUDAGuard guard(x.device());
    C10_CUDA_CHECK(vecadd_cuda(dtype, pa, pb, to, out.numel(), c10::cuda::getCurrentCUDAStream()));
#endif
}

}  // namespace
}  // namespace layerbench

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("shift", layerbench::shift);
    m.def("vecadd", layerbench::vecadd);
}
