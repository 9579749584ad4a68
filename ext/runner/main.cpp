// Runs a saved module without Python: see kHelp in options.cpp.
#include <ATen/Parallel.h>
#include <torch/csrc/jit/runtime/print_handler.h>
#include <torch/cuda.h>
#include <torch/version.h>
#include <sys/prctl.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "options.h"
#include "process.h"
#include "report.h"
#include "serve.h"

namespace runner {
namespace {

struct Timing {
    std::vector<double> lows;  // of each turn, seconds a call
    int64_t calls = 1;         // a window
    double faults = 0;
};

Timing measure(Task& task, double seconds) {
    constexpr double slot = 0.004, warm = 0.3;
    constexpr int windows = 5, least = 8;
    Timing t;
    // At least ten calls: TorchScript's profiling executor optimises only after some of each shape.
    double call = 0;
    for (double start = now(), calls = 0; calls < 10 || now() - start < warm; ++calls) call = task.window(1);
    t.calls = std::max<int64_t>(1, std::llround(slot / std::max(call, 1e-8)));
    t.calls = std::max<int64_t>(1, std::llround(slot / std::max(task.window(t.calls), 1e-9)));
    long faults = 0, calls = 0;
    uint64_t place = 0;
    for (const double start = now(); now() - start < seconds || static_cast<int>(t.lows.size()) < least;) {
        double low = INFINITY;
        for (int window = 0; window < windows; ++window) {
            if (call < slot * windows) {
                task.settle_outputs(place, t.calls);
            } else {  // one more call is enough
                task.place(place++);
                task.window(1);
            }
            const long before = page_faults();
            low = std::min(low, task.window(t.calls));
            faults += page_faults() - before;
            calls += t.calls;
        }
        t.lows.push_back(low);
    }
    t.faults = static_cast<double>(faults) / static_cast<double>(calls);
    return t;
}

Json figures(const Timing& t) {
    const Summary s = summarise(t.lows);
    Json json;
    json.number("median", s.median);
    if (s.sure) {
        char text[64];
        std::snprintf(text, sizeof text, "[%.9g, %.9g]", s.low, s.high);
        json.add("interval", text);
    }
    return json.number("turns", static_cast<double>(t.lows.size()))
        .number("calls_a_window", static_cast<double>(t.calls))
        .number("page_faults", t.faults);
}

// A complex one as [real part, imaginary part].
std::string sum_of(const at::Tensor& tensor) {
    if (!tensor.is_complex()) return number(tensor.to(at::kDouble).sum().item<double>());
    const auto sum = tensor.to(at::kComplexDouble).sum().item<c10::complex<double>>();
    return "[" + number(sum.real()) + ", " + number(sum.imag()) + "]";
}

std::string described(const at::Tensor& tensor) {
    std::string sizes;
    for (const int64_t size : tensor.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    return Json()
        .add("shape", "[" + sizes + "]")
        .text("dtype", std::string(c10::getDtypeNames(tensor.scalar_type()).first))
        .add("sum", sum_of(tensor.detach()))
        .text("crc32", checksum(tensor))
        .str();
}

Exit run_once(const Options& options, const Model& model, Task& task) {
    task.set(options.direction, inputs_of(options), at::Tensor());
    const double first = task.window(1);
    const at::Tensor output = task.output();
    const Named gradients = task.gradients();
    if (!options.out.empty()) write_results(options.out, output, gradients, task.inputs());
    Json json, named;
    json.text("model", options.model).text("kind", model.kind()).add("output", described(output));
    for (const auto& [name, gradient] : gradients) named.add(name, described(gradient));
    if (options.direction == Direction::forward_backward) json.add("gradients", named.str());
    bool right = true;
    if (!options.expect.empty()) {
        const Tensors wanted = read_tensors(options.expect);
        if (wanted.empty()) throw Problem(kUsage, options.expect + " holds no tensor");
        const double error = relative_error(output, wanted[0]);
        right = error <= options.tolerance;  // NaN is not
        json.number("error", error).add("as_expected", right ? "true" : "false");
    }
    json.number("first_call", first);
    if (options.seconds > 0 && right) json.add("seconds", figures(measure(task, options.seconds)).str());
    json.text("device", options.device).number("threads", at::get_num_threads()).text("torch", TORCH_VERSION);
    std::cout << json.str() << std::endl;
    if (!right) throw Problem(kOther, "the output is not the expected one");
    return kFine;
}

at::Device device_of(const Options& options) {
    at::Device device(at::kCPU);
    try {
        device = at::Device(options.device);
    } catch (const std::exception&) {
        throw Problem(kUsage, "--device " + options.device + ": cpu, cuda or cuda:N");
    }
    if (!device.is_cpu() && !device.is_cuda())
        throw Problem(kUsage, "--device " + options.device + ": cpu, cuda or cuda:N");
    if (device.is_cuda() && std::max<int>(device.index(), 0) >= torch::cuda::device_count())
        throw Problem(kUsage, "--device " + options.device + ": there is no such device, or this torch has no CUDA");
    return device.is_cuda() && !device.has_index() ? at::Device(at::kCUDA, 0) : device;
}

Exit run(const Options& options) {
    if (options.help) {
        std::cout << kHelp;
        return kFine;
    }
    if (options.allocator == "warm" && !options.serve) warm_allocator();  // a server is told when
    if (options.threads) at::set_num_threads(static_cast<int>(options.threads));
    // Standard output is for JSON; a model may print.
    torch::jit::setPrintHandler([](const std::string& text) { std::cerr << text; });
    const at::Device device = device_of(options);
    std::unique_ptr<Model> model;
    try {
        for (const std::string& library : options.libraries) load_library(library);
        model = load_model(options.model, device);
    } catch (const std::exception& error) {
        if (options.serve) std::cout << Json().text("error", error.what()).str() << std::endl;
        throw;
    }
    Task task(*model, device);
    if (!options.serve) return run_once(options, *model, task);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever asked is gone: nobody will stop a window that never ends
    std::cout << Json().add("trains", model->trains() ? "true" : "false").text("torch", TORCH_VERSION).str() << std::endl;
    serve(task, std::cin, std::cout);
    return kFine;
}

}  // namespace
}  // namespace runner

int main(int count, char** arguments) {
    try {
        return runner::run(runner::parse({arguments + 1, arguments + count}));
    } catch (const runner::Problem& problem) {
        std::cerr << "runner: " << problem.what() << std::endl;
        return problem.code;
    } catch (const c10::Error& error) {
        std::cerr << "runner: the model failed: " << runner::one_line(error.what_without_backtrace()) << std::endl;
    } catch (const std::exception& error) {
        std::cerr << "runner: the model failed: " << runner::one_line(error.what()) << std::endl;
    }
    return runner::kRaised;
}
