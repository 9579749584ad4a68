// A binding by pybind11, as an extension written before TORCH_LIBRARY has it: the caller makes the output, and gradients
// are Python's business. torch.ops.layerbench_py lies in the same library (its device files are those of the operators).
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
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

// A tensor that is its memory: not one that only a dispatcher, Python or a transform can read.
void check_plain(const char* op, const char* name, const at::Tensor& t) {
    constexpr c10::DispatchKeySet others{c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                         c10::DispatchKey::ZeroTensor};
    TORCH_CHECK(t.defined() && t.has_storage() && t.layout() == at::kStrided && !t.key_set().has_any(others),
                "layerbench::", op, ": ", name, " has no memory of its own (",
                t.defined() ? c10::toString(t.key_set()) : "None", "); a plain strided tensor is accepted");
    TORCH_CHECK(t.numel() == 0 || t.is_meta() || t.storage().data(), "layerbench::", op, ": the memory of ", name,
                " has been freed");
}

// What no dispatcher does for whoever writes into a tensor by its pointer.
void check_out(const char* op, const at::Tensor& x, const at::Tensor& out) {
    check_same(op, "out", out, "x", x);
    check_shape(op, "out", out, x.sizes());
    TORCH_CHECK(out.is_contiguous(), "layerbench::", op, ": out has strides ", out.strides(),
                "; a contiguous one is accepted");
    TORCH_CHECK(!out.is_conj() && !out.is_neg(), "layerbench::", op, ": out is ",
                out.is_conj() ? "conjugated" : "negated", " only when it is read; a plain one is accepted");
    TORCH_CHECK(!(at::GradMode::is_enabled() && out.requires_grad()), "layerbench::", op,
                ": out requires a gradient, of which nothing is recorded here; one that does not is accepted");
    TORCH_CHECK(x.is_cpu() || x.is_cuda(), "layerbench::", op, ": x is on ", x.device(), "; cpu and cuda are accepted");
#ifndef WITH_CUDA
    TORCH_CHECK(x.is_cpu(), "layerbench::", op, ": x is on ", x.device(), "; this library was built without CUDA");
#endif
}

// As a pointer has it: no dispatcher has seen to what is conjugated or negated only when it is read.
at::Tensor read(const char* op, const char* name, const at::Tensor& x, const at::Tensor& out) {
    at::Tensor in = x.resolve_conj().resolve_neg().contiguous();
    check_plain(op, name, in);  // a mode may have had its say
    TORCH_CHECK(at::get_overlap_status(in, out) == at::MemOverlapStatus::No, "layerbench::", op, ": out overlaps ", name,
                " in memory; one apart from it is accepted");
    return in;
}

// Where to write to; autograd then knows that what it saved of `out` is gone.
void* written(at::Tensor& out) {
    torch::autograd::increment_version(out);
    return out.mutable_data_ptr();
}

void shift(const at::Tensor& x, int64_t k, at::Tensor& out) {
    check_plain("shift", "x", x);
    check_plain("shift", "out", out);
    check_out("shift", x, out);
    const at::Tensor in = read("shift", "x", x, out);
    const void* from = in.const_data_ptr();
    void* to = written(out);
    if (out.numel() == 0) return;
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
    check_plain("vecadd", "x", x);
    check_plain("vecadd", "y", y);
    check_plain("vecadd", "out", out);
    const Dtype dtype = check_vecadd(x, y);
    check_out("vecadd", x, out);
    const at::Tensor a = read("vecadd", "x", x, out), b = read("vecadd", "y", y, out);
    const void *pa = a.const_data_ptr(), *pb = b.const_data_ptr();
    void* to = written(out);
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
