#pragma once

#include <istream>
#include <ostream>

#include "task.h"

namespace runner {

// Answer commands, a line each, with a line of JSON each, until `commands` ends:
//     policy ALLOCATOR TF32 CUDNN_BENCHMARK DETERMINISTIC    state of the process: warm or default, then 0 or 1
//     set DIRECTION INPUTS [GRADIENT]   what to run, and files of tensors to run it on; wants a gradient of every
//                                       input that requires one
//     place SEED                        move the inputs
//     touch                             make a call: {"output": where it lies, 0 where that is of no matter}
//     window CALLS                      {"seconds": a call, "faults": pages so far}
//     results FILE                      write output and gradients of the last call, and its inputs
// What goes wrong is answered as {"error": text}. File names must not hold spaces.
void serve(Task& task, std::istream& commands, std::ostream& answers);

}  // namespace runner
