// torch.ops.layerbench_stable: the operators on the stable ABI. Gradients are registered in Python (ext/register.py),
// since the stable ABI has no autograd.
#include "../bindings/schema.h"
#include "at.h"

STABLE_TORCH_LIBRARY(layerbench_stable, m) {
    for (const char* schema : layerbench::kSchemas) m.def(schema);
}
