// Tensors in files, figures, and JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace runner {

// What torch.save wrote: a tensor, or a list or tuple of tensors. Throws Problem.
Tensors read_tensors(const std::string& path);

// {"output": tensor, "gradients": {name: tensor}, "inputs": [tensor]}, for torch.load. Throws Problem.
void write_results(const std::string& path, const at::Tensor& output, const Named& gradients, const Tensors& inputs);

struct Summary {
    double median = 0, low = 0, high = 0;  // low and high: the median's 95 % interval by order statistics
    bool sure = false;                     // whether there are values enough for an interval
};

Summary summarise(std::vector<double> values);

// zlib's CRC-32 of the elements in order, as hexadecimal text.
std::string checksum(const at::Tensor& tensor);

// Frobenius norm of the difference, over that of what is finite in `wanted`; in float64, integers subtracted exactly.
// Equal elements do not differ, infinite ones included; NaN where there is one. Throws Problem if the shapes or dtypes
// differ.
double relative_error(const at::Tensor& got, const at::Tensor& wanted);

// {"name": value, ...}; every value is JSON already.
class Json {
public:
    Json& add(const std::string& name, const std::string& json);
    Json& text(const std::string& name, const std::string& value);
    Json& number(const std::string& name, double value);
    std::string str() const { return "{" + body_ + "}"; }

private:
    std::string body_;
};

// A JSON string. Bytes that are no UTF-8 become the code points that Python's os.fsencode takes back.
std::string quoted(const std::string& text);

// A JSON number, null where it is not finite.
std::string number(double value);

}  // namespace runner
