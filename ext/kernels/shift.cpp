#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "kernels.h"

namespace layerbench {
namespace {

// memcpy, but for its "rep movsb", which takes 14 times as long on a Zen 4 up to 1 MiB where source and destination are
// aligned differently, as a shift makes them. One vector at a time saturates every level of memory, but a load with the
// low address bits of a store under way waits for it: so loads run away from stores, within their pages.
template <int B>
LAYERBENCH_INLINE void copy_bytes(char* to, const char* from, int64_t n) {
    const int64_t head = n < 8 * B ? n : -reinterpret_cast<intptr_t>(to) & (B - 1);  // then stores are aligned
    const int64_t count = (n - head) / B, stop = head + count * B;
    const bool backwards = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % 4096 < 2048;
    std::memcpy(to, from, head);
    typename Vectors<char, B>::Type vector;
    for (int64_t k = 0, i = backwards ? stop - B : head; k < count; ++k, i += backwards ? -B : B) {
        load<char, B>(vector, from + i);
        store<char, B>(to + i, vector);
    }
    std::memcpy(to + stop, from + stop, n - stop);
}

#ifdef LAYERBENCH_V3
LAYERBENCH_V3 void copy(char* to, const char* from, int64_t n) { copy_bytes<32>(to, from, n); }
#endif
LAYERBENCH_V1 void copy(char* to, const char* from, int64_t n) { copy_bytes<16>(to, from, n); }

}  // namespace

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
        if (first < last) copy(to + first, from + first - shift, last - first);
        std::memset(to + last, 0, stop - last);
        begin = stop;
    }
}

}  // namespace layerbench
