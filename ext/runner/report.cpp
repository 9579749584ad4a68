#include "report.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>

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

namespace {

// Elements in float64, or in complex128.
at::Tensor widest(const at::Tensor& t) { return t.to(t.is_complex() ? at::kComplexDouble : at::kDouble); }

// |a - b| of integers: one of 64 bits may lie between two float64, and the difference may need the 64th bit.
at::Tensor apart(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor off = widest(a.maximum(b).sub(a.minimum(b)));
    return off.where(off.ge(0), off.add(0x1p64));
}

}  // namespace

double relative_error(const at::Tensor& got, const at::Tensor& wanted) {
    if (got.sizes() != wanted.sizes() || got.scalar_type() != wanted.scalar_type())
        throw Problem(kOther, "the output is " + got.toString() + c10::str(got.sizes()) + ", expected was " +
                                  wanted.toString() + c10::str(wanted.sizes()));
    const at::Tensor a = got.detach().cpu(), b = wanted.detach().cpu(), right = widest(b);
    const bool whole = at::isIntegralType(b.scalar_type(), /*includeBool=*/true);
    const at::Tensor off = whole ? apart(a.to(at::kLong), b.to(at::kLong)) : widest(a).sub(right);
    const double difference = off.masked_fill(a.eq(b), 0).norm().item<double>();
    const double size = right.masked_fill(right.isinf(), 0).norm().item<double>();
    return difference == 0 ? 0 : difference / size;
}

namespace {

// The bytes of the UTF-8 character that `text` starts with; 0 if it starts with none.
size_t character(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned lead = byte(0);
    const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (size > text.size()) return 0;
    for (size_t i = 1; i < size; ++i)
        if (byte(i) >> 6 != 2) return 0;
    // Not longer than need be, no half of a pair, none beyond the last.
    const bool wrong = size > 2 && ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
                                    (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90));
    return wrong ? 0 : size;
}

}  // namespace

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        const size_t size = character(std::string_view(text).substr(i));
        char code[8];
        if (c == '"' || c == '\\') {
            out += {'\\', text[i]};
        } else if (c < 0x20 || size == 0) {  // a byte of no character as Python's os.fsdecode has it
            std::snprintf(code, sizeof code, "\\u%04x", c < 0x20 ? c : 0xdc00 + c);
            out += code;
        } else {
            out.append(text, i, size);
            i += size - 1;
        }
    }
    return out + "\"";
}

Json& Json::add(const std::string& name, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + quoted(name) + ": " + json;
    return *this;
}

Json& Json::text(const std::string& name, const std::string& value) { return add(name, quoted(value)); }

Json& Json::number(const std::string& name, double value) { return add(name, runner::number(value)); }

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return std::isfinite(value) ? text : "null";  // JSON knows no NaN
}

}  // namespace runner
