#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace layerbench {

void shift_cpu(const void* in, void* out, const Shift& s, int64_t begin, int64_t end) {
    const auto* from = static_cast<const char*>(in);
    auto* to = static_cast<char*>(out);
    const int64_t row = s.row * s.unit, shift = s.shift * s.unit;
    while (begin < end) {
        // Of the row that `begin` is in, [begin, stop) is ours and [first, last) has a source.
        const int64_t start = begin / row * row, stop = std::min(end, start + row);
        const int64_t first = std::clamp(start + std::max<int64_t>(shift, 0), begin, stop);
        const int64_t last = std::clamp(start + row + std::min<int64_t>(shift, 0), first, stop);
        std::memset(to + begin, 0, first - begin);
        std::memcpy(to + first, from + first - shift, last - first);
        std::memset(to + last, 0, stop - last);
        begin = stop;
    }
}

}  // namespace layerbench
