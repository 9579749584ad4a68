#include "model.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

namespace runner {
namespace {

class Script : public Model {
public:
    explicit Script(torch::jit::Module module) : module_(std::move(module)) {}
    at::Tensor call(const Tensors& inputs) override {
        const c10::IValue out = module_.forward({inputs.begin(), inputs.end()});
        if (!out.isTensor()) throw Problem(kRaised, "the model returned " + out.tagKind() + ", not a tensor");
        return out.toTensor();
    }
    Named parameters() const override {
        Named found;
        for (const auto& one : module_.named_parameters())
            if (one.value.requires_grad()) found.emplace_back(one.name, one.value);
        return found;
    }
    bool trains() const override { return true; }
    const char* kind() const override { return "TorchScript"; }

private:
    torch::jit::Module module_;
};

class Package : public Model {
public:
    Package(const std::string& path, at::Device device) : loader_(load(path, device)), careful_(load(path, device)) {}
    // A package reads past inputs of another shape unless this variable is set, and a check costs as much as a small
    // call. Its code reads the variable once: so there are two, and the careful one is never timed.
    void check(const Tensors& inputs) override {
        setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*replace=*/1);
        try {
            careful_->run(inputs);
        } catch (...) {
            unsetenv("AOTI_RUNTIME_CHECK_INPUTS");
            throw;
        }
        unsetenv("AOTI_RUNTIME_CHECK_INPUTS");
    }
    at::Tensor call(const Tensors& inputs) override {
        const Tensors out = loader_->run(inputs);
        if (out.size() != 1)
            throw Problem(kRaised, "the model returned " + std::to_string(out.size()) + " tensors, not one");
        return out[0];
    }
    Named parameters() const override { return {}; }
    bool trains() const override { return false; }
    const char* kind() const override { return "AOTInductor"; }

private:
    using Loader = torch::inductor::AOTIModelPackageLoader;
    static std::unique_ptr<Loader> load(const std::string& path, at::Device device) {
        return std::make_unique<Loader>(path, "model", /*run_single_threaded=*/false, /*num_runners=*/1,
                                        device.index());
    }
    std::unique_ptr<Loader> loader_, careful_;
};

// The operator that a model needs and nobody registered, or nothing.
std::string missing_operator(const std::string& message) {
    static const std::regex known("(?:Unknown builtin op: |Could not find schema for )([\\w.]+::[\\w.]*\\w)");
    std::smatch found;
    return std::regex_search(message, found, known) ? found[1].str() : "";
}

Problem refusal(const std::string& path, const std::string& message) {
    if (const std::string name = missing_operator(message); !name.empty())
        return {kUsage, path + " needs the operator " + name +
                            ", which is not registered: name the library that defines it with --library PATH"};
    std::string reason = one_line(message);
    reason.resize(std::min(reason.find(". This is an internal miniz error"), reason.size()));  // it blames the disk
    if (!reason.empty() && reason.back() == '.') reason.pop_back();
    return {kUsage, path + " cannot be loaded: " + reason +
                        "; what torch.jit.save wrote is accepted, or an AOTInductor package named .pt2"};
}

}  // namespace

std::string one_line(const std::string& text) {
    // Line by line: a regular expression over a long message overflows the stack.
    static const std::regex error("[\\w.]*(?:Error|Exception)");
    std::string found, line;
    if (text.find("TorchScript") != std::string::npos)
        for (std::istringstream lines(text); std::getline(lines, line);)
            if (const size_t end = line.find(": "); end < 200 && std::regex_match(line.substr(0, end), error))
                found = line.substr(end + 2);
    const auto begin = text.find_first_not_of(" \n");
    if (!found.empty() || begin == std::string::npos) return found;
    return text.substr(begin, text.find('\n', begin) - begin);
}

std::unique_ptr<Model> load_model(const std::string& path, at::Device device) {
    if (!std::ifstream(path)) throw Problem(kUsage, path + " cannot be read");
    try {
        if (path.size() > 4 && path.compare(path.size() - 4, 4, ".pt2") == 0)
            return std::make_unique<Package>(path, device);
        return std::make_unique<Script>(torch::jit::load(path, device));
    } catch (const c10::Error& error) {
        throw refusal(path, error.what_without_backtrace());
    } catch (const std::exception& error) {
        throw refusal(path, error.what());
    }
}

void load_library(const std::string& path) {
    // Absolute, else dlopen would look for a bare name in the system's folders.
    char* const whole = realpath(path.c_str(), nullptr);
    if (!whole) throw Problem(kUsage, "library " + path + " cannot be read");
    const std::string file = whole;
    free(whole);
    // By a pointer that promises nothing (volatile, or the compiler sees through it): dlopen itself is noexcept, and
    // what a library throws while it registers operators that are there already would end the program without a word.
    // What the loader then leaves undone is of no matter to one that says so and ends.
    void* (*volatile open)(const char*, int) = dlopen;
    void* handle = nullptr;
    try {
        handle = open(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    } catch (const std::exception& error) {
        const std::string reason = one_line(error.what());
        throw Problem(kUsage, "library " + path + " cannot register its operators, are they registered already? (" +
                                  reason.substr(0, reason.find("; ")) + ")");
    }
    if (handle) return;
    const std::string reason = dlerror();
    const bool strange = reason.find("undefined symbol") != std::string::npos;
    throw Problem(kUsage, "library " + path + " cannot be loaded: " + reason +
                              (strange ? " (built for another torch? This is " TORCH_VERSION ")" : ""));
}

}  // namespace runner
