// The words of ATen that checks.h, cpu.cpp and cuda.cpp use, on LibTorch's stable ABI: C functions of torch from 2.11 on
// (TORCH_TARGET_VERSION), so that one library is loaded by that version and every later one. As they live in namespace
// layerbench, `at::` means these wherever the files above say it, and ATen itself is never included.
#pragma once

#ifdef WITH_CUDA
#define USE_CUDA  // torch's own, for what its headers say of CUDA
#include <cuda_runtime_api.h>
#endif

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#ifdef WITH_CUDA
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#endif
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#define LAYERBENCH_KERNELS(key, shift_fn, vecadd_fn, conv_fn, grad_input_fn, grad_weight_fn)     \
    STABLE_TORCH_LIBRARY_IMPL(layerbench_stable, key, m) {                                       \
        m.impl("shift", TORCH_BOX(&layerbench::Plain<shift_fn>::call));                          \
        m.impl("vecadd", TORCH_BOX(&layerbench::Plain<vecadd_fn>::call));                        \
        m.impl("unfold_conv2d", TORCH_BOX(&layerbench::Plain<conv_fn>::call));                   \
        m.impl("unfold_conv2d_grad_input", TORCH_BOX(&layerbench::Plain<grad_input_fn>::call));  \
        m.impl("unfold_conv2d_grad_weight", TORCH_BOX(&layerbench::Plain<grad_weight_fn>::call)); \
    }

#define TORCH_CHECK(condition, ...) \
    if (!(condition)) layerbench::at::fail(__VA_ARGS__)

namespace layerbench {
namespace at {

namespace stable = torch::stable;
using torch::headeronly::ScalarType;
using stable::Device;
using stable::parallel_for;
using DimVector = std::vector<int64_t>;

inline constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short,
                            kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half,
                            kFloat = ScalarType::Float, kDouble = ScalarType::Double,
                            kBFloat16 = ScalarType::BFloat16;

struct IntArrayRef : torch::headeronly::IntHeaderOnlyArrayRef {
    using Base = torch::headeronly::IntHeaderOnlyArrayRef;
    using Base::Base;
    IntArrayRef(const Base& base) : Base(base) {}
};

inline bool operator==(IntArrayRef a, IntArrayRef b) { return a.equals(b); }

inline std::ostream& operator<<(std::ostream& out, IntArrayRef values) {
    const char* separator = "[";
    for (int64_t value : values) out << std::exchange(separator, ", ") << value;
    return out << (values.empty() ? "[]" : "]");
}

inline std::ostream& operator<<(std::ostream& out, const Device& device) {
    if (device.is_cpu()) return out << "cpu";
    if (device.is_cuda()) return out << "cuda:" << device.index();
    return out << "device type " << int(device.type());
}

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw std::runtime_error(message.str());
}

struct Options {
    ScalarType type;
    Device device;

    Options dtype(ScalarType other) const { return {other, device}; }
};

class Tensor : public stable::Tensor {
public:
    Tensor() : stable::Tensor(AtenTensorHandle(nullptr)) {}
    Tensor(stable::Tensor other) : stable::Tensor(std::move(other)) {}

    IntArrayRef sizes() const { return stable::Tensor::sizes(); }
    int64_t nbytes() const { return numel() * int64_t(element_size()); }
    Options options() const { return {scalar_type(), device()}; }
    Tensor contiguous() const { return is_contiguous() ? *this : Tensor(stable::contiguous(*this)); }
    Tensor to(ScalarType type) const { return type == scalar_type() ? *this : Tensor(stable::to(*this, type)); }
    Tensor sum(int64_t dim) const { return stable::sum(*this, std::array{dim}); }
    Tensor select(int64_t dim, int64_t index) const { return stable::select(*this, dim, index); }
    Tensor flatten(int64_t first) const { return stable::flatten(*this, first); }
    Tensor unsqueeze(int64_t dim) const { return stable::unsqueeze(*this, dim); }
    Tensor t() const { return stable::transpose(*this, 0, 1); }
    Tensor view(IntArrayRef sizes) const { return stable::view(*this, sizes); }
};

// By its own C function: the way through the dispatcher looks the operator up by name at every call.
inline Tensor empty(IntArrayRef sizes, const Options& options) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0; stride *= std::max<int64_t>(sizes[i], 1)) strides[i] = stride;
    const auto code = [](auto value) { return stable::detail::to<int32_t>(stable::detail::from(value)); };
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(),
                                                           code(options.type), code(options.device.type()),
                                                           options.device.index(), &made));
    return stable::Tensor(made);
}

inline Tensor zeros(IntArrayRef sizes, const Options& options) {
    Tensor made = empty(sizes, options);
    return stable::zero_(made);
}

// An operator that torch/csrc/stable/ops.h does not have.
template <typename... Arguments>
Tensor call(const char* name, const char* overload, const Arguments&... arguments) {
    std::array stack{stable::detail::from(arguments)...};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
    return stable::detail::to<stable::Tensor>(stack[0]);
}

// The pairs are kernel size, dilation, padding and stride.
template <typename... Pairs>
Tensor im2col(const stable::Tensor& image, const Pairs&... pairs) {
    return call("aten::im2col", "", image, IntArrayRef::Base(pairs)...);
}

template <typename... Pairs>
void col2im_out(const stable::Tensor& image, const stable::Tensor& columns, IntArrayRef size, const Pairs&... pairs) {
    call("aten::col2im", "out", columns, IntArrayRef::Base(size), IntArrayRef::Base(pairs)..., image);
}

// By C functions of their own: the way through the dispatcher takes no Scalar.
#ifdef WITH_CUDA
#define LAYERBENCH_OF_DEVICE(t, name) (t.is_cpu() ? aoti_torch_cpu_##name : aoti_torch_cuda_##name)
#else
#define LAYERBENCH_OF_DEVICE(t, name) aoti_torch_cpu_##name
#endif

inline void mm_out(const Tensor& out, const Tensor& a, const Tensor& b) {
    TORCH_ERROR_CODE_CHECK(LAYERBENCH_OF_DEVICE(out, mm_out)(out.get(), a.get(), b.get()));
}

inline Tensor mm(const Tensor& a, const Tensor& b) {
    Tensor out = empty({a.size(0), b.size(1)}, a.options());
    mm_out(out, a, b);
    return out;
}

inline void addmm_out(const Tensor& out, const Tensor& sum, const Tensor& a, const Tensor& b) {
    TORCH_ERROR_CODE_CHECK(LAYERBENCH_OF_DEVICE(out, addmm_out)(out.get(), sum.get(), a.get(), b.get(), 1, 1));
}

}  // namespace at

struct WithoutAutocast {};  // the C functions of matrix products know none

inline at::Tensor cpu_empty(at::IntArrayRef sizes, const at::Options& options) { return at::empty(sizes, options); }

// What torch hands to a boxed function for each of our arguments, and the way back.
template <typename T>
struct Boxed {
    using type = T;
};
template <>
struct Boxed<const at::Tensor&> {
    using type = torch::stable::Tensor;
};
template <>
struct Boxed<const std::optional<at::Tensor>&> {
    using type = std::optional<torch::stable::Tensor>;
};
template <>
struct Boxed<at::IntArrayRef> {
    using type = std::vector<int64_t>;
};

inline int64_t unboxed(int64_t value) { return value; }
inline at::Tensor unboxed(const torch::stable::Tensor& tensor) { return tensor; }
inline at::IntArrayRef unboxed(const std::vector<int64_t>& values) { return values; }
inline std::optional<at::Tensor> unboxed(const std::optional<torch::stable::Tensor>& tensor) {
    return tensor ? std::optional<at::Tensor>(*tensor) : std::nullopt;
}

template <auto function>
struct Plain;
template <typename... Arguments, at::Tensor (*function)(Arguments...)>
struct Plain<function> {
    static torch::stable::Tensor call(const typename Boxed<Arguments>::type&... arguments) {
        return function(unboxed(arguments)...);
    }
};

}  // namespace layerbench

#ifdef WITH_CUDA

#define C10_CUDA_CHECK STD_CUDA_CHECK

namespace layerbench::c10::cuda {

struct CUDAGuard : torch::stable::accelerator::DeviceGuard {
    explicit CUDAGuard(const at::Device& device) : DeviceGuard(device.index()) {}
};

// Of the current device, which a CUDAGuard has set.
inline cudaStream_t getCurrentCUDAStream() {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_get_current_cuda_stream(torch::stable::accelerator::getCurrentDeviceIndex(), &stream));
    return static_cast<cudaStream_t>(stream);
}

}  // namespace layerbench::c10::cuda

#endif
