#include "options.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <map>

#include "report.h"

namespace runner {

const char* const kHelp = R"(usage: runner MODEL [options]

Loads a module saved by torch.jit.save, or an AOTInductor package (.pt2), runs it without Python, checks and times
it, and prints one line of JSON.

  --library PATH       shared library that defines operators of the model; may be repeated
  --inputs FILE        input tensors: a tensor, or a list of them, saved by torch.save
  --shape 1x3x64x64    random normal input of that shape instead; repeat it for every input
  --dtype float32      of random inputs: float32, float64, float16, bfloat16, int64
  --seed 0             of random inputs: those of torch.randn of that dtype after torch.manual_seed; int64: 32 times
                       those of float32, cut off
  --expect FILE        tensor saved by torch.save that the output must equal
  --tolerance 5e-5     largest relative error that passes (Frobenius norm)
  --backward           time forward, mean() and backward; report the gradients too
  --direction WORD     inference (default), forward, forward_backward (as --backward)
  --device cpu         cpu, cuda or cuda:N
  --threads N          threads that one operator may use
  --seconds 1          time to sample for; 0 runs once and times nothing
  --allocator warm     warm: freed pages are kept, so that no call pays for new ones; default: as it comes
  --out FILE           save {"output": ..., "gradients": ..., "inputs": ...} for torch.load
  --serve              answer commands on standard input; see serve.h
  --help               show this

Times are seconds a call. A turn is five windows of about 4 ms, the inputs somewhere else in memory for each, and its
lowest window counts; median and 95 % interval are over turns.

Exit codes: 0 fine; 1 the output is not the expected one; 2 wrong option, or a file that cannot be loaded;
3 the model failed when it was run.
)";

namespace {

double number(const std::string& option, const std::string& value) {
    size_t end = 0;
    double result = 0;
    try {
        result = std::stod(value, &end);
    } catch (const std::exception&) {
    }
    if (value.empty() || end != value.size() || !(result >= 0 && result < 1e18))
        throw Problem(kUsage, option + " " + value + ": a number of at least 0");
    return result;
}

int64_t whole(const std::string& option, const std::string& value, int64_t least, int64_t most) {
    const double result = value.find_first_not_of("0123456789") == std::string::npos ? number(option, value) : -1;
    if (result < static_cast<double>(least) || result > static_cast<double>(most))
        throw Problem(kUsage, option + " " + value + ": a whole number from " + std::to_string(least) + " to " +
                                  std::to_string(most));
    return static_cast<int64_t>(result);
}

at::ScalarType dtype_named(const std::string& name) {
    static const std::map<std::string, at::ScalarType> known = {{"float32", at::kFloat},
                                                                {"float64", at::kDouble},
                                                                {"float16", at::kHalf},
                                                                {"bfloat16", at::kBFloat16},
                                                                {"int64", at::kLong}};
    if (const auto found = known.find(name); found != known.end()) return found->second;
    throw Problem(kUsage, "--dtype " + name + ": float32, float64, float16, bfloat16 or int64");
}

std::vector<int64_t> shape_named(const std::string& text) {
    std::vector<int64_t> shape;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find('x', begin), text.size());
        const std::string part = text.substr(begin, end - begin);
        if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos || part.size() > 12)
            throw Problem(kUsage, "--shape " + text + ": sizes with x between them, for example 1x3x64x64");
        shape.push_back(std::stoll(part));
        begin = end + 1;
    }
    return shape;
}

}  // namespace

Options parse(const std::vector<std::string>& arguments) {
    Options o;
    const std::map<std::string, std::string*> texts = {{"--inputs", &o.inputs}, {"--expect", &o.expect},
                                                       {"--out", &o.out},       {"--dtype", &o.dtype},
                                                       {"--device", &o.device}, {"--allocator", &o.allocator}};
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& name = arguments[i];
        const auto value = [&]() -> const std::string& {
            if (i + 1 == arguments.size()) throw Problem(kUsage, name + " needs a value");
            return arguments[++i];
        };
        if (name == "--help" || name == "-h") o.help = true;
        else if (name == "--serve") o.serve = true;
        else if (name == "--backward") o.direction = Direction::forward_backward;
        else if (name == "--direction") o.direction = direction_named(value());
        else if (name == "--library") o.libraries.push_back(value());
        else if (name == "--shape") o.shapes.push_back(value());
        else if (name == "--threads") o.threads = whole(name, value(), 1, 4096);
        else if (name == "--seed") o.seed = whole(name, value(), 0, int64_t{1} << 53);
        else if (name == "--seconds") o.seconds = number(name, value());
        else if (name == "--tolerance") o.tolerance = number(name, value());
        else if (const auto text = texts.find(name); text != texts.end()) *text->second = value();
        else if (name.rfind("-", 0) == 0) throw Problem(kUsage, "no option " + name + "; --help lists them");
        else if (!o.model.empty()) throw Problem(kUsage, "two models, " + o.model + " and " + name);
        else o.model = name;
    }
    if (o.help) return o;
    if (o.model.empty()) throw Problem(kUsage, "no model; --help shows the usage");
    if (o.allocator != "warm" && o.allocator != "default")
        throw Problem(kUsage, "--allocator " + o.allocator + ": warm or default");
    if (o.direction == Direction::backward && !o.serve)
        throw Problem(kUsage, "--direction backward is for --serve only; --backward times a training step");
    return o;
}

Tensors inputs_of(const Options& options) {
    if (!options.inputs.empty() && !options.shapes.empty()) throw Problem(kUsage, "--inputs or --shape, not both");
    if (options.inputs.empty() && options.shapes.empty())
        throw Problem(kUsage, "no input: --inputs FILE, or --shape 1x3x64x64 for each");
    Tensors all = options.inputs.empty() ? Tensors() : read_tensors(options.inputs);
    const at::ScalarType dtype = dtype_named(options.dtype);
    const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options.seed));
    for (const std::string& shape : options.shapes) {
        const std::vector<int64_t> sizes = shape_named(shape);
        try {
            const bool floating = at::isFloatingType(dtype);
            const at::Tensor drawn = at::randn(sizes, generator, floating ? dtype : at::kFloat);
            all.push_back(floating ? drawn : drawn.mul(32).to(dtype));
        } catch (const c10::Error& error) {  // more than there is memory for
            throw Problem(kUsage, "--shape " + shape + ": " + one_line(error.what_without_backtrace()));
        }
    }
    for (at::Tensor& x : all) x = x.detach().set_requires_grad(at::isFloatingType(x.scalar_type()));
    return all;
}

}  // namespace runner
