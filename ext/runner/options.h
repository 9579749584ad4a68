#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "task.h"

namespace runner {

extern const char* const kHelp;

struct Options {
    std::string model;
    std::vector<std::string> libraries, shapes;
    std::string inputs, expect, out, dtype = "float32", device = "cpu", allocator = "warm";
    Direction direction = Direction::inference;
    int64_t threads = 0, seed = 0;
    double seconds = 1, tolerance = 5e-5;
    bool help = false, serve = false;
};

// Throws Problem.
Options parse(const std::vector<std::string>& arguments);

// The inputs that the options ask for: read, or drawn. Throws Problem.
Tensors inputs_of(const Options& options);

}  // namespace runner
