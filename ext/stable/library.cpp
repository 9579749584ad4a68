// torch.ops.layerbench_stable: the operators on the stable ABI. Gradients are registered in Python (ext/register.py),
// since the stable ABI has no autograd.
#include "../bindings/schema.h"
#include "at.h"

namespace {

// Torch's macro goes on without a library, and crashes, where another has defined these operators: so it is asked first.
struct Unclaimed {
    Unclaimed() {
        TorchLibraryHandle library = nullptr;
        if (aoti_torch_library_init_def("layerbench_stable", __FILE__, __LINE__, &library) != TORCH_SUCCESS)
            throw std::runtime_error("another library has defined layerbench_stable");
        aoti_torch_delete_library_object(library);
    }
} unclaimed;

}  // namespace

STABLE_TORCH_LIBRARY(layerbench_stable, m) {
    for (const char* schema : layerbench::kSchemas) m.def(schema);
}
