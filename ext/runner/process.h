// The state of this process that timings depend on.
#pragma once

#include <string>

namespace runner {

// Make glibc keep freed pages, huge ones where the system has them ("warm"), as bench/machine/memory.py does for Python;
// what was done, in words.
std::string warm_allocator();

// Pages this process has been given so far.
long page_faults();

}  // namespace runner
