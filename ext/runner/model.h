// A saved module, whichever way it was saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace runner {

enum Exit { kFine = 0, kOther = 1, kUsage = 2, kRaised = 3 };

// What the user is told in one line, and what the program then exits with.
struct Problem : std::runtime_error {
    Problem(Exit code_, const std::string& message) : std::runtime_error(message), code(code_) {}
    Exit code;
};

using Tensors = std::vector<at::Tensor>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

class Model {
public:
    virtual ~Model() = default;
    virtual void check(const Tensors&) {}  // throws where `call` would not notice that they do not fit
    virtual at::Tensor call(const Tensors& inputs) = 0;
    virtual Named parameters() const = 0;  // those that want a gradient
    virtual bool trains() const = 0;
    virtual const char* kind() const = 0;
};

// A TorchScript file, or an AOTInductor package if its name ends in .pt2. Throws Problem.
std::unique_ptr<Model> load_model(const std::string& path, at::Device device);

// Make a library's operators known. Throws Problem.
void load_library(const std::string& path);

// The one line that matters of what torch has to say: the error under a TorchScript traceback, else the first line.
std::string one_line(const std::string& text);

}  // namespace runner
