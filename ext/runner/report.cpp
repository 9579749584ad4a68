#include "report.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace runner {

Tensors read_tensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Problem(kUsage, path + " cannot be read");
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    c10::IValue value;
    try {
        value = torch::jit::pickle_load(bytes);
    } catch (const std::exception&) {
        throw Problem(kUsage, path + " is no file of tensors as torch.save writes it");
    }
    if (value.isTensor()) return {value.toTensor()};
    if (value.isTensorList()) return value.toTensorVector();
    Tensors all;
    if (value.isTuple() || value.isList()) {
        const auto elements = value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
        for (const c10::IValue& element : elements)
            if (element.isTensor()) all.push_back(element.toTensor());
        if (all.size() == elements.size()) return all;
    }
    throw Problem(kUsage, path + " holds a " + value.tagKind() + ", not a tensor or a list of tensors");
}

void write_results(const std::string& path, const at::Tensor& output, const Named& gradients, const Tensors& inputs) {
    c10::Dict<std::string, at::Tensor> named;
    for (const auto& [name, gradient] : gradients) named.insert(name, gradient.detach().cpu());
    c10::List<at::Tensor> given;
    for (const at::Tensor& x : inputs) given.push_back(x.detach().cpu());
    c10::impl::GenericDict all(c10::StringType::get(), c10::AnyType::get());
    all.insert("output", output.detach().cpu());
    all.insert("gradients", named);
    all.insert("inputs", given);
    const std::vector<char> bytes = torch::jit::pickle_save(all);
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
    if (!file) throw Problem(kUsage, path + " cannot be written");
}

Summary summarise(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size(), half = n / 2;
    Summary s;
    s.median = n % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
    // The k lowest and the k highest are outside: the true median lies below value k with the chance of at most
    // k heads in n tosses, which must stay within 2.5 % on either side.
    double tosses = -std::log(2.0) * static_cast<double>(n), below = std::exp(tosses);  // in logs: 0.5^1075 is 0
    size_t k = 0;
    while (below <= 0.025) {
        tosses += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1));
        below += std::exp(tosses);
        ++k;
    }
    s.sure = k > 0;
    s.low = values[k ? k - 1 : 0];
    s.high = values[n - std::max<size_t>(k, 1)];
    return s;
}

std::string checksum(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.detach().cpu().contiguous();
    const auto* byte = static_cast<const unsigned char*>(flat.const_data_ptr());
    uint32_t table[256], crc = ~0u;
    for (uint32_t i = 0; i < 256; ++i) {
        table[i] = i;
        for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < flat.nbytes(); ++i) crc = table[(crc ^ byte[i]) & 0xff] ^ (crc >> 8);
    char text[9];
    std::snprintf(text, sizeof text, "%08x", ~crc);
    return text;
}

double relative_error(const at::Tensor& got, const at::Tensor& wanted) {
    if (got.sizes() != wanted.sizes() || got.scalar_type() != wanted.scalar_type())
        throw Problem(kOther, "the output is " + got.toString() + c10::str(got.sizes()) + ", expected was " +
                                  wanted.toString() + c10::str(wanted.sizes()));
    const at::Tensor right = wanted.detach().cpu().to(at::kDouble);
    const at::Tensor off = got.detach().cpu().to(at::kDouble).sub(right);
    const double difference = off.norm().item<double>(), size = right.norm().item<double>();
    return difference == 0 ? 0 : difference / size;
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        char code[8];
        if (c == '"' || c == '\\') {
            out += {'\\', c};
        } else if (static_cast<unsigned char>(c) < 0x20) {
            std::snprintf(code, sizeof code, "\\u%04x", c);
            out += code;
        } else {
            out += c;
        }
    }
    return out + "\"";
}

Json& Json::add(const std::string& name, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + quoted(name) + ": " + json;
    return *this;
}

Json& Json::text(const std::string& name, const std::string& value) { return add(name, quoted(value)); }

Json& Json::number(const std::string& name, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return add(name, std::isfinite(value) ? text : "null");  // JSON knows no NaN
}

}  // namespace runner
