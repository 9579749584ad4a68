#include "process.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <climits>
#include <cstdint>
#include <cstdlib>

namespace runner {

std::string warm_allocator() {
    constexpr uintptr_t huge = 2 << 20, reserve = 1 << 30;  // bytes
    if (!mallopt(M_MMAP_MAX, 0) || !mallopt(M_TRIM_THRESHOLD, INT_MAX)) return "default (mallopt refused)";
    void* const start = malloc(reserve);
    bool advised = false;
    if (start) {
        const uintptr_t from = (reinterpret_cast<uintptr_t>(start) + huge - 1) & -huge;
        const uintptr_t size = (reinterpret_cast<uintptr_t>(start) + reserve - from) & -huge;
        advised = madvise(reinterpret_cast<void*>(from), size, MADV_HUGEPAGE) == 0;
        free(start);
    }
    return advised ? "warm (mallopt: no mmap, no trim; huge pages where the system allows)" : "warm (mallopt: no mmap, no trim)";
}

long page_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

}  // namespace runner
